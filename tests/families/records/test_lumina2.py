"""Lumina-Image 2: what prompts are read as, files as they are published, adapters, wrong parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import KOHYA, applied, pair
from tiny_gemma import SPIECE

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion import conditioning
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.plain_texts import PlainTexts
from smalti.diffusion.request import request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families.expected import expected_tensors
from smalti.families.records.lumina2 import MARK, SYSTEM

CONFIG = tiny.WORDLESS["lumina2"]
NAME = "lumina"
WIDTH, SHARED = CONFIG.denoiser.hidden_size, 24
OPTIONS = {"width": 32, "height": 32, "steps": 2, "seed": 7}


def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights) -> None:
    """In ComfyUI's file of all parts, and as three files, of which the denoiser may be a GGUF."""
    config = model.config
    assert (config.denoiser, config.texts) == (CONFIG.denoiser, CONFIG.texts)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (30, 4.0, 6.0)
    report = str(inspect(model.report.path))
    assert "a Lumina-Image 2 checkpoint" in report and "3 heads" in report
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in tiny.part(weights, tiny.DENOISER).items()]
    with (tmp_path / "lumina.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "lumina2"}, tensors)
    text = tiny.write(tmp_path / "gemma.safetensors", {
        **tiny.part(tiny.text_encoder(CONFIG, weights, "gemma2"), "", "model."),
        "spiece_model": np.frombuffer(SPIECE, np.uint8)})
    vae = tiny.write(tmp_path / "ae.safetensors", tiny.part(weights, tiny.VAE))
    assert load(tmp_path / "lumina.gguf", [text], vae).config == config


def test_parts_that_are_missing_or_wrong_are_named(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "netayume.safetensors", tiny.part(weights, tiny.DENOISER))
    vae = tiny.write(tmp_path / "ae.safetensors", tiny.part(weights, tiny.VAE))
    with pytest.raises(CheckpointError, match="it lacks the text encoder Gemma 2; .*gemma_2_2b_fp16"
                                              ".*where the model was published"):
        load(alone, vae=vae)
    other = tiny.WORDLESS["z-image"]
    qwen = tiny.write(tmp_path / "qwen.safetensors", tiny.text_encoder(
        other, tiny.random_weights(other), "qwen3"))
    with pytest.raises(CheckpointError, match="Qwen3, which a Lumina-Image 2 checkpoint does not "
                                              "read; it reads the text encoder Gemma 2"):
        load(alone, [qwen], vae)


def test_what_is_built_like_it_is_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    path = tiny.write_whole(tmp_path / "newbie.safetensors", CONFIG, weights, **{
        f"{tiny.DENOISER}clip_text_pooled_proj.0.weight": np.ones(8, np.float16)})
    with pytest.raises(UnknownFamilyError, match="a NewBie checkpoint, .* Gemma 3 and CLIP"):
        load(path)


# ---------------------------------------------------------------------- prompts


@pytest.mark.parametrize("prompt, negative, expected", [
    ("a cat", "blurry", [f"{SYSTEM} <Prompt Start> a cat", "blurry"]),
    ("a (red:1.2) cat", "", [f"{SYSTEM} <Prompt Start> a red cat", ""]),
    (f"You draw. {MARK} a cat", f"You draw badly. {MARK} blurry",
     [f"You draw. {MARK} a cat", f"You draw badly. {MARK} blurry"])])
def test_prompts_stand_in_the_template(model: Checkpoint, monkeypatch: pytest.MonkeyPatch,
                                       prompt: str, negative: str, expected: list[str]) -> None:
    """Negative ones do not, as in diffusers; nor does what brings a beginning of its own."""
    assert SYSTEM == ("You are an assistant designed to generate superior images with the superior "
                      "degree of image-text alignment based on textual prompts or user prompts.")
    read: list[str] = []

    def of(tokenizer: object, texts: list[str], most: int, ending: str) -> PlainTexts:
        read.extend(texts)
        raise InterruptedError

    monkeypatch.setattr(conditioning.PlainTexts, "of", of)
    monkeypatch.setattr(conditioning.Encoder, "_tokenizer", lambda self: None)
    asked = request(model.config, PictureOptions(prompt, negative_prompt=negative),
                    memory_bytes=2**33)
    with pytest.raises(InterruptedError):
        conditioning.conditioned(Submodels(model, "f32", threads=1), asked, 1, Stopwatch())
    assert read == expected


@pytest.mark.sweep
def test_it_makes_pictures(tmp_path: Path) -> None:
    """With the tokenizer in its file; without, it is said where it is."""
    made = tiny.random_weights(tiny.LUMINA2)
    stored = tiny.single_file(tiny.LUMINA2, made)
    with pytest.raises(CheckpointError, match="Gemma 2 comes without its tokenizer, .* spiece_mod"):
        Pipeline.load(tiny.write(tmp_path / "without.safetensors", stored), threads=1)(
            "an apple", **OPTIONS)
    stored["text_encoders.spiece_model"] = np.frombuffer(SPIECE, np.uint8)
    pipe = Pipeline.load(tiny.write(tmp_path / "lumina.safetensors", stored), threads=1)
    first, other, again = (np.asarray(pipe(prompt, **OPTIONS).images[0], np.float64) for prompt in (
        "the red apple", "the apple", f"{SYSTEM} {MARK} the red apple"))
    np.testing.assert_array_equal(again, first)
    assert first.std() > 5 and np.abs(first - other).mean() > 0.1
    pair = pipe("the red apple", batch_size=2, **{**OPTIONS, "seed": 6}).images
    np.testing.assert_array_equal(np.asarray(pair[1]), first.astype(np.uint8))


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize("stored, words", [
    (pair("diffusion_model.layers.0.attention.qkv", WIDTH + 2 * SHARED, WIDTH), "Lumina-Image 2"),
    (pair("transformer.layers.1.attn.to_k", SHARED, WIDTH), "Lumina-Image 2"),
    (pair("transformer.layers.1.attn.to_q", WIDTH, WIDTH), "Lumina-Image 2"),
    (pair("transformer.context_refiner.0.attn.to_out.0", WIDTH, WIDTH), "Lumina-Image 2"),
    (pair("transformer.layers.0.feed_forward.linear_3", 288, WIDTH), "Lumina-Image 2"),
    (pair("transformer.noise_refiner.0.norm1.linear", 4 * WIDTH, WIDTH), "Lumina-Image 2"),
    (pair("diffusion_model.layers.0.feed_forward.w2", WIDTH, 288), "Lumina-Image 2"),
    (pair("layers.0.attention.to_v", SHARED, WIDTH, "lora_A.default.weight",
          "lora_B.default.weight"), "Lumina-Image 2"),
    (pair("lora_unet_layers_0_attention_qkv", WIDTH + 2 * SHARED, WIDTH, *KOHYA), "Lumina-Image 2"),
    (pair("lora_unet_layers_0_attention_out", WIDTH, WIDTH, *KOHYA), "Z-Image or Lumina-Image 2"),
    (pair("lora_unet_noise_refiner_0_adaLN_modulation_1", 4 * WIDTH, WIDTH, *KOHYA),
     "Lumina-Image 2"),
    ({f"lycoris_layers_0_attention_out.lokr_w{i}": np.ones((12, 12) if i == 1 else (6, 6),
                                                           np.float32) for i in (1, 2)},
     "Z-Image or Lumina-Image 2"),
], ids=lambda value: value if isinstance(value, str) else next(iter(value)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights, words: str) -> None:
    assert applied(tmp_path, model, stored) == (2, [], words)


def test_adapters_of_z_image_are_told_by_their_shapes(tmp_path: Path, model: Checkpoint) -> None:
    path = tiny.write(tmp_path / "z.safetensors", pair(
        "diffusion_model.layers.0.attention.qkv", 3 * WIDTH, WIDTH))
    with pytest.raises(CheckpointError, match="an adapter for Z-Image, and .* is Lumina-Image 2"):
        AdapterFile.open(path).fit(expected_tensors(model.config), "lumina")
