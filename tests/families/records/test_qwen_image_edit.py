"""Qwen-Image-Edit: what names and marks say, files of what reads pictures, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image
from safetensors.numpy import save_file
from tiny_adapters import KOHYA, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.checkpoint.convert import plan
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion.adapters import few_steps
from smalti.diffusion.byte_bpe import qwen2
from smalti.diffusion.completing import completed
from smalti.errors import CheckpointError, InputError
from smalti.families import families, registered
from smalti.families.keys.language import LANGUAGE_GGUF, VISION_GGUF
from smalti.families.records.qwen_image import CLEAN
from smalti.families.records.qwen_image_edit import EDIT_TEMPLATE, EDIT_TOKENS, SEEN, SEEN_2509

FIRST, PLUS = "qwen-image-edit", "qwen-image-edit-2509"
CONFIG = tiny.WORDLESS_EDITS[PLUS]
NAME = "qwen_image_edit_2509"
SEES = "text_encoders.qwen25.transformer.visual."
FILES = {"qwen_image_edit_fp8_e4m3fn": (FIRST, False),
         "Qwen-Image-Edit-Lightning-4steps": (FIRST, False),
         "qwen_image_edit_2509_fp8": (PLUS, False),
         "QwenImageEdit-Plus-Q4_K_M": (PLUS, False),
         "Qwen-Image-Edit-2511-bf16": ("qwen-image-edit-2511", True),
         "Qwen-Image-Edition": ("qwen-image", False)}


def test_the_template_is_that_of_its_authors() -> None:
    """Of which 64 tokens stand before a picture."""
    assert EDIT_TEMPLATE.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert len(qwen2().tokenize(EDIT_TEMPLATE.partition("{}")[0])) == EDIT_TOKENS
    assert SEEN.mark == "<|vision_start|><|image_pad|><|vision_end|>"
    assert SEEN_2509.mark.format(2) == "Picture 2: <|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.peers
def test_the_templates_are_those_of_diffusers() -> None:
    from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline

    parts = dict.fromkeys(("scheduler", "vae", "text_encoder", "tokenizer", "processor",
                           "transformer"))
    first, plus = (kind(**parts) for kind in (QwenImageEditPipeline, QwenImageEditPlusPipeline))
    assert first.prompt_template_encode == EDIT_TEMPLATE.replace("{}", SEEN.mark + "{}")
    assert plus.prompt_template_encode == EDIT_TEMPLATE
    assert first.prompt_template_encode_start_idx == EDIT_TOKENS


@pytest.mark.parametrize("name", FILES)
def test_the_version_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str) -> None:
    family, clean = FILES[name]
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    config = load(path).config
    assert (config.family, config.denoiser.clean) == (family, clean)
    assert config.denoiser.references == {"qwen-image": 0, FIRST: 1}.get(family, 3)
    assert (config.texts["qwen25"].vision == tiny.VISION) == config.denoiser.reference
    assert ("that it is a Qwen-Image-Edit" in str(inspect(path))) == config.denoiser.reference


def test_2511_is_told_by_a_mark(tmp_path: Path, weights: tiny.Weights) -> None:
    path = tiny.write_whole(tmp_path / "model.safetensors", CONFIG, weights,
                            **{CLEAN: np.zeros(1, np.float16)})
    config = load(path).config
    assert (config.family, config.denoiser.clean) == ("qwen-image-edit-2511", True)


@pytest.mark.parametrize(("pipeline", "stated", "family", "clean", "whole_view"), [
    ("QwenImageEditPipeline", {}, FIRST, False, (1,)),
    ("QwenImageEditPlusPipeline", {}, PLUS, False, (0, 1)),
    ("QwenImageEditPlusPipeline", {"zero_cond_t": True}, PLUS, True, ())])
def test_folders_tell_it_by_their_pipeline(tmp_path: Path, weights: tiny.Weights, pipeline: str,
                                           stated: dict[str, bool], family: str,
                                           clean: bool, whole_view: tuple[int, ...]) -> None:
    """And state whether tokens of pictures are modulated as at time 0, heads, and blocks that see
    all."""
    parts = {"transformer": tiny.part(weights, tiny.DENOISER),
             "vae": tiny.autoencoder(CONFIG, weights),
             "text_encoder": tiny.text_encoder(CONFIG, weights, "qwen25")}
    for name, stored in parts.items():
        (tmp_path / name).mkdir()
        stem = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        tiny.write(tmp_path / name / f"{stem}.safetensors", stored)
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(stated))
    (tmp_path / "text_encoder" / "config.json").write_text(json.dumps({
        "text_config": {"rms_norm_eps": 1e-6},
        "vision_config": {"num_heads": 4, "fullatt_block_indexes": whole_view}}))
    (tmp_path / "model_index.json").write_text(json.dumps({
        "_class_name": pipeline, **{name: ["a", "b"] for name in parts}}))
    config = load(tmp_path).config
    assert (config.family, config.denoiser.clean) == (family, clean)
    vision = config.texts["qwen25"].vision
    assert vision == replace(tiny.VISION, heads=4, seeing_all=whole_view)


# ---------------------------------------------------------------------- what reads pictures


def gguf(path: Path, stored: dict[str, np.ndarray], architecture: str) -> Path:
    """A file of llama.cpp's."""
    with path.open("wb") as stream:
        write_gguf(stream, {"general.architecture": architecture}, [
            GgufTensor(name, value.shape, "f16", lambda value=value: value)
            for name, value in stored.items()])
    return path


def of_llama(weights: tiny.Weights, tmp_path: Path) -> tuple[Path, Path]:
    """The language model, and what reads pictures: queries, keys and values of it are apart, and
    kernels of each frame."""
    inner = tiny.part(weights, "text_encoders.qwen25.transformer.")
    found: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = {}, {}
    for table, stored in zip((LANGUAGE_GGUF, VISION_GGUF), found, strict=True):
        for ours, rule in table.items():
            for number in ("0", "1") if "*" in ours else ("*",):
                value = inner.get(ours.replace("*", number))
                if value is None:
                    continue
                parts = np.split(value, len(rule))
                for piece, part in zip(rule, parts, strict=True):
                    name = piece.name.replace("*", number)
                    stored[name] = part.reshape(-1, 3, 14, 14) if piece.flat else part
    return (gguf(tmp_path / "qwen2.5-vl-7b-q8.gguf", found[0], "qwen2vl"),
            gguf(tmp_path / "mmproj-f16.gguf", found[1], "clip"))


def parts_of(tmp_path: Path, weights: tiny.Weights) -> tuple[Path, Path]:
    """A denoiser and an autoencoder."""
    return (tiny.write(tmp_path / "qwen_image_edit_2509.safetensors",
                       tiny.part(weights, tiny.DENOISER)),
            tiny.write(tmp_path / "qwen_image_vae.safetensors",
                       tiny.autoencoder(CONFIG, weights)))


@pytest.mark.parametrize("turned", [False, True])
def test_a_gguf_file_and_its_mmproj(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                    turned: bool) -> None:
    """In either order."""
    denoiser, vae = parts_of(tmp_path, weights)
    texts = of_llama(weights, tmp_path)
    found = load(denoiser, texts[::-1] if turned else texts, vae)
    assert found.config == model.config
    for name in found.names():
        np.testing.assert_array_equal(found.read(name), model.read(name), name)


def test_a_gguf_file_and_its_mmproj_are_found_beside_a_model(tmp_path: Path) -> None:
    weights = tiny.random_weights(tiny.EDITS[PLUS])  # of all words, as its tokenizer
    denoiser, vae = parts_of(tmp_path, weights)
    language, seeing = of_llama(weights, tmp_path)
    brought = {path: [part for part, count in inspect(path).parameters.items() if count]
               for path in (vae, seeing, language)}
    made = completed(inspect(denoiser), brought)
    assert made is not None and made.vae == vae and {*made.text_encoders} == {language, seeing}
    del brought[seeing]
    assert completed(inspect(denoiser), brought) is None


def test_a_file_of_comfyui(tmp_path: Path, model: Checkpoint, weights: tiny.Weights) -> None:
    denoiser, vae = parts_of(tmp_path, weights)
    stored = {name if name.startswith("visual.") else f"model.{name}": value
              for name, value in tiny.text_encoder(CONFIG, weights, "qwen25").items()}
    assert stored["visual.patch_embed.proj.weight"].shape == (160, 3, 2, 14, 14)
    found = load(denoiser, [tiny.write(tmp_path / "qwen_2.5_vl_7b.safetensors", stored)], vae)
    assert found.config == model.config
    for name in found.names():
        np.testing.assert_array_equal(found.read(name), model.read(name), name)


def test_text_encoders_that_see_nothing_are_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    denoiser, vae = parts_of(tmp_path, weights)
    language, seeing = of_llama(weights, tmp_path)
    blind = tiny.write(tmp_path / "qwen.safetensors", {
        f"model.{name}": value for name, value in
        tiny.text_encoder(CONFIG, weights, "qwen25").items() if not name.startswith("visual.")})
    for given in (language, blind):
        with pytest.raises(CheckpointError, match="comes without what reads pictures.* mmproj, "
                                                  "each with --text-encoder"):
            load(denoiser, [given], vae)
    with pytest.raises(CheckpointError, match="only what reads pictures is given; give the file of "
                                              "the language model, too"):
        load(denoiser, [seeing], vae)


def test_what_reads_pictures_for_another_size_is_refused(tmp_path: Path) -> None:
    """Such as that of Qwen2.5-VL 3B beside 7B."""
    config = tiny.EDITS[FIRST]
    other = replace(config, texts={"qwen25": replace(
        config.texts["qwen25"], vision=replace(tiny.VISION, out_size=40))})
    path = tiny.write_whole(tmp_path / "qwen_image_edit.safetensors", other)
    with pytest.raises(CheckpointError, match="channels of what reads pictures"):
        Pipeline.load(path)


def test_without_an_encoder_it_is_said_which(tmp_path: Path, weights: tiny.Weights) -> None:
    denoiser, vae = parts_of(tmp_path, weights)
    with pytest.raises(CheckpointError, match="a Qwen-Image-Edit-2509 checkpoint, which changes "
                                              "pictures and incomplete.*qwen_2.5_vl_7b.safetensor"):
        load(denoiser, vae=vae)


@pytest.mark.parametrize("container", [".safetensors", ".gguf"])
def test_a_converted_file_is_of_the_same_family(tmp_path: Path, weights: tiny.Weights,
                                                container: str) -> None:
    """Whatever it is called then."""
    path = tiny.write_whole(tmp_path / "qwen_image_edit_2509.safetensors", CONFIG, weights)
    made = tmp_path / f"model{container}"
    with made.open("wb") as stream:
        for _ in plan(path, container).write(stream):
            pass
    assert load(made).config.family == PLUS


def test_lightning_adapters_bring_their_defaults(tmp_path: Path, model: Checkpoint) -> None:
    width = CONFIG.denoiser.hidden_size
    name = "Qwen-Image-Edit-2509-Lightning-4steps-V1.0-bf16"
    save_file(pair("transformer_blocks.0.img_mod.1", 6 * width, width, *KOHYA),
              tmp_path / f"{name}.safetensors")
    adapter = AdapterFile.open(tmp_path / f"{name}.safetensors")
    config, notes, _ = few_steps(model.config, Adapted(model, [WeightedAdapter(adapter, 1.0)]))
    assert (config.default_steps, config.default_guidance, config.flow_shift) == (4, 1.0, 3.0)
    assert f"defaults are those that {name}.safetensors is made for" in notes[0]


# ---------------------------------------------------------------------- pictures


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A pipeline of 2509 that reads pictures of few pixels."""
    monkeypatch.setattr("smalti.models.transformer_config.READ_AREA", 32 * 32)
    config = tiny.EDITS[PLUS]
    path = tiny.write_whole(tmp_path / "qwen_image_edit_2509.safetensors", config)
    (text,) = families()[PLUS].texts
    small = replace(text, seen=replace(text.seen, area=64 * 64))
    with registered(replace(families()[PLUS], texts=(small,))):
        yield Pipeline.load(path, threads=1)


def shown(colour: str, *size: int) -> Image.Image:
    return Image.new("RGB", size or (32, 32), colour)


def test_pictures_that_are_missing_or_too_many_are_refused(pipe: Pipeline) -> None:
    assert pipe.parts == ("vision", "text", "modulation", "transformer", "vae", "vae_encoder")
    with pytest.raises(InputError, match="this model changes pictures, and none is given"):
        pipe.job(options("an apple"))
    with pytest.raises(InputError, match="4 pictures are given as image; this model reads 3 at mo"):
        pipe.job(options("an apple", image=[shown("red")] * 4))
    with pytest.raises(InputError, match="image is an empty list"):
        pipe.job(options("an apple", image=[]))


def options(prompt: str, **given: object) -> object:
    from smalti.diffusion.options import PictureOptions

    return PictureOptions.of(prompt, **given)


@pytest.mark.sweep
def test_pictures_of_pictures(pipe: Pipeline) -> None:
    """Each picture counts, and so does their order; with a strength the walk starts from the first,
    and a mask protects what it does not show. A forecast tells of the parts that then ran."""
    def made(**given: object) -> np.ndarray:
        result = pipe("an apple", steps=2, seed=1, guidance_scale=1.0, **given)
        return np.asarray(result.images[0])

    red, blue = shown("red"), shown("blue", 48, 24)
    found = [made(image=red), made(image=blue), made(image=[red, blue]), made(image=[blue, red]),
             made(image=red, strength=0.5)]
    assert [each.shape for each in found] == [
        (32, 32, 3), (32, 32, 3), (32, 32, 3), (32, 32, 3), (32, 32, 3)]
    same = [each for each in found if each.shape == (32, 32, 3)]
    assert not any(np.array_equal(same[i], same[i - 1]) for i in range(3))
    mask = Image.new("L", (32, 32))
    mask.paste(255, (0, 0, 16, 32))
    kept = made(image=red, mask=mask, mask_blur=0)
    np.testing.assert_array_equal(kept[:, 16:], np.asarray(red)[:, 16:])
    told = pipe.forecast("an apple", image=[red, blue], steps=2, guidance_scale=1.0)
    assert told.runs and [each.part for each in told.parts] == [
        "vae_encoder", "vae_encoder", "vision", "vision", "text", "modulation", "transformer",
        "vae"]
    assert pipe.forecast("an apple").runs
