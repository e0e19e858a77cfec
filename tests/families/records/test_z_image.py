"""Z-Image: what names say, files as they are published, adapters, levels of noise, wrong parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import KOHYA, applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.diffusion import residents
from smalti.diffusion.noise import FlowLevels, find_schedule
from smalti.diffusion.residents import Residents
from smalti.diffusion.submodels import Submodels
from smalti.errors import CheckpointError
from smalti.runtime.cpu import streaming

CONFIG = tiny.WORDLESS["z-image"]
NAME = "z"
WIDTH = CONFIG.denoiser.hidden_size
TURBO = [1, .954545, .9, .833333, .75, .642857, .5, .3, 0]
"""The noise levels of Z-Image-Turbo in 8 steps, as diffusers' scheduler gives them."""


@pytest.mark.parametrize(("name", "expected"), [
    ("z_image_turbo_bf16", (8, 1.0, 3.0)), ("zImageTurbo_v10", (8, 1.0, 3.0)),
    ("moody_ZIT_v3", (8, 1.0, 3.0)), ("z_image_bf16", (30, 4.0, 6.0))])
def test_turbo_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str,
                                   expected: tuple[float, ...]) -> None:
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    config = load(path).config
    assert (config.default_steps, config.default_guidance, config.flow_shift) == expected
    report = str(inspect(path))
    assert "a Z-Image checkpoint" in report and f"{expected[0]} steps" in report
    assert "2 blocks behind 1 of image and text each, width 64, 2 heads" in report


def test_the_levels_of_noise_are_those_of_its_authors() -> None:
    found = find_schedule("trailing").sigmas(FlowLevels.shifted(3.0), 8)
    np.testing.assert_allclose(found, TURBO, atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_norm_that_is_never_computed_is_no_layer(
        tmp_path: Path, weights: tiny.Weights, prefix: str) -> None:
    """The files of the authors have it, and no code reads it."""
    more = {f"{prefix}norm_final.weight": np.ones(WIDTH, np.float16)}
    assert load(tiny.write_whole(tmp_path / "model.safetensors", CONFIG, weights, **more))
    more = {f"{tiny.DENOISER}layers.0.extra.weight": np.ones((WIDTH, WIDTH), np.float16)}
    with pytest.raises(CheckpointError, match=r"has what Smalti does not compute.*\n.*0\.extra"):
        load(tiny.write_whole(tmp_path / "other.safetensors", CONFIG, weights, **more))


def encoder(path: Path, **other: int) -> Path:
    """Of all tokens of the tokenizer, and of another size."""
    config = tiny.FAMILIES["z-image"]
    config = replace(config, texts={"qwen3": replace(config.texts["qwen3"], **other)})
    return tiny.write(path / "qwen.safetensors", tiny.text_encoder(
        config, tiny.random_weights(config), "qwen3"))


def test_parts_of_other_models_are_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "z_image.safetensors", tiny.part(weights, tiny.DENOISER))
    vae = tiny.write(tmp_path / "ae.safetensors", tiny.part(weights, tiny.VAE))
    chroma, sd1 = (tiny.WORDLESS[family] for family in ("chroma", "sd1"))
    t5 = tiny.write(tmp_path / "t5.safetensors", tiny.text_encoder(
        chroma, tiny.random_weights(chroma), "t5xxl"))
    other = tiny.write(tmp_path / "sd-vae.safetensors", tiny.part(
        tiny.random_weights(sd1), tiny.VAE))
    with pytest.raises(CheckpointError, match="T5-XXL, which a Z-Image checkpoint does not read; "
                                              "it reads the text encoder Qwen3"):
        load(alone, [t5], vae)
    with pytest.raises(CheckpointError, match="it lacks the text encoder Qwen3; .*qwen_3_4b.safet"):
        load(alone, vae=vae)
    with pytest.raises(CheckpointError, match="16 .* 4 |4 .* 16 "):
        Pipeline.load(alone, text_encoders=[encoder(tmp_path)], vae=other)


def test_a_text_encoder_of_another_size_is_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "z_image.safetensors", {
        **tiny.part(weights, tiny.DENOISER, tiny.DENOISER), **tiny.part(weights, tiny.VAE, "vae.")})
    with pytest.raises(CheckpointError, match="32 channels of the transformer's context, .* 48 of"):
        Pipeline.load(alone, text_encoders=[encoder(tmp_path, hidden_size=48)])


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize("stored", [
    pair("diffusion_model.layers.0.attention.qkv", 3 * WIDTH, WIDTH),
    pair("diffusion_model.layers.1.attention.to_q", WIDTH, WIDTH),
    pair("transformer.layers.0.attention.to_out.0", WIDTH, WIDTH),
    pair("diffusion_model.layers.0.feed_forward.w2", WIDTH, 170),
    pair("layers.0.attention.to_v", WIDTH, WIDTH, "lora_A.default.weight", "lora_B.default.weight"),
    pair("diffusion_model.context_refiner.0.feed_forward.w1", 170, WIDTH),
    pair("lora_unet_layers_0_attention_qkv", 3 * WIDTH, WIDTH, *KOHYA),
    pair("lora_unet_layers_0_attention_to_k", WIDTH, WIDTH, *KOHYA),
    pair("lora_unet_noise_refiner_0_adaLN_modulation_0", 4 * WIDTH, WIDTH, *KOHYA),
    pair("layers.0.attention.to.q", WIDTH, WIDTH, "lora.down.weight", "lora.up.weight"),
    {f"lycoris_layers_0_attention_out.lokr_w{i}": np.ones((8, 8), np.float32) for i in (1, 2)},
], ids=lambda stored: next(iter(stored)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights) -> None:
    """Those of layers that Lumina-Image 2 has in the same proportions may be for either."""
    either = any(part in name for name in stored for part in (
        ".to_q.", ".to.q.", ".to_out.", "attention_out"))
    assert applied(tmp_path, model, stored) == (
        2, [], "Z-Image or Lumina-Image 2" if either else "Z-Image")


def test_a_fused_layer_beside_its_parts_counts_once(tmp_path: Path, model: Checkpoint) -> None:
    """As a trainer of Z-Image writes both; of two equal names the first in the file counts."""
    dotted = ("lora.down.weight", "lora.up.weight")
    twice = {**pair("layers.0.attention.qkv", 3 * WIDTH, WIDTH, *dotted),
             **pair("layers.0.attention.out", WIDTH, WIDTH, *dotted)}
    parts = {name: value for part in ("to.q", "to.k", "to.v", "to_out.0")
             for name, value in pair(f"layers.0.attention.{part}", WIDTH, WIDTH, *dotted).items()}
    count, left, _ = applied(tmp_path, model, {**parts, **twice})
    assert count == len(parts) and {name.split(".lora")[0] for name in left} == {
        "layers.0.attention.qkv", "layers.0.attention.to_out.0"}


# ---------------------------------------------------------------------- memory


def test_weights_come_and_go_where_memory_is_short(
        model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LARGE_BYTES", 1)
    monkeypatch.setattr(residents, "resident_bytes", lambda: None)
    monkeypatch.setattr(residents, "BASE_BYTES", 0)
    monkeypatch.setattr(residents, "STAGED", 0)
    shape, random = (2, 8, 8, 40), np.random.default_rng(0)
    inputs = {"latent": random.standard_normal((2, 16, 8, 8), np.float32),
              "timesteps": np.full(2, 500, np.float32),
              "context": random.standard_normal((2, 40, 32), np.float32),
              "mask": np.ones((2, 40), np.float32)}
    plenty = Submodels(model, threads=1)
    (expected,) = plenty.run("transformer", shape, **inputs).values()
    program = plenty.bound("transformer", shape)
    short = Submodels(model, threads=1, residents=Residents(
        program.arena_bytes + int(0.7 * program.weights_bytes)))
    (found,) = short.run("transformer", shape, **inputs).values()
    assert found.tobytes() == expected.tobytes()
    assert any("transformer" in line for line in short.said)
