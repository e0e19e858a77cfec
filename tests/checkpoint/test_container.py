"""Every kind of file opens by what is in it, and gives the same weights and the same picture."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_model import METADATA, write_model
from tiny_model import tiny_weights as model_weights
from torch_files import torch_row, torch_zip

from smalti import Pipeline
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.gguf import ORIGINAL_SHAPE, GgufTensor, write_gguf
from smalti.errors import CheckpointError

RANDOM = np.random.default_rng(0)
TABLE = {f"block.{i}.weight": RANDOM.standard_normal((4, 8), np.float32) for i in range(5)}


def same(path: Path, table: dict[str, np.ndarray] = TABLE) -> None:
    file = open_tensors(path)
    assert set(file) == set(table) and len(file) == len(table)
    for name, array in table.items():
        assert name in file and file.shape(name) == array.shape
        np.testing.assert_array_equal(file.read(name), array)


def shards(folder: Path) -> dict[str, str]:
    names, home = list(TABLE), {}
    for number, part in enumerate((names[:2], names[2:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: TABLE[name] for name in part}, folder / file)
        home |= dict.fromkeys(part, file)
    return home


def test_a_name_says_nothing_about_the_format(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    save_file(TABLE, path)
    same(path)
    for data in (torch_zip(TABLE), torch_row(TABLE)):
        path.write_bytes(data)
        same(path)


def test_a_header_of_640_bytes_is_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(struct.pack("<Q", 640) + header.ljust(640) + b"\x05")
    same(path, {"a": np.float32([5])})


def test_shards_by_index_by_name_and_by_any_of_them(tmp_path: Path) -> None:
    home = shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": home}))
    for path in (index, *(tmp_path / name for name in set(home.values()))):
        same(path)
    file = open_tensors(index)
    assert file.format == "safetensors in 2 files"
    assert file.size_bytes == sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
    name = next(iter(TABLE))
    file.drop(name)
    file.ahead([*TABLE])
    np.testing.assert_array_equal(file.array(name), TABLE[name])
    with pytest.raises(CheckpointError, match="no tensor 'nothing'"):
        file.read("nothing")


def test_pickled_shards(tmp_path: Path) -> None:
    names = list(TABLE)
    home = {name: f"pytorch_model-0000{1 + (i > 2)}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(home.values()):
        (tmp_path / file).write_bytes(torch_zip({n: TABLE[n] for n in names if home[n] == file}))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": home}))
    same(index)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 are missing: model-00002-of-00002.safetensors"):
        open_tensors(tmp_path / "model-00001-of-00002.safetensors")


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    home = shards(tmp_path)
    save_file(TABLE, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="is in model-00001-of-00002.safetensors and in"):
        open_tensors(tmp_path / home["block.0.weight"])


@pytest.mark.parametrize("table", [
    None, [], {"weight_map": []}, {"weight_map": {"a": 3}}, {"weight_map": {}},
    {"weight_map": {"a": "../x.safetensors"}}, {"weight_map": {"a": "/x.safetensors"}},
    {"weight_map": {"a": "x.txt"}}, {"weight_map": {"a": "missing.safetensors"}},
    {"weight_map": {"gone": "model-00001-of-00002.safetensors"}},
    {"weight_map": {str(i): f"{i}.safetensors" for i in range(2000)}}])
def test_a_damaged_index(tmp_path: Path, table: object) -> None:
    shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(table))
    with pytest.raises(CheckpointError):
        open_tensors(index)


@pytest.mark.parametrize(("data", "said"), [
    (b"", r"x.ckpt is empty; expected a model file \(.safetensors, .ckpt, "), (b"x", "model file"),
    (bytes(99), r"is something else: expected a model file \(.safetensors, .ckpt, .pt, .pth, .bin"),
    (bytes(257) + b"ustar" + bytes(300), "tar archive"),
    (b"\x80\x02K\x05.", "torch.save did not write"), (b"PK\x03\x04" + bytes(60), "damaged zip"),
    (b"GGUF" + bytes(20), "of version 0"), (b"<html>", "web page")])
def test_what_is_no_model(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=said):
        open_tensors(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    paths = [tmp_path, tmp_path / "nothing.ckpt"]
    for name, target in (("device", "/dev/zero"), ("folder", tmp_path), ("lost", "nowhere"),
                         ("loop", "loop.ckpt")):
        (tmp_path / f"{name}.ckpt").symlink_to(target)
        paths.append(tmp_path / f"{name}.ckpt")
    os.mkfifo(tmp_path / "pipe.ckpt")
    for path in (*paths, tmp_path / "pipe.ckpt"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            open_tensors(path)
    (tmp_path / "m.index.json").write_text('{"weight_map": {"a": "m-1.safetensors"}}')
    (tmp_path / "m-1.safetensors").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_tensors(tmp_path / "m.index.json")


def test_a_link_to_a_model(tmp_path: Path) -> None:
    save_file(TABLE, tmp_path / "blob")
    (tmp_path / "model.safetensors").symlink_to("blob")
    same(tmp_path / "model.safetensors")


# ---------------------------------------------------------------------- the same picture


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return model_weights()


def picture(path: Path) -> np.ndarray:
    (image,) = Pipeline.load(path, threads=1)("a red apple", steps=2).images
    return np.asarray(image, np.float32)


@pytest.fixture(scope="module")
def expected(weights: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
             ) -> np.ndarray:
    return picture(write_model(tmp_path_factory.mktemp("model") / "tiny.safetensors", weights))


def gguf(path: Path, weights: dict[str, np.ndarray]) -> Path:
    tensors, entries = [], {"general.architecture": "sd1", **METADATA}
    for name, array in weights.items():
        shape = array.shape
        if len(shape) > 4 or name.endswith("conv_in.weight"):
            entries[ORIGINAL_SHAPE + name] = list(shape)
            shape = (array.size,)
        tensors.append(GgufTensor(name, shape, "f16", lambda a=array, s=shape: a.reshape(s)))
    with open(path, "wb") as stream:
        write_gguf(stream, entries, tensors, name_bytes_max=127)
    return path


@pytest.mark.parametrize("kind", ["zip", "row", "gguf"])
def test_a_model_gives_the_same_picture(tmp_path: Path, weights: dict[str, np.ndarray],
                                        expected: np.ndarray, kind: str) -> None:
    path = tmp_path / "tiny.ckpt"
    if kind == "gguf":
        gguf(path, weights)
    else:
        writer = torch_zip if kind == "zip" else torch_row
        path.write_bytes(writer({"state_dict": weights, **METADATA, "epoch": 3}))
    np.testing.assert_array_equal(picture(path), expected)


def test_scaled_floats_of_8_bits_give_nearly_the_same_picture(
        tmp_path: Path, weights: dict[str, np.ndarray], expected: np.ndarray) -> None:
    table = {"model.diffusion_model.scaled_fp8": np.zeros(2, ml_dtypes.float8_e4m3fn)}
    for name, array in weights.items():
        table[name] = array
        if array.ndim > 1 and name.startswith("model.diffusion_model."):
            scale = np.abs(array).max().astype(np.float32) / 448
            table[name] = (array / scale).astype(ml_dtypes.float8_e4m3fn)
            table[f"{name.removesuffix('.weight')}.scale_weight"] = scale.reshape(1)
    path = write_model(tmp_path / "tiny.safetensors", table)
    error = np.abs(picture(path) - expected)
    assert 0 < error.mean() < 8
