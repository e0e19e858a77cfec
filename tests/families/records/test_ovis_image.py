"""Ovis-Image: what prompts are read as, files as they are published, adapters, wrong parts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import KOHYA, applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion import byte_bpe
from smalti.errors import CheckpointError
from smalti.families import families
from smalti.families.expected import expected_tensors

CONFIG = tiny.WORDLESS["ovis-image"]
NAME = "ovis_image"
WIDTH, MLP = CONFIG.denoiser.hidden_size, CONFIG.denoiser.mlp_size
OPTIONS = {"width": 32, "height": 32, "steps": 2, "seed": 7}


def as_authors(weights: tiny.Weights, factors: str = "scale") -> dict[str, np.ndarray]:
    """The denoiser as its authors have it: the layers of MLPs apart, factors of norms called so."""
    found: dict[str, np.ndarray] = {}
    for name, value in tiny.part(weights, tiny.DENOISER).items():
        name = name.replace("context_norm.", "txt_norm.").removesuffix(".scale")
        name += f".{factors}" * name.endswith("norm")
        path, _, kind = name.rpartition(".")
        if path.endswith("_mlp.0"):
            found[f"{path[:-2]}.up_proj.{kind}"], found[f"{path[:-2]}.gate_proj.{kind}"] = (
                value[:MLP], value[MLP:])
        else:
            found[f"{re.sub('_mlp.2$', '_mlp.down_proj', path)}.{kind}"] = value
    return found


@pytest.fixture
def others(tmp_path: Path, weights: tiny.Weights) -> tuple[list[Path], Path]:
    """The text encoder, and the autoencoder."""
    text = tiny.part(tiny.text_encoder(CONFIG, weights, "qwen3"), "", "model.")
    return ([tiny.write(tmp_path / "ovis_2.5.safetensors", text)],
            tiny.write(tmp_path / "ae.safetensors", tiny.part(weights, tiny.VAE)))


@pytest.mark.parametrize("factors", ["scale", "weight"])
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                          others: tuple[list[Path], Path], prefix: str, factors: str) -> None:
    """In ComfyUI's three files, whose weights are those of a file with names of the graph."""
    alone = tiny.write(tmp_path / "ovis.safetensors", {
        prefix + name: value for name, value in as_authors(weights, factors).items()})
    found = load(alone, *others)
    config = found.config
    assert (config.denoiser, config.texts, config.vae) == (
        CONFIG.denoiser, CONFIG.texts, CONFIG.vae)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (50, 5.0, None)
    assert config == model.config and not found.report.uncomputed
    for name, value in tiny.part(weights, tiny.DENOISER, tiny.DENOISER).items():
        np.testing.assert_array_equal(found.read(name), value)
    report = str(inspect(alone, *others))
    assert "an Ovis-Image checkpoint" in report
    assert "1 double and 2 single blocks, width 64, 2 heads" in report


def test_a_gguf_file_of_the_denoiser(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                     others: tuple[list[Path], Path]) -> None:
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in as_authors(weights).items()]
    with (tmp_path / "ovis_image-Q4_0.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "flux"}, tensors)
    assert load(tmp_path / "ovis_image-Q4_0.gguf", *others).config == model.config


def test_parts_that_are_missing_are_named(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "ovis.safetensors", as_authors(weights))
    with pytest.raises(CheckpointError, match="lacks the text encoder Qwen3 and the autoencoder .*"
                                              "ovis_2.5.safetensors --vae ae.safetensors"):
        load(alone)


# ---------------------------------------------------------------------- prompts


def test_a_prompt_stands_in_the_template() -> None:
    (text,) = families()["ovis-image"].texts
    assert text.template == (
        "<|im_start|>user\nDescribe the image by detailing the color, quantity, text, shape, size, "
        "texture, spatial relationships of the objects and background: {}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    read = byte_bpe.qwen3().tokenize
    front = read(text.template.partition("{}")[0].removesuffix(" "))
    assert read(text.template.format("cat"))[:text.dropped] == front[:28] == front[:-1]
    assert text.tokens(CONFIG.denoiser) == (284, 284)


@pytest.mark.sweep
def test_it_makes_pictures(tmp_path: Path) -> None:
    path = tiny.write_whole(tmp_path / "ovis.safetensors", tiny.OVIS_IMAGE)
    pipe = Pipeline.load(path, threads=1)
    first, other = (np.asarray(pipe(prompt, **OPTIONS).images[0], np.float64) for prompt in (
        "a red apple", "an apple"))
    assert first.std() > 5 and np.abs(first - other).mean() > 0.1


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize(("stored", "words"), [
    (pair("diffusion_model.double_blocks.0.img_mlp.gate_proj", MLP, WIDTH), "Ovis-Image"),
    (pair("lora_unet_double_blocks_0_txt_mlp_up_proj", MLP, WIDTH, *KOHYA), "Ovis-Image"),
    (pair("diffusion_model.double_blocks.0.img_mlp.down_proj", WIDTH, MLP), "Ovis-Image"),
    (pair("diffusion_model.single_blocks.1.linear1", 3 * WIDTH + 2 * MLP, WIDTH), "Ovis-Image"),
    (pair("transformer.single_transformer_blocks.1.attn.to_q", WIDTH, WIDTH),
     "Flux.1, Chroma, LongCat-Image, FLUX.3 or Ovis-Image"),
    (pair("lora_unet_double_blocks_0_img_attn_qkv", 3 * WIDTH, WIDTH, *KOHYA),
     "Flux.1, Chroma, LongCat-Image, FLUX.2 or Ovis-Image"),
], ids=lambda value: value if isinstance(value, str) else next(iter(value)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights, words: str) -> None:
    count, left, found = applied(tmp_path, model, stored)
    assert (count, left, set(found.replace(" or", ",").split(", "))) == (
        len(stored), [], set(words.replace(" or", ",").split(", ")))


def test_adapters_are_told_by_their_shapes(tmp_path: Path, model: Checkpoint) -> None:
    """Published ones have MLPs four times as wide as blocks."""
    def kind(module: str, rows: int, width: int) -> AdapterFile:
        return AdapterFile.open(tiny.write(tmp_path / "a.safetensors", pair(module, rows, width)))

    assert kind("diffusion_model.single_blocks.0.linear1", 33, 3).kind.words == "Ovis-Image"
    assert kind("transformer.single_transformer_blocks.0.proj_mlp", 24, 3).kind.words == (
        "Ovis-Image")
    of_flux = kind("diffusion_model.single_blocks.0.linear1", 21, 3)
    assert of_flux.kind.words == "Flux.1, Chroma or LongCat-Image"
    assert kind("diffusion_model.single_blocks.0.linear1", 27, 3).kind.words == "FLUX.2"
    with pytest.raises(CheckpointError, match="an adapter for Flux.1, Chroma or .* is Ovis-Im"):
        AdapterFile.open(tiny.write(tmp_path / "b.safetensors", pair(
            "diffusion_model.single_blocks.0.linear1", 21, 3))).fit(
                expected_tensors(model.config), "ovis")
