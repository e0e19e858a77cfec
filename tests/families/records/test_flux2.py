"""FLUX.2: what names say, files as they are published, its autoencoder, levels of noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_tekken import TEKKEN

from smalti import Pipeline
from smalti.checkpoint import inspect, load
from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.folder import pipeline_name
from smalti.diffusion.levels import noise_levels
from smalti.diffusion.noise import find_schedule
from smalti.diffusion.purpose import purpose
from smalti.errors import CheckpointError
from smalti.families.expected import expected_tensors
from smalti.families.flow_shift import flux2_shift
from smalti.graph import evaluate
from smalti.models.config import FLUX2_VAE, ModelConfig
from smalti.models.transformer_config import FLUX2_KLEIN_4B
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

CONFIG = tiny.WORDLESS["flux2"]
KLEIN_1024 = [1, .967384, .908144, .7672, 0]
"""The noise levels of klein in 4 steps, as diffusers' scheduler gives them."""


@pytest.mark.parametrize(("name", "expected"), [
    ("flux-2-klein-4b", (4, 1.0)), ("flux-2-klein-9b-fp8", (4, 1.0)), ("myKlein9B_v2", (4, 1.0)),
    ("flux-2-klein-base-4b", (28, 4.0)), ("Flux2KleinBase9B", (28, 4.0))])
def test_the_base_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str,
                                      expected: tuple[float, ...]) -> None:
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    config = load(path).config
    assert (config.default_steps, config.default_guidance) == expected
    report = str(inspect(path))
    assert "a FLUX.2 klein checkpoint" in report and f"{expected[0]} steps" in report
    assert "1 double and 2 single blocks, width 64, 2 heads, 128 latent channels" in report
    assert "shift by size" in report


def test_the_index_of_a_folder_may_tell_the_base() -> None:
    index = {"_class_name": "Flux2KleinPipeline"}
    assert pipeline_name(index) == pipeline_name({**index, "is_distilled": True})
    assert pipeline_name({**index, "is_distilled": False}).endswith(" base")


def test_the_levels_of_noise_depend_on_size_and_steps() -> None:
    config = ModelConfig("flux2", {}, FLUX2_KLEIN_4B, FLUX2_VAE, "flow", flow_shift=None,
                         default_steps=4)
    for steps in (None, 4):
        found = find_schedule("trailing").sigmas(noise_levels(config, 1024, 1024, steps), 4)
        np.testing.assert_allclose(found, KLEIN_1024, atol=1e-6)
    small = replace(config, vae=CONFIG.vae)  # of which a token is 4 pixels
    assert noise_levels(small, 256, 256, 4).shift == noise_levels(config, 1024, 1024, 4).shift
    mu = [math.log(flux2_shift(1024, 1024, steps)) for steps in (10, 50, 200)]
    np.testing.assert_allclose(mu, [2.256246, 2.023351, 1.149997], atol=1e-6)
    large = [flux2_shift(1024, 1120, steps) for steps in (4, 50)]  # of more than 4300 tokens
    assert large[0] == large[1] == pytest.approx(math.exp(.00016927 * 4480 + .45666666))


# ---------------------------------------------------------------------- the autoencoder


def as_authors(weights: tiny.Weights) -> dict[str, np.ndarray]:
    """The autoencoder as Black Forest Labs' file has it."""
    within = {"quant_conv.": "encoder.quant_conv.", "post_quant_conv.": "decoder.post_quant_conv."}
    found = tiny.part(weights, tiny.VAE)
    named = {next((new + name.removeprefix(old) for old, new in within.items()
                   if name.startswith(old)), name): value for name, value in found.items()}
    return {**named, "bn.num_batches_tracked": np.array(7)}


def separate(folder: Path, weights: tiny.Weights) -> tuple[Path, list[Path]]:
    """The transformer, and the text encoder."""
    return (tiny.write(folder / "flux-2-klein-4b.safetensors", tiny.part(weights, tiny.DENOISER)),
            [encoder(folder, CONFIG, weights)])


def encoder(folder: Path, config: ModelConfig, weights: tiny.Weights) -> Path:
    """The text encoder, with rows for all tokens."""
    text = config.texts["qwen3"]
    rows = np.zeros((tiny.QWEN3.vocab_size, text.hidden_size), np.float16)
    return tiny.write(folder / "qwen_3.safetensors", {
        **tiny.text_encoder(config, weights, "qwen3"), "embed_tokens.weight": rows})


def test_the_file_of_its_authors_is_read(tmp_path: Path, weights: tiny.Weights) -> None:
    denoiser, texts = separate(tmp_path, weights)
    vae = tiny.write(tmp_path / "ae.safetensors", as_authors(weights))
    found = load(denoiser, texts, vae)
    assert found.config.vae == CONFIG.vae and found.config.vae.downscale == 4
    for name, value in tiny.part(weights, tiny.VAE, tiny.VAE).items():
        np.testing.assert_array_equal(found.read(name), value)
    assert "32 channels, as those of ERNIE-Image, FLUX.2 klein, FLUX.2 dev and" in str(inspect(vae))


def test_a_decoder_of_other_widths_is_read(tmp_path: Path, weights: tiny.Weights) -> None:
    small = replace(CONFIG, vae=replace(CONFIG.vae, decoder_channels=(32, 64)))
    other = tiny.random_weights(small)
    vae = tiny.write(tmp_path / "small.safetensors", tiny.part(other, tiny.VAE))
    assert load(*separate(tmp_path, weights), vae).config.vae == small.vae


def test_autoencoders_of_other_models_are_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    flux, (denoiser, texts) = tiny.WORDLESS["flux"], separate(tmp_path, weights)
    other = tiny.write(tmp_path / "ae.safetensors", tiny.part(
        tiny.random_weights(flux), tiny.VAE))
    with pytest.raises(CheckpointError, match="128 channels out of .* but 16 of the"):
        Pipeline.load(denoiser, text_encoders=texts, vae=other)


def test_statistics_are_undone_and_done_again() -> None:
    """The two halves of an autoencoder without any layers to speak of."""
    random, config = np.random.default_rng(0), CONFIG.vae
    decoder, encoder = vae_decoder_graph(config, 1, 2, 3), vae_encoder_graph(config, 1, 8, 12)
    parameters = {name: random.standard_normal(value.shape).astype(np.float32) * 0.1
                  for graph in (decoder, encoder) for name, value in graph.parameters.items()}
    variance = f"{tiny.VAE}bn.running_var"
    parameters[variance] = np.abs(parameters[variance]) + 1
    mean = parameters[f"{tiny.VAE}bn.running_mean"]
    latent = random.standard_normal((1, 128, 2, 3)).astype(np.float32)
    image = evaluate(decoder, {"latent": latent}, parameters)["image"]
    assert image.shape == (1, 3, 8, 12)
    moved = {**parameters, f"{tiny.VAE}bn.running_mean": mean + 1}
    deviation = np.sqrt(parameters[variance] + config.statistics_eps)[:, None, None]
    np.testing.assert_allclose(
        evaluate(decoder, {"latent": latent - 1 / deviation}, moved)["image"], image, atol=1e-4)
    found, other = (evaluate(encoder, {"image": image}, each)["mean"]
                    for each in (parameters, moved))
    assert found.shape == latent.shape
    np.testing.assert_allclose(found - other, np.broadcast_to(1 / deviation, found[0].shape)[None],
                               atol=1e-4)


# ---------------------------------------------------------------------- pictures that are read


def test_a_picture_is_read_as_it_is_or_with_a_megapixel() -> None:
    assert FLUX2_KLEIN_4B.sides(640, 480) == (640, 480)
    assert FLUX2_KLEIN_4B.sides(4000, 1000) == (2048, 512)
    assert purpose(CONFIG) == "reference"


def test_kv_reads_none(tmp_path: Path, weights: tiny.Weights) -> None:
    """Its way of reading pictures is another one, which would give a wrong one."""
    path = tiny.write_whole(tmp_path / "flux-2-klein-9b-kv.safetensors", CONFIG, weights)
    config = load(path).config
    assert not config.denoiser.reference and config.default_steps == 4
    assert purpose(config) == "text"


# ---------------------------------------------------------------------- adapters


def pair(module: str, rows: int, width: int) -> tiny.Weights:
    return {f"{module}.lora_A.weight": np.ones((2, width), np.float32),
            f"{module}.lora_B.weight": np.ones((rows, 2), np.float32)}


OF_FLUX2 = {
    "blocks of the authors": pair("diffusion_model.single_blocks.0.linear1", 27, 3),
    "their second layers": pair("lora_unet_double_blocks_0_img_mlp_2", 3, 9),
    "of diffusers": pair("transformer.single_transformer_blocks.0.attn.to_out", 3, 12),
    "modulations": pair("diffusion_model.double_stream_modulation_img.lin", 18, 3)}
OF_FLUX = {
    "blocks of the authors": pair("diffusion_model.single_blocks.0.linear1", 21, 3),
    "their second layers": pair("lora_unet_double_blocks_0_img_mlp_2", 3, 12),
    "of diffusers": pair("transformer.single_transformer_blocks.0.proj_out", 3, 15)}


def kind_of(folder: Path, stored: tiny.Weights) -> str:
    return AdapterFile.open(tiny.write(folder / "a.safetensors", stored)).kind.words


@pytest.mark.parametrize("name", OF_FLUX2)
def test_adapters_of_flux2_are_told_by_their_layers(tmp_path: Path, name: str) -> None:
    assert kind_of(tmp_path, OF_FLUX2[name]) == "FLUX.2"


@pytest.mark.parametrize("name", OF_FLUX)
def test_adapters_of_flux_are_not_taken_for_those_of_flux2(tmp_path: Path, name: str) -> None:
    """Ovis-Image has second layers as those of Flux.1."""
    assert kind_of(tmp_path, OF_FLUX[name]) in (
        "Flux.1, Chroma or LongCat-Image", "Flux.1, Chroma, LongCat-Image or Ovis-Image")


def test_adapters_of_attention_alone_may_be_of_both(tmp_path: Path, weights: tiny.Weights) -> None:
    stored = pair("diffusion_model.double_blocks.0.img_attn.proj", 64, 64)
    assert "FLUX.2" in kind_of(tmp_path, stored) and "Flux.1, Chroma" in kind_of(tmp_path, stored)
    model = load(tiny.write_whole(tmp_path / "klein.safetensors", CONFIG, weights))
    adapter = AdapterFile.open(tmp_path / "a.safetensors")
    assert not adapter.fit(expected_tensors(model.config), "klein").unused
    other = tiny.write(tmp_path / "b.safetensors",
                       {**stored, **pair("diffusion_model.single_blocks.0.linear2", 3, 15)})
    with pytest.raises(CheckpointError, match="for Flux.1.*, and klein is FLUX.2"):
        AdapterFile.open(other).fit(expected_tensors(model.config), "klein")


# ---------------------------------------------------------------------- what is refused


def test_a_text_encoder_of_another_size_is_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    wider = replace(CONFIG, texts={"qwen3": replace(CONFIG.texts["qwen3"], hidden_size=48)})
    denoiser, _ = separate(tmp_path, weights)
    text = encoder(tmp_path, wider, tiny.random_weights(wider))
    vae = tiny.write(tmp_path / "ae.safetensors", as_authors(weights))
    with pytest.raises(CheckpointError, match="96 channels of the transformer's context, but 144"):
        Pipeline.load(denoiser, text_encoders=[text], vae=vae)


def test_a_text_encoder_of_too_few_layers_is_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    denoiser, _ = separate(tmp_path, weights)
    few = tiny.write(tmp_path / "cut.safetensors", {
        name: value for name, value in tiny.text_encoder(CONFIG, weights, "qwen3").items()
        if not name.startswith(("layers.26.", "layers.27."))})
    vae = tiny.write(tmp_path / "ae.safetensors", as_authors(weights))
    with pytest.raises(CheckpointError, match="has 26 layers, and texts are read behind the .*27"):
        load(denoiser, [few], vae)


def test_parts_that_are_missing_are_named(tmp_path: Path, weights: tiny.Weights) -> None:
    denoiser, _ = separate(tmp_path, weights)
    with pytest.raises(CheckpointError, match="lacks the text encoder Qwen3 and the autoencoder .*"
                                              "qwen_3_4b.safetensors --vae flux2-vae.safetensors"):
        load(denoiser)


# ---------------------------------------------------------------------- dev

DEV = tiny.FLUX2_DEV


@pytest.fixture(scope="module")
def dev() -> tiny.Weights:
    return tiny.random_weights(DEV)


def as_comfy(dev: tiny.Weights) -> dict[str, np.ndarray]:
    """The text encoder as ComfyUI's file has it, with its tokenizer and what reads pictures."""
    text = tiny.part(tiny.text_encoder(DEV, dev, "mistral"), "", "model.")
    return {**text, "vision_tower.patch_conv.weight": np.ones((4, 4), np.float16),
            "tekken_model": np.frombuffer(json.dumps(TEKKEN).encode(), np.uint8)}


@pytest.mark.parametrize(("name", "steps"), [("flux2-dev", 28), ("FLUX.2-dev-Turbo", 8)])
def test_dev_is_read_from_the_files_of_comfy(
        tmp_path: Path, dev: tiny.Weights, name: str, steps: int) -> None:
    denoiser = tiny.write(tmp_path / f"{name}.safetensors", tiny.part(dev, tiny.DENOISER))
    text = tiny.write(tmp_path / "mistral.safetensors", as_comfy(dev))
    vae = tiny.write(tmp_path / "ae.safetensors", as_authors(dev))
    config = load(denoiser, [text], vae).config
    assert (config.family, config.texts) == ("flux2-dev", DEV.texts)
    assert (config.default_steps, config.default_guidance,
            config.default_distilled_guidance) == (steps, 1.0, 4.0)
    assert "a FLUX.2 dev checkpoint" in str(inspect(denoiser))
    assert "the text encoder Mistral Small" in str(inspect(text))


@pytest.mark.sweep
def test_dev_makes_pictures(tmp_path: Path, dev: tiny.Weights) -> None:
    """With the tokenizer in its file; a word that stands for pictures is taken out of prompts."""
    stored = tiny.single_file(DEV, dev)
    stored |= {f"text_encoders.mistral3_24b.transformer.{name}": value
               for name, value in as_comfy(dev).items() if name == "tekken_model"}
    pipe = Pipeline.load(tiny.write(tmp_path / "dev.safetensors", stored), threads=1)
    made = [np.asarray(pipe(prompt, width=32, height=32, steps=2, seed=7).images[0])
            for prompt in ("the red apple", r"the\[IMG\] red apple", "the apple")]
    np.testing.assert_array_equal(made[0], made[1])
    assert (made[0] != made[2]).any()


def test_dev_without_a_tokenizer_says_where_it_is(tmp_path: Path, dev: tiny.Weights) -> None:
    path = tiny.write(tmp_path / "dev.safetensors", tiny.single_file(DEV, dev))
    with pytest.raises(CheckpointError, match="comes without its tokenizer, .* tekken_model"):
        Pipeline.load(path, threads=1)("an apple", width=32, height=32)


def test_wrong_text_encoders_of_dev_are_refused(tmp_path: Path, dev: tiny.Weights,
                                                weights: tiny.Weights) -> None:
    denoiser = tiny.write(tmp_path / "flux2-dev.safetensors", tiny.part(dev, tiny.DENOISER))
    vae = tiny.write(tmp_path / "ae.safetensors", as_authors(dev))
    with pytest.raises(CheckpointError, match="Qwen3, which a FLUX.2 dev checkpoint does not read; "
                                              "it reads the text encoder Mistral Small"):
        load(denoiser, [encoder(tmp_path, CONFIG, weights)], vae)
    with pytest.raises(CheckpointError, match="mistral_3_small_flux2_bf16.safetensors"):
        load(denoiser, vae=vae)
    llama = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "layers.": "blk."}
    other = as_comfy(dev)
    for ours, theirs in llama.items():
        other = {name.replace("model.", "").replace(ours, theirs): value
                 for name, value in other.items()}
    with pytest.raises(CheckpointError, match="queries and keys lie in another order"):
        load(denoiser, [tiny.write(tmp_path / "llama.safetensors", other)], vae)
