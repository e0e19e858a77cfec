"""Krea 2: what names and folders say, its text encoder and what looks like it, its levels of noise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny

from smalti.checkpoint import inspect, load
from smalti.checkpoint.convert import plan
from smalti.checkpoint.folder import CLASS, pipeline_name
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion.noise import FlowLevels, find_schedule
from smalti.errors import CheckpointError
from smalti.families import families
from smalti.families.keys.language import LANGUAGE_GGUF

CONFIG = tiny.WORDLESS["krea2"]
TURBO = [1, .956724, .904531, .840349, .759511, .654567, .512844, .310901, 0]
"""The noise levels of Krea-2-Turbo in 8 steps, as diffusers' scheduler gives them."""


@pytest.mark.parametrize(("name", "steps", "guidance"), [
    ("krea2_turbo_bf16", 8, 1.0), ("Krea-2-Raw", 28, 5.5)])
def test_turbo_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str, steps: int,
                                   guidance: float) -> None:
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    config = load(path).config
    assert (config.default_steps, config.default_guidance) == (steps, guidance)
    assert (config.flow_shift is None) == (steps == 28)
    report = str(inspect(path))
    assert "a Krea 2 checkpoint" in report and "2 blocks, and 2 for the text" in report
    if config.flow_shift is not None:
        found = find_schedule("trailing").sigmas(FlowLevels.shifted(config.flow_shift), 8)
        np.testing.assert_allclose(found, TURBO, atol=1e-6)


def test_the_shift_of_raw_follows_from_the_size() -> None:
    shift = families()["krea2"].shift_by_size
    assert np.log(shift(1280, 1280, 28)) == pytest.approx(1.15)
    assert np.log(shift(256, 256, 28)) == pytest.approx(0.5)


def test_a_folder_tells_whether_it_is_distilled() -> None:
    assert pipeline_name({CLASS: "Krea2Pipeline", "is_distilled": True}) == "Krea2Pipeline turbo"
    assert pipeline_name({CLASS: "Flux2KleinPipeline", "is_distilled": True}) == \
        "Flux2KleinPipeline"
    assert pipeline_name({CLASS: "Krea2Pipeline"}) == "Krea2Pipeline"


# ---------------------------------------------------------------------- the text encoder


def parts(path: Path, weights: tiny.Weights) -> tuple[Path, Path]:
    """The denoiser and the autoencoder in files of their own."""
    return (tiny.write(path / "krea2.safetensors", tiny.part(weights, tiny.DENOISER)),
            tiny.write(path / "vae.safetensors", tiny.autoencoder(CONFIG, weights)))


def test_qwen3_is_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    """It would be read without complaint, and other turns give other states."""
    denoiser, vae = parts(tmp_path, weights)
    stored = tiny.text_encoder(CONFIG, weights, "qwen3vl")
    seeing = tiny.write(tmp_path / "qwen3vl.safetensors", stored)
    assert load(denoiser, [seeing], vae).config.texts == CONFIG.texts
    blind = {name: value for name, value in stored.items() if not name.startswith("visual.")}
    with pytest.raises(CheckpointError, match="holds the text encoder Qwen3, which a Krea 2 .* it "
                                              "reads the text encoder Qwen3-VL"):
        load(denoiser, [tiny.write(tmp_path / "qwen3.safetensors", blind)], vae)
    with pytest.raises(CheckpointError, match="it lacks the text encoder Qwen3-VL; .*"
                                              "--text-encoder qwen3vl_4b"):
        load(denoiser, vae=vae)


def gguf(path: Path, weights: tiny.Weights, architecture: str) -> Path:
    """The text encoder in a GGUF file, which states what it is."""
    stored = tiny.text_encoder(CONFIG, weights, "qwen3vl")
    tensors = []
    for ours, rule in LANGUAGE_GGUF.items():
        for block in range(36 if "*" in ours else 1):
            value = stored.get(ours.replace("*", str(block)))
            if value is not None:
                tensors.append(GgufTensor(rule[0].name.replace("*", str(block)), value.shape, "f16",
                                          lambda value=value: value))
    with path.open("wb") as file:
        write_gguf(file, {"general.architecture": architecture}, tensors)
    return path


@pytest.mark.parametrize("architecture", ["qwen3vl", "qwen3"])
def test_gguf_files_are_told_by_their_architecture(tmp_path: Path, weights: tiny.Weights,
                                                   architecture: str) -> None:
    denoiser, vae = parts(tmp_path, weights)
    path = gguf(tmp_path / "encoder.gguf", weights, architecture)
    if architecture == "qwen3":
        with pytest.raises(CheckpointError, match="holds the text encoder Qwen3, which"):
            load(denoiser, [path], vae)
        return
    found = load(denoiser, [path], vae)
    assert found.config.texts == CONFIG.texts
    name = f"{tiny.inner_prefix(CONFIG, 'qwen3vl')}layers.34.mlp.up_proj.weight"
    np.testing.assert_array_equal(found.read(name), weights[name])


def test_a_gguf_file_of_qwen3_vl_is_no_qwen3(tmp_path: Path, weights: tiny.Weights) -> None:
    """Models that read Qwen3 would make other pictures of it without a word."""
    path = gguf(tmp_path / "encoder.gguf", weights, "qwen3vl")
    assert "the text encoder Qwen3-VL" in str(inspect(path))
    for ending in ("gguf", "safetensors"):  # what is converted says it still
        out = tmp_path / f"converted.{ending}"
        with out.open("wb") as stream:
            list(plan(path, f".{ending}").write(stream))
        assert "the text encoder Qwen3-VL" in str(inspect(out))
    denoiser = tiny.part(tiny.random_weights(tiny.WORDLESS["z-image"]), tiny.DENOISER)
    with pytest.raises(CheckpointError, match="holds the text encoder Qwen3-VL, which a Z-Image .*"
                                              "; it reads the text encoder Qwen3$"):
        load(tiny.write(tmp_path / "z.safetensors", denoiser), [path])


def test_a_text_encoder_of_another_size_does_not_fit() -> None:
    other = replace(CONFIG, texts={"qwen3vl": replace(CONFIG.texts["qwen3vl"], hidden_size=32)})
    ((_, read, _, given),) = families()["krea2"].agreements(other)
    assert (read, given) == (288, 384)
