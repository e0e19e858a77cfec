"""LongCat-Image: what prompts are read as, files as they are published, wrong parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion.byte_bpe import qwen2
from smalti.diffusion.plain_texts import PlainTexts
from smalti.errors import CheckpointError
from smalti.families import families
from smalti.families.records.longcat_image import FRONT, pieces

CONFIG = tiny.WORDLESS["longcat-image"]
NAME = "longcat_image"
WIDTH = CONFIG.denoiser.hidden_size


@pytest.fixture
def others(tmp_path: Path, weights: tiny.Weights) -> tuple[list[Path], Path]:
    """The text encoder, and the autoencoder."""
    text = tiny.part(tiny.text_encoder(CONFIG, weights, "qwen25"), "", "model.")
    return ([tiny.write(tmp_path / "qwen_2.5_vl_7b.safetensors", text)],
            tiny.write(tmp_path / "ae.safetensors", tiny.part(weights, tiny.VAE)))


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                          others: tuple[list[Path], Path], prefix: str) -> None:
    """In a file of all parts, and in ComfyUI's three, where some call scales of norms weights."""
    config = model.config
    assert (config.denoiser, config.texts) == (CONFIG.denoiser, CONFIG.texts)
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (50, 4.5, None)
    alone = tiny.write(tmp_path / "longcat_image_bf16.safetensors", {
        prefix + name.replace("norm.scale", "norm.weight"): value
        for name, value in tiny.part(weights, tiny.DENOISER).items()})
    assert load(alone, *others).config == config
    assert "a LongCat-Image checkpoint" in str(inspect(alone))


def test_a_gguf_file_of_the_denoiser(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                     others: tuple[list[Path], Path]) -> None:
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in tiny.part(weights, tiny.DENOISER).items()]
    with (tmp_path / "longcat.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "flux"}, tensors)
    assert load(tmp_path / "longcat.gguf", *others).config == model.config


def test_parts_that_are_missing_are_named(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "longcat.safetensors", tiny.part(weights, tiny.DENOISER))
    with pytest.raises(CheckpointError, match="lacks the text encoder Qwen2.5-VL and the autoenco.*"
                                              "qwen_2.5_vl_7b.safetensors --vae ae.safetensors"):
        load(alone)


@pytest.mark.parametrize("name", ["LongCat-Image-Edit", "LongCat-Image-Edit-Turbo",
                                  "longcat_image_turbo_edit"])
def test_one_that_changes_pictures_is_refused(tmp_path: Path, weights: tiny.Weights, name: str
                                              ) -> None:
    """Its tensors are the same; its name tells that it reads a picture, which is not computed."""
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    with pytest.raises(CheckpointError, match="a picture that is read beside the prompt"):
        load(path)


def test_adapters_have_the_names_of_those_for_flux(tmp_path: Path, model: Checkpoint) -> None:
    for module in ("transformer.transformer_blocks.0.attn.to_q",
                   "diffusion_model.double_blocks.0.img_attn.proj"):
        count, left, words = applied(tmp_path, model, pair(module, WIDTH, WIDTH))
        assert (count, left) == (2, []) and "LongCat-Image" in words


def test_adapters_that_do_not_fit_are_called_by_what_they_seem_to_be_for(
        tmp_path: Path, model: Checkpoint) -> None:
    """Of FLUX.1 they have more blocks, which are named where others are applied."""
    more = pair("diffusion_model.double_blocks.18.img_attn.proj", WIDTH, WIDTH)
    with pytest.raises(CheckpointError, match="not used: .*blocks.18.*the model has no such layer"
                                              ".* seems to be for Flux.1, Chroma, LongCat-Image"):
        applied(tmp_path, model, more)
    both = {**more, **pair("diffusion_model.double_blocks.0.img_attn.proj", WIDTH, WIDTH)}
    count, left, _ = applied(tmp_path, model, both)
    assert count == 2 and [name.split(".lora")[0] for name in left] == [
        "diffusion_model.double_blocks.18.img_attn.proj"] * 2
    with pytest.raises(CheckpointError, match="numbers, the model's has 64 x 64.*; it seems to be "
                                              "for Flux.1, Chroma, LongCat-Image, FLUX.2"):
        applied(tmp_path, model, pair("diffusion_model.double_blocks.0.img_attn.proj", 96, 96))
    with pytest.raises(CheckpointError, match="an adapter for FLUX.2, and .* is Flux.1, Chroma or"):
        applied(tmp_path, model, pair("diffusion_model.double_stream_modulation_img.lin", 18, 3))


# ---------------------------------------------------------------------- prompts


@pytest.mark.parametrize(("prompt", "expected"), [
    ("a cat", ["a cat"]), ("", []),
    ("it's 'no' and \"it's\"", ["it's ", *"'no'", " and ", *"\"it's\""]),
    ("写“苹果”", ["写", *"“苹果”"]), ("an open 'quote", ["an open 'quote"]),
    ("‘a’“b”", [*"‘a’", *"“b”"])])
def test_what_stands_in_quotes_is_read_letter_by_letter(prompt: str, expected: list[str]) -> None:
    assert pieces(prompt) == expected


def test_pieces_become_tokens_each_for_itself() -> None:
    (text,) = families()["longcat-image"].texts
    assert text.template == FRONT + "{}" and FRONT == (
        "<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt "
        "based on an image content, suitable for input to a text-to-image model.<|im_end|>\n"
        "<|im_start|>user\n")
    tokenizer = qwen2()
    assert len(tokenizer.tokenize(FRONT)) == text.dropped == 36
    apart = [FRONT, *pieces("'red'")]
    read = PlainTexts.of(tokenizer, [apart, [FRONT, "a cat"], FRONT + "a cat"], 42)
    ids = [number for piece in apart for number in tokenizer.tokenize(piece)]
    assert len(ids) == 41
    rows = read.numbers(42)
    assert rows[0].tolist() == [*ids, tokenizer.vocabulary.padding]
    np.testing.assert_array_equal(rows[1], rows[2])
    cut = PlainTexts.of(tokenizer, [apart], 38)
    assert cut.read[0].cut == "ed'" and cut.ends[0] == 38


@pytest.mark.sweep
def test_it_makes_pictures(tmp_path: Path) -> None:
    path = tiny.write_whole(tmp_path / "longcat.safetensors", tiny.LONGCAT_IMAGE)
    pipe = Pipeline.load(path, threads=1)
    first, other = (np.asarray(pipe(prompt, width=32, height=32, steps=2, seed=7).images[0],
                               np.float64) for prompt in ("a 'red' apple", "a red apple"))
    assert first.std() > 5 and np.abs(first - other).mean() > 0.1
