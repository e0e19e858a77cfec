"""GGUF files: read as `gguf` writes them, and ours read by `gguf`."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from smalti.checkpoint.blocks import FORMATS, dequantise
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.convert import plan
from smalti.checkpoint.gguf import NUMPY_TYPES, ORIGINAL_SHAPE, GgufTensor, write_gguf
from smalti.errors import CheckpointError

NUMBERS = np.arange(24).reshape(2, 3, 4)


def written(path: Path, entries: dict, tensors: list[GgufTensor]) -> Path:
    stream = io.BytesIO()
    write_gguf(stream, entries, tensors)
    path.write_bytes(stream.getvalue())
    return path


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_plain_types(tmp_path: Path, dtype: str) -> None:
    array = NUMBERS.astype(NUMPY_TYPES[dtype])
    file = open_tensors(written(tmp_path / "a.gguf", {}, [
        GgufTensor("a", array.shape, dtype, lambda: array)]))
    assert file.dtype("a") == dtype.upper() and file.shape("a") == (2, 3, 4)
    np.testing.assert_array_equal(file.array("a"), array)
    np.testing.assert_array_equal(file.read("a"), NUMBERS)
    file.drop("a")


@pytest.mark.parametrize("name", FORMATS)
def test_block_formats(tmp_path: Path, name: str) -> None:
    format = FORMATS[name]
    random = np.random.default_rng(0).integers(0, 60, (3, 2 * format.bytes), np.uint8)
    shape = (3, 2 * format.elements)
    file = open_tensors(written(tmp_path / "a.gguf", {"general.architecture": "flux"}, [
        GgufTensor("before", (5,), "f32", lambda: np.zeros(5)),
        GgufTensor("a", shape, name, lambda: random)]))
    assert (file.dtype("a"), file.shape("a")) == (name, shape)
    assert file.metadata == {"general.architecture": "flux"}
    np.testing.assert_array_equal(file.raw("a"), random)
    np.testing.assert_array_equal(file.read("a").reshape(-1), dequantise(name, random))


def test_the_shape_that_the_model_has(tmp_path: Path) -> None:
    file = open_tensors(written(tmp_path / "a.gguf", {ORIGINAL_SHAPE + "a": [4, 2, 3]}, [
        GgufTensor("a", (24,), "f32", lambda: NUMBERS.reshape(-1))]))
    assert file.shape("a") == (4, 2, 3) and not file.metadata
    np.testing.assert_array_equal(file.read("a"), NUMBERS.reshape(4, 2, 3))


def test_entries_become_texts(tmp_path: Path) -> None:
    file = open_tensors(written(tmp_path / "a.gguf", {
        "name": "a", "count": 7, "list": ["x", "y"], "numbers": [1, 2], "long": ["t"] * 100,
        "lines": "a\nb"}, []))
    assert file.metadata == {"name": "a", "count": "7", "list": '["x", "y"]', "numbers": "[1, 2]",
                             "long": "(100 values)", "lines": '"a\\nb"'}


def test_another_version_and_a_format_that_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", {}, [GgufTensor("a", (256,), "f32",
                                                        lambda: np.zeros(256))])
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:4] + struct.pack("<I", 1) + data[8:])
    with pytest.raises(CheckpointError, match="GGUF of version 1; expected version 2 or 3"):
        open_tensors(path)
    struct.pack_into("<I", data, 24 + 9 + 4 + 8, 21)  # behind counts, name and sizes
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="'a' is in the block format IQ3_S"):
        open_tensors(path)
    path.write_bytes(data[:-40])
    with pytest.raises(CheckpointError):
        open_tensors(path)


@pytest.mark.peers
def test_a_file_of_gguf(tmp_path: Path) -> None:
    import gguf

    random = np.random.default_rng(0)
    values = random.standard_normal((4, 512)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "sdxl")
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(500)])
    writer.add_array("shape", [1, 2, 3])
    writer.add_float32("scale", 0.5)
    writer.add_bool("flag", True)
    writer.add_tensor("plain", values)
    writer.add_tensor("half", values.astype(np.float16))
    expected = {"plain": values, "half": values.astype(np.float16).astype(np.float32)}
    for name in ("Q8_0", "Q5_1", "BF16"):
        kind = gguf.GGMLQuantizationType[name]
        raw = gguf.quantize(values, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
        expected[name] = gguf.dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_tensors(tmp_path / "a.gguf")
    assert set(file) == set(expected) and file.metadata["general.architecture"] == "sdxl"
    assert file.metadata["tokenizer.ggml.tokens"] == "(500 values)"
    assert (file.metadata["shape"], file.metadata["flag"]) == ("[1, 2, 3]", "True")
    for name, array in expected.items():
        assert file.shape(name) == (4, 512)
        np.testing.assert_array_equal(file.read(name), array)


@pytest.mark.peers
def test_gguf_reads_what_is_converted(tmp_path: Path) -> None:
    import gguf

    random = np.random.default_rng(0)
    table = {"a.weight": random.standard_normal((8, 512)).astype(np.float32),
             "b.weight": random.standard_normal((32, 16, 3, 3)).astype(ml_dtypes.bfloat16),
             "b.bias": np.ones(7, np.float16)}
    save_file(table, tmp_path / "a.safetensors", {"title": "x"})
    for precision in (None, "q4_k", "q5_0"):
        with open(tmp_path / "a.gguf", "wb") as stream:
            list(plan(tmp_path / "a.safetensors", ".gguf", precision).write(stream))
        ours, theirs = open_tensors(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
        assert {tensor.name for tensor in theirs.tensors} == set(table)
        for tensor in theirs.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(-1)
            np.testing.assert_array_equal(values, ours.read(tensor.name).reshape(-1))
        field = theirs.fields.get(ORIGINAL_SHAPE + "b.weight")
        assert (field is None) == (precision is None)
        if field is not None:  # as ComfyUI's reader asks for it
            assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]
            assert [int(field.parts[i][0]) for i in field.data] == [32, 16, 3, 3]
        assert bytes(theirs.fields["title"].parts[-1]) == b"x"
