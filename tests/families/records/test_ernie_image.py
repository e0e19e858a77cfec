"""ERNIE-Image: what prompts are read as, files as they are published, adapters, wrong parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import KOHYA, applied, pair
from tiny_tekken import TEKKEN

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.checkpoint.uncomputed import settings
from smalti.errors import CheckpointError
from smalti.families import families

CONFIG = tiny.WORDLESS["ernie-image"]
NAME = "ernie-image"
WIDTH, MLP = CONFIG.denoiser.hidden_size, CONFIG.denoiser.mlp_size
KERNEL = "x_embedder.proj.weight"
OPTIONS = {"width": 32, "height": 32, "steps": 2, "seed": 7}


def denoiser(weights: tiny.Weights, prefix: str = "") -> dict[str, np.ndarray]:
    """As its authors have it: what reads pixels is a convolution."""
    found = tiny.part(weights, tiny.DENOISER, prefix)
    found[prefix + KERNEL] = found[prefix + KERNEL][:, :, None, None]
    return found


def encoder(weights: tiny.Weights) -> dict[str, np.ndarray]:
    """As ComfyUI's file has it, with its tokenizer and what reads pictures."""
    return {**tiny.part(tiny.text_encoder(CONFIG, weights, "ministral"), "", "model."),
            "vision_tower.patch_conv.weight": np.ones((4, 4), np.float16),
            "tekken_model": np.frombuffer(json.dumps(TEKKEN).encode(), np.uint8)}


@pytest.fixture
def vae(tmp_path: Path, weights: tiny.Weights) -> Path:
    return tiny.write(tmp_path / "flux2-vae.safetensors", tiny.part(weights, tiny.VAE))


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights, vae: Path,
                          prefix: str) -> None:
    """In a file of all parts, and in ComfyUI's three."""
    config = model.config
    assert (config.denoiser, config.texts, config.vae) == (
        CONFIG.denoiser, CONFIG.texts, CONFIG.vae)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (50, 4.0, 4.0)
    alone = tiny.write(tmp_path / "ernie-image.safetensors", denoiser(weights, prefix))
    text = tiny.write(tmp_path / "ministral-3-3b.safetensors", encoder(weights))
    found = load(alone, [text], vae)
    assert found.config == config
    np.testing.assert_array_equal(found.read(tiny.DENOISER + KERNEL),
                                  weights[tiny.DENOISER + KERNEL])
    report = str(inspect(alone))
    assert "an ERNIE-Image checkpoint" in report
    assert "the text encoder Ministral 3" in str(inspect(text))
    assert "2 blocks, width 64, 2 heads, 128 latent channels" in str(inspect(alone, [text], vae))


def test_a_gguf_file_of_the_denoiser(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                     vae: Path) -> None:
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in denoiser(weights).items()]
    with (tmp_path / "ernie-image.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "ernie_image"}, tensors)
    text = tiny.write(tmp_path / "text.safetensors", encoder(weights))
    assert load(tmp_path / "ernie-image.gguf", [text], vae).config == model.config


@pytest.mark.parametrize("name", ["ernie-image-turbo", "ERNIE-Image-Turbo-Q4_K_M"])
def test_turbo_is_told_by_its_name(tmp_path: Path, weights: tiny.Weights, name: str) -> None:
    config = load(tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)).config
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (8, 1.0, 4.0)


# ---------------------------------------------------------------------- what is refused


def test_parts_that_are_missing_or_wrong_are_named(tmp_path: Path, weights: tiny.Weights,
                                                   vae: Path) -> None:
    alone = tiny.write(tmp_path / "ernie.safetensors", denoiser(weights))
    with pytest.raises(CheckpointError, match="lacks the text encoder Ministral 3 and the autoenc.*"
                                              "ministral-3-3b.safetensors --vae flux2-vae"):
        load(alone)
    dev = tiny.WORDLESS["flux2-dev"]
    small = tiny.write(tmp_path / "mistral.safetensors", tiny.text_encoder(
        dev, tiny.random_weights(dev), "mistral"))
    with pytest.raises(CheckpointError, match="Mistral Small, which an ERNIE-Image checkpoint does "
                                              "not read; it reads the text encoder Ministral 3"):
        load(alone, [small], vae)


def test_a_text_encoder_of_llama_cpp_is_refused(tmp_path: Path, weights: tiny.Weights,
                                                vae: Path) -> None:
    llama = {"model.": "", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "mlp.gate_proj": "ffn_gate", "layers.": "blk."}
    stored = encoder(weights)
    for ours, theirs in llama.items():
        stored = {name.replace(ours, theirs): value for name, value in stored.items()}
    alone = tiny.write(tmp_path / "ernie.safetensors", denoiser(weights))
    with pytest.raises(CheckpointError, match="Ministral 3 is of a GGUF file, where queries and ke"
                                              ".*take ministral-3-3b.safetensors"):
        load(alone, [tiny.write(tmp_path / "llama.safetensors", stored)], vae)


def test_turns_that_are_not_computed_are_refused() -> None:
    """Those of Ministral 3 are; in other models they make scores larger."""
    turns = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384}
    even = {**turns, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert not settings({"text_encoder": {"text_config": {"rope_parameters": even}}})
    for more in ({"original_max_position_embeddings": None}, {"truncate": False}):
        assert settings({"text_encoder": {"rope_parameters": {**even, **more}}})
    (line,) = settings({"text_encoder": {"text_config": {"rope_parameters": turns}}})
    assert line.startswith('text_encoder/config.json: rope_parameters is {"rope_type": "yarn"')


# ---------------------------------------------------------------------- prompts


def test_a_prompt_is_read_as_it_is() -> None:
    """Behind the token that begins a text."""
    (text,) = families()["ernie-image"].texts
    assert text.template == "<s>{}" and text.layer == 2 and not text.dropped


@pytest.mark.sweep
def test_it_makes_pictures(tmp_path: Path) -> None:
    """With the tokenizer in its file; without, it is said where it is."""
    made = tiny.random_weights(tiny.ERNIE_IMAGE)
    stored = tiny.single_file(tiny.ERNIE_IMAGE, made)
    with pytest.raises(CheckpointError, match="comes without its tokenizer, .* tekken_model"):
        Pipeline.load(tiny.write(tmp_path / "without.safetensors", stored), threads=1)(
            "an apple", **OPTIONS)
    stored["text_encoders.ministral3_3b.transformer.tekken_model"] = np.frombuffer(
        json.dumps(TEKKEN).encode(), np.uint8)
    pipe = Pipeline.load(tiny.write(tmp_path / "ernie.safetensors", stored), threads=1)
    first, other = (np.asarray(pipe(prompt, **OPTIONS).images[0], np.float64) for prompt in (
        "the red apple", "the apple"))
    assert first.std() > 5 and np.abs(first - other).mean() > 0.1
    pair = pipe("the red apple", batch_size=2, **{**OPTIONS, "seed": 6}).images
    np.testing.assert_array_equal(np.asarray(pair[1]), first.astype(np.uint8))


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize("stored", [
    pair("diffusion_model.layers.0.self_attention.to_q", WIDTH, WIDTH),
    pair("transformer.layers.1.self_attention.to_out.0", WIDTH, WIDTH),
    pair("base_model.model.layers.1.mlp.linear_fc2", WIDTH, MLP),
    pair("layers.0.self_attention.to_v", WIDTH, WIDTH, "lora_A.default.weight",
         "lora_B.default.weight"),
    pair("lora_unet_layers_0_self_attention_to_k", WIDTH, WIDTH, *KOHYA),
    pair("lora_unet_layers_1_mlp_linear_fc2", WIDTH, MLP, *KOHYA),
    {**pair("diffusion_model.layers.0.self_attention.to_q", WIDTH, WIDTH),
     **pair("diffusion_model.layers.0.mlp.gate_proj", MLP, WIDTH),
     **pair("diffusion_model.adaLN_modulation.1", 6 * WIDTH, WIDTH),
     **pair("diffusion_model.final_norm.linear", 2 * WIDTH, WIDTH)},
], ids=lambda stored: next(iter(stored)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights) -> None:
    assert applied(tmp_path, model, stored) == (len(stored), [], "ERNIE-Image")
