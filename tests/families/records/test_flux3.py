"""FLUX.3-image: what shapes say, files as they are published, wrong parts, adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion.byte_bpe import qwen3
from smalti.diffusion.denoiser import Denoiser
from smalti.diffusion.noise import FlowLevels
from smalti.diffusion.plain_texts import PlainTexts
from smalti.diffusion.purpose import purpose
from smalti.diffusion.samplers import SAMPLERS
from smalti.errors import CheckpointError
from smalti.families.expected import expected_tensors

CONFIG = tiny.WORDLESS["flux3"]
NAME = "flux-3-image-klein"
WIDTH = CONFIG.denoiser.hidden_size


@pytest.fixture
def others(tmp_path: Path, weights: tiny.Weights) -> tuple[list[Path], Path]:
    """The text encoder, and the autoencoder."""
    text = {("model." if name.startswith("visual.") else "model.language_model.") + name: value
            for name, value in tiny.text_encoder(CONFIG, weights, "qwen3vl").items()}
    return ([tiny.write(tmp_path / "qwen3vl_4b_bf16.safetensors", text)],
            tiny.write(tmp_path / "flux2-vae.safetensors", tiny.part(weights, tiny.VAE)))


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                          others: tuple[list[Path], Path], prefix: str) -> None:
    """In a file of all parts, and in three; what trained the model alone is not read."""
    config = model.config
    assert (config.denoiser, config.texts) == (CONFIG.denoiser, CONFIG.texts)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (16, 1.0, 6.93)
    alone = tiny.write(tmp_path / "flux3.safetensors", {
        **tiny.part(weights, tiny.DENOISER, prefix),
        prefix + "repa_projectors.0.weight": np.ones((2, 2), np.float16)})
    found = load(alone, *others)
    assert found.config == config and not any("repa" in name for name in found.names())
    assert "a FLUX.3-image-klein checkpoint" in str(inspect(alone))
    assert ("1 stream and 2 single blocks, width 64, 2 heads, 128 latent channels"
            in str(inspect(alone, *others)))


def test_the_base_is_told_by_its_layers(tmp_path: Path, weights: tiny.Weights) -> None:
    stored = {name: value for name, value in weights.items() if "ref_time_in" not in name}
    config = load(tiny.write_whole(tmp_path / "flux3.safetensors", CONFIG, stored)).config
    assert config.denoiser == replace(CONFIG.denoiser, flow_map=False)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (50, 3.5, 6.93)


def test_layers_for_pictures_that_are_read_may_be_missing(tmp_path: Path, model: Checkpoint,
                                                          weights: tiny.Weights) -> None:
    stored = {name: value for name, value in weights.items() if "image_cond" not in name}
    found = load(tiny.write_whole(tmp_path / "flux3.safetensors", CONFIG, stored)).config
    assert found.denoiser == replace(CONFIG.denoiser, reference=False)
    assert (purpose(found), purpose(model.config)) == ("text", "reference")
    assert model.config.denoiser.sides(4000, 1000) == (2048, 512)


def test_a_gguf_file_of_the_denoiser(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                     others: tuple[list[Path], Path]) -> None:
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in tiny.part(weights, tiny.DENOISER).items()]
    with (tmp_path / "flux3.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "flux3"}, tensors)
    assert load(tmp_path / "flux3.gguf", *others).config == model.config


# ---------------------------------------------------------------------- what is refused


def test_parts_that_are_missing_or_wrong_are_named(tmp_path: Path, weights: tiny.Weights,
                                                   others: tuple[list[Path], Path]) -> None:
    alone = tiny.write(tmp_path / "flux3.safetensors", tiny.part(weights, tiny.DENOISER))
    with pytest.raises(CheckpointError, match="lacks the text encoder Qwen3-VL and the autoenc.*"
                                              "qwen3vl_4b_bf16.safetensors --vae flux2-vae"):
        load(alone)
    klein = tiny.WORDLESS["flux2"]
    other = tiny.write(tmp_path / "qwen3.safetensors", tiny.text_encoder(
        klein, tiny.random_weights(klein), "qwen3"))
    with pytest.raises(CheckpointError, match="Qwen3, which a FLUX.3-image-klein checkpoint does "
                                              "not read; it reads the text encoder Qwen3-VL"):
        load(alone, [other], others[1])
    flux = tiny.WORDLESS["flux"]
    vae = tiny.write(tmp_path / "ae.safetensors", tiny.part(tiny.random_weights(flux), tiny.VAE))
    text = tiny.text_encoder(CONFIG, weights, "qwen3vl")
    text["embed_tokens.weight"] = np.zeros(  # of all tokens
        (tiny.QWEN3_VL.vocab_size, tiny.QWEN3_VL.hidden_size), np.float16)
    texts = [tiny.write(tmp_path / "text.safetensors", text)]
    with pytest.raises(CheckpointError, match="128 channels out of .* but 16 of the"):
        Pipeline.load(alone, text_encoders=texts, vae=vae)


def test_a_tensor_that_a_text_encoder_holds_twice_is_one(
        tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
        others: tuple[list[Path], Path]) -> None:
    """Under two names, by which it is not seen yet which text encoder it is of."""
    text = tiny.part(tiny.text_encoder(CONFIG, weights, "qwen3vl"), "", "model.")
    name = "layers.3.self_attn.q_norm.weight"
    alone = tiny.write(tmp_path / "flux3.safetensors", tiny.part(weights, tiny.DENOISER))
    for added in (0, 1):
        twice = {**text, f"model.language_model.{name}": text[f"model.{name}"] + np.float16(added)}
        path = tiny.write(tmp_path / f"text{added}.safetensors", twice)
        if added:
            with pytest.raises(CheckpointError, match="two different tensors for one weight"):
                load(alone, [path], others[1])
        else:
            assert load(alone, [path], others[1]).config == model.config


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize("module", [
    "diffusion_model.content_mode_blocks.image.0.q_proj",
    "lora_unet_content_mode_blocks_image_cond_0_attn_out", "txt_mode_blocks.0.k_proj",
    "transformer.mode_blocks.image.0.attn.to_v",
    "transformer.single_transformer_blocks.1.attn.to_out.0",
    "diffusion_model.single_blocks.1.v_proj", "transformer.timestep_embedder.linear_2"])
def test_adapters_are_told_by_their_layers(tmp_path: Path, model: Checkpoint, module: str) -> None:
    count, left, words = applied(tmp_path, model, pair(module, WIDTH, WIDTH))
    assert (count, left) == (2, [])
    assert words == ("FLUX.3" if "timestep" not in module else "an unknown model")


def test_adapters_of_attention_alone_may_be_for_flux(tmp_path: Path, model: Checkpoint) -> None:
    """Diffusers calls these layers alike; layers that FLUX.3 has not tell."""
    attention = pair("transformer.single_transformer_blocks.1.attn.to_q", WIDTH, WIDTH)
    count, left, words = applied(tmp_path, model, attention)
    assert (count, left) == (2, []) and "Flux.1, Chroma" in words and "FLUX.3" in words
    for module in ("transformer.single_transformer_blocks.1.proj_mlp",
                   "transformer.transformer_blocks.0.attn.to_q"):
        stored = {**attention, **pair(module, 4 * WIDTH, WIDTH)}
        adapter = AdapterFile.open(tiny.write(tmp_path / "b.safetensors", stored))
        with pytest.raises(CheckpointError, match="for Flux.1.*, and klein is FLUX.3"):
            adapter.fit(expected_tensors(model.config), "klein")


# ---------------------------------------------------------------------- prompts, times


def test_a_text_has_a_window_of_its_own() -> None:
    read = PlainTexts.of(qwen3(), ["a cat", "a cat " * 60, "a cat " * 6000], 8192)
    assert read.windows(80, 80, 8192).tolist() == [80, 160, 8192]


def test_a_step_is_told_where_it_leads() -> None:
    """Of a walk through levels 1 and 0.75, and what lies between them."""
    told = []

    def network(latents: np.ndarray, times: np.ndarray, conditioning: dict) -> np.ndarray:
        told.append((times.tolist(), conditioning["target"].tolist()))
        return latents

    denoiser = Denoiser(network, FlowLevels.shifted(1.0), "flow", flow_map=True)
    denoiser.walk = [1.0, 0.75, 0.0]
    latents = np.ones((2, 1, 2, 2), np.float32)
    for sigma in (1.0, 0.8, 0.75):
        denoiser.outputs(latents, sigma, [{}, {}])
    assert told == [([1000.0] * 4, [750.0] * 4), ([800.0] * 4, [750.0] * 4),
                    ([750.0] * 4, [0.0] * 4)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_leads_to_another_level(name: str) -> None:
    """Those that reckon in the odds of a level ask for it with a rounding error, and a step to the
    level itself is none."""
    told = []

    class Asked:
        """What a sampler asks."""

        def __call__(self, x: np.ndarray, sigma: float) -> np.ndarray:
            (made,) = denoiser.outputs(x, sigma, [{}])
            return made

        def both(self, x: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
            return self(x, sigma), x

    def network(latents: np.ndarray, times: np.ndarray, conditioning: dict) -> np.ndarray:
        told.append((times[0], conditioning["target"][0]))
        return latents / 2

    levels, sampler = FlowLevels.shifted(6.93), SAMPLERS[name]
    denoiser = Denoiser(network, levels, "flow", flow_map=True)
    denoiser.walk = sampler.sigmas("trailing", levels, 50)
    x = np.ones((1, 1, 2, 2), np.float32)
    for _ in sampler(Asked(), x, denoiser.walk, lambda: x, levels):
        pass
    known = (1000 * np.array(denoiser.walk)).astype(np.float32)
    for time, target in told:
        (next_lower, *_) = known[known < time * np.float32(1 - 1e-5)]
        assert target == pytest.approx(next_lower)


@pytest.mark.sweep
def test_it_makes_and_changes_pictures(tmp_path: Path) -> None:
    pipe = Pipeline.load(tiny.write_whole(tmp_path / "flux3.safetensors", tiny.FLUX3), threads=1)
    first = pipe("a red apple", width=32, height=32, steps=2, seed=7).images[0]
    other = pipe("a red apple", width=32, height=32, steps=2, seed=7, image=first).images[0]
    pixels, changed = (np.asarray(each, np.float64) for each in (first, other))
    assert pixels.std() > 5 and np.abs(pixels - changed).mean() > 0.1
