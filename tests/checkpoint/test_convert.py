"""Weights in another format or precision: the same names, and numbers as near as asked for."""

from __future__ import annotations

import io
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tiny_families
from safetensors.numpy import save_file
from tiny_model import METADATA
from tiny_model import tiny_weights as model_weights
from torch_files import View, torch_row, torch_zip

from smalti import Pipeline, checkpoint
from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.convert import PRECISIONS, is_precise, plan
from smalti.errors import CheckpointError, InputError, UnknownFamilyError

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "block.linear.weight": RANDOM.standard_normal((64, 512), np.float32),
    "block.conv.weight": RANDOM.standard_normal((16, 32, 3, 3), np.float32),
    "block.parts.weight": RANDOM.standard_normal((16, 24, 3, 3), np.float32),
    "block.odd.weight": RANDOM.standard_normal((33, 35), np.float32),
    "block.linear.bias": RANDOM.standard_normal(64, np.float32),
    "norm.weight": RANDOM.standard_normal(64, np.float32),
    "token_embedding.weight": RANDOM.standard_normal((8, 256), np.float32),
    "first_stage_model.decoder.weight": RANDOM.standard_normal((8, 256), np.float32),
    "small.weight": RANDOM.standard_normal((4, 256), np.float32),
    "scalar": np.array(3.5, np.float32),
    "numbers": np.arange(5),
}
QUANTISED = {"block.linear.weight", "block.conv.weight", "block.parts.weight"}
IN_PARTS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Where 256 does not divide the numbers of a weight."""


def converted(source: Path, output: Path, precision: str | None = None, **parts: object) -> Path:
    planned = plan(source, output.suffix, precision, **parts)
    with open(output, "wb") as stream:
        steps = list(planned.write(stream))
    assert steps == sorted(steps) and (steps or [0])[-1] == planned.bytes
    return output


@pytest.fixture()
def source(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "source.safetensors", {"title": "a", "modelspec.resolution": "x"})
    return tmp_path / "source.safetensors"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_written_in_which_precision(source: Path, tmp_path: Path, precision: str) -> None:
    dtype = PRECISIONS[precision]
    ending = ".gguf" if dtype in FORMATS else ".safetensors"
    file = open_tensors(converted(source, tmp_path / f"out{ending}", precision))
    assert file.names() == open_tensors(source).names() and file.metadata["title"] == "a"
    found = {name: file.dtype(name) for name in file if name != "numbers"}
    assert file.dtype("numbers") == "I64"
    if precision in ("f32", "f16", "bf16"):
        assert set(found.values()) == {dtype}
    else:
        odd = {"block.odd.weight"} if precision == "fp8" else set()
        assert found.pop("block.parts.weight") == IN_PARTS.get(dtype, dtype)
        assert {name for name, tag in found.items() if tag == dtype} \
            == QUANTISED - {"block.parts.weight"} | odd
    for name, array in WEIGHTS.items():
        assert file.shape(name) == (array.shape or (1,) * (ending == ".gguf"))
        error = np.linalg.norm(file.read(name) - array) / np.linalg.norm(array)
        assert error <= (0.09 if name in QUANTISED | {"block.odd.weight"} else 0.002) \
            or precision == "bf16" and error < 0.004


UNET, CLIP = "model.diffusion_model.", "conditioner.embedders.0.transformer.text_model."
STAY = [UNET + "input_blocks.0.0.weight", UNET + "time_embed.0.weight", UNET + "out.2.weight",
        UNET + "label_emb.0.0.weight", CLIP + "embeddings.token_embedding.weight", "pos_embed",
        "first_stage_model.decoder.conv_in.weight", "vae.decoder.mid.attn_1.q.weight",
        "decoder.up.3.block.0.conv1.weight", "img_in.weight", "guidance_in.in_layer.weight",
        "final_layer.linear.weight", "t_embedder.mlp.0.weight", "context_embedder.weight",
        "time_text_embed.timestep_embedder.linear_1.weight", UNET + "proj_out.weight",
        "decoder.upsamples.3.residual.2.weight", "decoder.head.2.weight",
        "layers.0.adaLN_modulation.0.weight", "double_stream_modulation_img.lin.weight",
        "single_stream_modulation.linear.weight"]
BECOME_SMALL = [UNET + "input_blocks.1.1.proj_in.weight", UNET + "input_blocks.3.0.op.weight",
                CLIP + "encoder.layers.0.mlp.fc1.weight", "double_blocks.0.img_attn.qkv.weight",
                "joint_blocks.0.context_block.attn.proj.weight", UNET + "out_layers.2.weight",
                "encoder.block.0.layer.0.SelfAttention.q.weight", "single_blocks.1.linear1.weight",
                "transformer_blocks.0.attn.to_out.0.weight", "middle_block.1.proj_out.weight",
                "joint_blocks.0.x_block.adaLN_modulation.1.weight",
        "single_transformer_blocks.0.proj_out.weight"]


def test_which_tensors_stay_precise() -> None:
    assert [name for name in (*STAY, *BECOME_SMALL) if is_precise(name)] == STAY


@pytest.mark.parametrize("precision", [None, "f32", "f16", "bf16"])
def test_gguf_without_blocks(source: Path, tmp_path: Path, precision: str | None) -> None:
    file = open_tensors(converted(source, tmp_path / "out.gguf", precision))
    assert file.dtype("block.linear.bias") == file.dtype("norm.weight") == "F32"
    assert file.dtype("block.conv.weight") == (PRECISIONS[precision] if precision else "F32")
    for name, array in WEIGHTS.items():
        assert file.shape(name) == (array.shape or (1,))
        np.testing.assert_allclose(file.read(name), array, rtol=8e-3)


def test_rows_that_are_no_whole_blocks(source: Path, tmp_path: Path) -> None:
    file = open_tensors(converted(source, tmp_path / "out.gguf", "q4_k"))
    assert file.entry("block.conv.weight").stored == (16 * 32 * 9 // 256, 256)
    assert file.entry("block.parts.weight").stored == (16 * 24 * 9 // 32, 32)
    assert file.entry("block.linear.weight").stored == (64, 512)
    assert file.dtype("block.odd.weight") == "F16"  # 1155 numbers are no blocks at all


def test_the_precision_of_the_source_is_kept(tmp_path: Path) -> None:
    table = {"a.weight": WEIGHTS["block.linear.weight"].astype(np.float16), "b.weight": WEIGHTS[
        "block.conv.weight"].astype(ml_dtypes.bfloat16), "c": WEIGHTS["norm.weight"]}
    save_file(table, tmp_path / "a.safetensors")
    there = converted(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    back = converted(there, tmp_path / "c.safetensors")
    assert {name: array.tobytes() for name, array in safetensors.numpy.load_file(back).items()} \
        == {name: array.tobytes() for name, array in table.items()}


def test_blocks_stay_the_same_bytes_or_become_halves(source: Path, tmp_path: Path) -> None:
    first = open_tensors(converted(source, tmp_path / "a.gguf", "q6_k"))
    again = open_tensors(converted(tmp_path / "a.gguf", tmp_path / "b.gguf"))
    for name in first:
        assert first.dtype(name) == again.dtype(name)
        np.testing.assert_array_equal(first.raw(name), again.raw(name))
    wide = open_tensors(converted(tmp_path / "a.gguf", tmp_path / "c.safetensors"))
    assert {wide.dtype(name) for name in QUANTISED} == {"F16"}
    np.testing.assert_allclose(wide.read("block.linear.weight"), first.read("block.linear.weight"),
                               rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("writer", [torch_zip, torch_row])
def test_from_a_pickle_with_views(tmp_path: Path, writer: object) -> None:
    flat = np.arange(12, dtype=np.float32)
    (tmp_path / "a.ckpt").write_bytes(writer({"state_dict": {
        "t": View(flat, 0, (4, 3), (1, 4)), "h": flat.astype(ml_dtypes.bfloat16)}}))
    found = safetensors.numpy.load_file(converted(tmp_path / "a.ckpt",
                                                  tmp_path / "b.safetensors"))
    np.testing.assert_array_equal(found["t"], flat.reshape(3, 4).T)
    assert found["h"].dtype == ml_dtypes.bfloat16 and (found["h"] == flat).all()


def test_scales_are_applied(tmp_path: Path) -> None:
    values = RANDOM.standard_normal((4, 8)).astype(ml_dtypes.float8_e4m3fn)
    save_file({"a.weight": values, "a.scale_weight": np.float32([0.5]),
               "scaled_fp8": values[:0, 0]}, tmp_path / "a.safetensors")
    found = safetensors.numpy.load_file(converted(tmp_path / "a.safetensors",
                                                  tmp_path / "b.safetensors"))
    assert set(found) == {"a.weight"} and found["a.weight"].dtype == np.float16
    np.testing.assert_array_equal(found["a.weight"], values.astype(np.float32) * 0.5)


@pytest.mark.parametrize(("precision", "expected"), [("fp8", "F16"), ("f16", "F16")])
def test_what_is_too_large_stays_wider(tmp_path: Path, precision: str, expected: str) -> None:
    large, huge = np.full((64, 64), 1000, np.float32), np.full((64, 64), 1e6, np.float32)
    save_file({"large": large, "huge": huge}, tmp_path / "a.safetensors")
    file = open_tensors(converted(tmp_path / "a.safetensors", tmp_path / "b.safetensors",
                                  precision))
    assert file.dtype("large") == expected and file.dtype("huge") == "F32"
    np.testing.assert_array_equal(file.read("huge"), huge)


def test_nothing_becomes_blocks_that_is_no_number(tmp_path: Path) -> None:
    save_file({"a.weight": np.full((8, 256), np.nan, np.float32)}, tmp_path / "a.safetensors")
    planned = plan(tmp_path / "a.safetensors", ".gguf", "q8_0")
    with pytest.raises(InputError, match="a.weight holds NaN"):
        list(planned.write(io.BytesIO()))


@pytest.mark.parametrize(("container", "precision", "said"), [
    (".ckpt", None, "expected .safetensors or .gguf"), (".gguf", "fp8", "cannot hold fp8"),
    (".safetensors", "q8_0", "cannot hold q8_0"), (".gguf", "q3_k", "known: f32, f16, bf16, fp8")])
def test_what_cannot_be_written(source: Path, container: str, precision: str | None,
                                said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(source, container, precision)
    with pytest.raises(CheckpointError, match="cannot be read"):
        plan(source.parent / "nothing", ".gguf")


def test_empty_tensors_are_a_zero_in_gguf(tmp_path: Path) -> None:
    save_file({"v_pred": np.zeros(0, np.float16), "b": np.ones(3, np.float32)},
              tmp_path / "a.safetensors")
    file = open_tensors(converted(tmp_path / "a.safetensors", tmp_path / "b.gguf"))
    assert set(file) == {"v_pred", "b"} and file.read("v_pred").tolist() == [0]


# ---------------------------------------------------------------------- a whole model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_file(model_weights(), path, METADATA)
    return path


def picture(path: Path) -> np.ndarray:
    (image,) = Pipeline.load(path, threads=1)("a red apple", steps=2).images
    return np.asarray(image, np.float32)


@pytest.mark.parametrize(("precision", "ending", "bound"), [
    (None, "gguf", 0), pytest.param("f32", "safetensors", 0, marks=pytest.mark.sweep),
    pytest.param("bf16", "safetensors", 2, marks=pytest.mark.sweep), ("fp8", "safetensors", 8),
    pytest.param("q8_0", "gguf", 2, marks=pytest.mark.sweep), ("q4_k", "gguf", 16)])
def test_a_model_gives_nearly_the_same_picture(model: Path, tmp_path: Path, precision: str | None,
                                               ending: str, bound: float) -> None:
    path = converted(model, tmp_path / f"out.{ending}", precision)
    assert checkpoint.inspect(path).kind.id == "sd1"
    error = np.abs(picture(path) - picture(model)).mean()
    assert error <= bound and (error > 0) == (bound > 0)


def test_another_autoencoder_is_put_in(model: Path, tmp_path: Path) -> None:
    other = {name.removeprefix("first_stage_model."): -array
             for name, array in model_weights().items() if name.startswith("first_stage_model.")}
    save_file(other, tmp_path / "vae.safetensors")
    path = converted(model, tmp_path / "out.safetensors", vae=tmp_path / "vae.safetensors")
    found = safetensors.numpy.load_file(path)
    name = "first_stage_model.decoder.conv_in.weight"
    np.testing.assert_array_equal(found[name], -model_weights()[name])
    assert set(found) == set(model_weights())
    assert checkpoint.load(path).config == checkpoint.load(model).config


@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl", "sd3", *tiny_families.NEWER])
def test_separate_parts_become_one_file(tmp_path: Path, family: str) -> None:
    config = tiny_families.WORDLESS[family]
    weights = tiny_families.random_weights(config)
    bare = "" if family in ("sd3", *tiny_families.NEWER) else tiny_families.DENOISER
    denoiser = tiny_families.write(tmp_path / "model.safetensors", tiny_families.part(
        weights, tiny_families.DENOISER, bare))
    texts = [tiny_families.write(tmp_path / f"{name}.safetensors", tiny_families.text_encoder(
        config, weights, name)) for name in config.texts]
    vae = tiny_families.write(tmp_path / "vae.safetensors",
                              tiny_families.autoencoder(config, weights))
    expected = checkpoint.load(denoiser, texts, vae)
    for ending in ("safetensors", "gguf"):
        path = converted(denoiser, tmp_path / f"whole.{ending}", text_encoders=texts, vae=vae)
        found = checkpoint.load(path)
        assert found.config == expected.config
        for name in found.names():
            np.testing.assert_array_equal(found.read(name), weights[name])


def test_text_encoders_go_beside_models_that_are_known(source: Path, tmp_path: Path) -> None:
    config = tiny_families.WORDLESS["sd1"]
    text = tiny_families.write(tmp_path / "clip_l.safetensors", tiny_families.text_encoder(
        config, tiny_families.random_weights(config), "clip_l"))
    with pytest.raises(UnknownFamilyError, match="tensors of no known model family"):
        plan(source, ".safetensors", None, text_encoders=[text])


def test_a_folder_becomes_one_file(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny_folder / "unet" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "sample_size": 8}))
    path = converted(tiny_folder, tmp_path / "out.safetensors")
    before, after = checkpoint.load(tiny_folder), checkpoint.load(path)
    assert before.config == after.config
    for name in before.names():
        np.testing.assert_array_equal(before.read(name), after.read(name))
