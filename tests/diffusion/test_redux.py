"""Pictures that FLUX.1 Redux reads: what they change, what they need, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import PictureOptions, Pipeline
from smalti.checkpoint import inspect, load
from smalti.diffusion.completing import completed
from smalti.diffusion.fit import check_parts
from smalti.diffusion.metadata import parse
from smalti.diffusion.option_text import read
from smalti.diffusion.options import PICTURE_NAMES
from smalti.diffusion.purpose import untaken
from smalti.diffusion.redux import patches_of, tokens_shown, with_pictures
from smalti.diffusion.request import denoising_bytes, request
from smalti.errors import CheckpointError, InputError
from smalti.families.redux import FILES
from smalti.graph import Graph, evaluate
from smalti.models import REDUX
from smalti.models.flux import biased_scores
from smalti.server.archive import PICTURE_KEYS

RED, BLUE = (Image.new("RGB", (30, 20), colour) for colour in ("red", "blue"))
GIVEN: dict[str, Any] = dict(steps=1, width=32, height=32, seed=7)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A whole FLUX.1, and the two files of Redux."""
    folder = tmp_path_factory.mktemp("redux")
    config = tiny.FAMILIES["flux"]  # as schnell, of half as many tokens
    config = replace(config, denoiser=replace(config.denoiser, guidance=False))
    return (tiny.write_whole(folder / "flux.safetensors", config), *tiny.redux_files(folder))


@pytest.fixture(scope="module")
def pipe(files: tuple[Path, Path, Path]) -> Pipeline:
    return Pipeline.load(files[0], threads=1, text_encoders=files[1:])


def made(pipe: Pipeline, **given: Any) -> np.ndarray:
    *_, last = pipe.steps("a cat", **{**GIVEN, **given})
    return last.latents


def test_a_picture_and_its_strength_change_what_is_made(pipe: Pipeline) -> None:
    red = made(pipe, redux=RED)
    assert not np.allclose(red, made(pipe, redux=BLUE))
    assert not np.allclose(red, made(pipe, redux=RED, redux_strength=(0.5,)))
    assert not np.allclose(red, made(pipe, redux=RED, redux_pooled=0.2))
    halves = made(pipe, redux=[RED, RED], redux_strength=(0.5, 0.5), redux_sum=True,
                  redux_pooled=0.5)
    np.testing.assert_allclose(red, halves, atol=2e-5)


def test_strengths_may_be_biases(pipe: Pipeline) -> None:
    """Of 0 a picture is not seen, of 1 it is as it is, of 2 as if all saw it twice."""
    def biased(*pictures: Image.Image, strength: tuple[float, ...]) -> np.ndarray:
        return made(pipe, redux=list(pictures), redux_strength=strength, redux_bias=True)

    plain, red = made(pipe), made(pipe, redux=RED)
    np.testing.assert_allclose(biased(RED, BLUE, strength=(0,)), plain, atol=2e-5)
    np.testing.assert_array_equal(biased(RED, strength=(1,)), red)
    np.testing.assert_allclose(biased(RED, BLUE, strength=(1, 0)), red, atol=2e-5)
    assert not np.allclose(biased(RED, strength=(2,)), red, atol=1e-3)
    assert not np.allclose(biased(RED, strength=(0.5,)), made(
        pipe, redux=RED, redux_strength=(0.5,)), atol=1e-3)


def test_who_sees_pictures_with_their_bias() -> None:
    """The text, the image, and pictures before; a picture sees itself and those before as they are.
    """
    g = Graph()
    scores = biased_scores(g.input("bias", (1, 2, 3)), length=8, others=4)
    seen = []
    for number, (count, addend) in enumerate(scores):
        g.output(str(number), g.constant(np.zeros((1, 1, 1, 12), np.float32)) if addend is None
                 else addend)
        seen.append(count)
    bias = np.array([[[1, 2, 3], [4, 5, 6]]], np.float32)
    found = [array.ravel().tolist() for array in evaluate(g, {"bias": bias}, {}).values()]
    every, second = [0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0], [0] * 5 + [4, 5, 6] + [0] * 4
    assert seen == [2, 3, 3, 4] and found == [every, second, [0] * 12, every]


def test_a_forecast_is_of_the_program_that_runs(pipe: Pipeline) -> None:
    asked = {**GIVEN, "redux": [RED, BLUE], "redux_strength": (0.5, 2), "redux_bias": True}
    parts = {each.part: each for each in pipe.forecast("a cat", **asked).parts}
    tokens = tiny.REDUX.tokens
    assert parts["transformer"].shape == (
        1, 16, 16, 256 + 2 * tokens, False, "", False, (), (2, tokens))


def test_tokens_of_pictures_stand_behind_each_other_or_are_added_up() -> None:
    random = np.random.default_rng(0)
    context, pooled, tokens = (random.standard_normal(shape).astype(np.float32)
                               for shape in ((2, 4, 3), (2, 5), (2, 7, 3)))
    rows = {"context": context, "pooled": pooled, "guidance": np.ones(2, np.float32)}
    beside = with_pictures(rows, tokens, (0.5, 2.0), 0.25, False)
    assert beside["context"].shape == (2, 18, 3) and beside["guidance"] is rows["guidance"]
    np.testing.assert_array_equal(beside["context"][1, 4:11], 0.5 * tokens[0])
    np.testing.assert_array_equal(beside["context"][0, 11:], 2 * tokens[1])
    np.testing.assert_array_equal(beside["pooled"], 0.25 * pooled)
    added = with_pictures(rows, tokens, (0.5, 2.0), 0.25, True)
    np.testing.assert_array_equal(added["context"][:, :4], 2.5 * context)
    np.testing.assert_allclose(added["context"][0, 4:], 0.5 * tokens[0] + 2 * tokens[1])
    np.testing.assert_array_equal(added["pooled"], 0.5 * pooled)


def test_the_text_of_a_picture_says_that_others_were_read(pipe: Pipeline) -> None:
    *_, last = pipe.steps("a cat", redux=[RED, BLUE], redux_strength=(0.5, 0.25), redux_sum=True,
                          **GIVEN)
    found = read(parse(last.result.texts[0]))
    assert found.options["redux_strength"] == (0.5, 0.25) and "redux" not in found.options
    assert found.advice() == ["2 pictures that Redux read: give --redux PICTURE"]
    assert "redux_strength" not in found.with_given({})
    found = read(parse(last.result.texts[0]))
    assert found.with_given({"redux": "a.png"})["redux_strength"] == (0.5, 0.25)


def test_a_forecast_counts_them(pipe: Pipeline) -> None:
    plain, more = pipe.forecast("a cat", **GIVEN), pipe.forecast("a cat", redux=[RED, BLUE],
                                                                 **GIVEN)
    parts = {each.part: each for each in more.parts}
    assert "text_3" not in [each.part for each in plain.parts] and parts["text_3"].runs == 2
    assert parts["transformer"].shape[3] == 256 + 2 * tiny.REDUX.tokens


def test_its_tokens_count_in_the_memory_that_is_needed() -> None:
    """729 each, as many as a picture of 108 x 108 pixels has with the tiny autoencoder."""
    config = replace(tiny.FLUX_REDUX, texts={**tiny.FLUX_REDUX.texts, "redux": REDUX})
    alone = denoising_bytes(config, 108, 108)
    assert denoising_bytes(config, 108, 108, tokens=729) == 2 * alone
    for count, added, parts in ((1, False, 2), (10, False, 11), (10, True, 2)):
        asked = PictureOptions("a cat", redux=[RED] * count, redux_sum=added, width=108, height=108,
                               guidance_scale=1)
        assert tokens_shown(config, asked) == 729 * (parts - 1)
        request(config, asked, memory_bytes=parts * alone)
        with pytest.raises(InputError, match=f"108x108, with {729 * (parts - 1)} tokens of Redux, "
                                             "needs about .* or give fewer pictures as redux"):
            request(config, asked, memory_bytes=parts * alone - 1)


@pytest.mark.parametrize(("given", "said"), [
    ({"guidance_scale": 3.0}, "guidance_scale is 3; give 1"),
    ({"sampler": "euler_cfg++"}, "the sampler is euler_cfg++, which reads it always"),
    ({"redux_sum": True, "redux_bias": True}, "redux_sum and redux_bias are given; where tokens"),
    ({"redux_strength": (1, 2)}, "redux_strength has 2 numbers, redux 1 pictures"),
    ({"redux_strength": (-1,)}, "a strength of Redux is -1"),
    ({"redux_strength": 0.5}, "redux_strength is 0.5; expected numbers, such as (0.8, 0.4)"),
    ({"redux": []}, "redux is an empty list"),
    ({"redux": [RED] * 11}, "11 pictures are given as redux; expected 10"),
    ({"redux": "no-such.png"}, "no-such.png cannot be read as a picture"),
    ({"redux": None, "redux_sum": True}, "redux_sum is given, but no redux")])
def test_what_cannot_be_is_refused(pipe: Pipeline, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        pipe.steps("a cat", **{**GIVEN, "redux": RED, **given})
    assert said in str(caught.value)


def test_prompts_that_are_joined_are_refused(pipe: Pipeline) -> None:
    with pytest.raises(InputError, match="parts with AND"):
        pipe.steps("a cat AND a dog", redux=RED, **GIVEN)


def test_a_refiner_would_not_read_them() -> None:
    with pytest.raises(InputError, match="the refiner other, which does not read its pictures"):
        request(tiny.FLUX_REDUX, PictureOptions("a cat", redux=RED, guidance_scale=1),
                memory_bytes=1 << 34, refiner="other")


def test_models_without_it_say_what_to_give(files: tuple[Path, Path, Path]) -> None:
    with pytest.raises(InputError) as caught:
        Pipeline.load(files[0]).steps("a cat", redux=RED, **GIVEN)
    for words in (*FILES, "--text-encoder", "models/clip_vision of ComfyUI"):
        assert words in str(caught.value)
    assert "is for models of FLUX.1" in untaken(tiny.FAMILIES["chroma"])["redux"]
    assert not any(name.startswith("redux") for name in untaken(tiny.FLUX_REDUX))


@pytest.mark.parametrize(("kept", "said"), [
    (1, "the image encoder of FLUX.1 Redux is not given"),
    (2, "the layers of FLUX.1 Redux is not given")])
def test_one_of_the_two_files(files: tuple[Path, Path, Path], kept: int, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(files[0], [files[kept]])
    assert said in str(caught.value) and FILES[2 - kept] in str(caught.value)


def test_another_image_encoder(tmp_path: Path, files: tuple[Path, Path, Path]) -> None:
    other = tiny.write(tmp_path / "other.safetensors", {
        "vision_model.embeddings.patch_embedding.weight": np.ones((64, 3, 16, 16), np.float16),
        "vision_model.embeddings.position_embedding.weight": np.ones((196, 64), np.float16)})
    with pytest.raises(CheckpointError, match="image encoder of width 64 with 196 places"):
        load(files[0], [files[1], other])


def test_layers_that_make_other_tokens(tmp_path: Path, files: tuple[Path, Path, Path]) -> None:
    other = tiny.write(tmp_path / "other.safetensors", {
        f"redux_{name}": np.ones(shape, np.float16) for name, shape in (
            ("up.weight", (48, 144)), ("up.bias", (48,)), ("down.weight", (64, 48)),
            ("down.bias", (64,)))})
    with pytest.raises(CheckpointError, match="channels that Redux makes of pictures"):
        check_parts(load(files[0], [other, files[2]]))


def test_models_of_other_families_do_not_read_it(tmp_path: Path,
                                                 files: tuple[Path, Path, Path]) -> None:
    path = tiny.write_whole(tmp_path / "sd.safetensors", tiny.WORDLESS["sd1"])
    with pytest.raises(CheckpointError, match="reads pictures for FLUX.1 Redux, which a Stable"):
        load(path, [files[1]])


def test_a_folder_of_redux_is_both(tmp_path: Path, files: tuple[Path, Path, Path]) -> None:
    for file, place in zip(files[1:], ("image_embedder/diffusion_pytorch_model.safetensors",
                                       "image_encoder/model.safetensors"), strict=True):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_bytes(file.read_bytes())
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPriorRedux"}))
    assert load(files[0], [tmp_path]).config == load(files[0], files[1:]).config
    report = inspect(tmp_path)
    assert report.kind is not None and report.kind.id == "text-encoder"
    assert [*report.parameters] == ["redux"]


def test_files_that_lie_beside_a_model_are_found(tmp_path: Path) -> None:
    """Those that are called as usual, where there are others."""
    config = tiny.FAMILIES["flux"]
    tiny.write_parts(tmp_path, config)
    _, tower = tiny.redux_files(tmp_path / "style_models")
    (tower.parent / "another_vision.safetensors").write_bytes(tower.read_bytes())
    reports = {path: inspect(path) for path in sorted(tmp_path.glob("*/*.safetensors"))
               if path.parent.name != "diffusion_models"}
    found = completed(inspect(tmp_path / "diffusion_models" / "flux.safetensors"), {
        path: [part for part, count in report.parameters.items() if count]
        for path, report in reports.items()})
    assert found is not None and found.report.loadable
    assert [each.name for each in found.text_encoders[2:]] == [*FILES]
    assert list(found.report.config.texts) == ["clip_l", "t5xxl", "redux"]


def test_an_adapter_of_the_third_text_encoder_is_t5s(files: tuple[Path, Path, Path]) -> None:
    """As it is without Redux: that is no text encoder that adapters number."""
    from smalti.checkpoint.adapters.spelling import Spellings

    opened = load(files[0], files[1:])
    known = Spellings({name: opened.shape(name) for name in opened.names()})
    assert known.encoders == ("clip_l", "t5xxl")
    assert known.find("lora_te3_encoder_block_0_layer_0_SelfAttention_q") is not None


def test_pictures_of_siglip_are_cut_as_it_was_trained() -> None:
    drawn = Image.fromarray(np.arange(384 * 384 * 3, dtype=np.uint32).astype(np.uint8).reshape(
        384, 384, 3))
    patches = patches_of(drawn, REDUX)
    pixels = np.asarray(drawn, np.float32) / 127.5 - 1
    np.testing.assert_array_equal(patches[28].reshape(3, 14, 14),
                                  pixels[14:28, 14:28].transpose(2, 0, 1))
    assert replace(REDUX, grid=16).side == 224


def test_options_that_are_pictures_are_not_told_of_requests() -> None:
    assert {*PICTURE_NAMES} < {*PICTURE_KEYS} and "redux" in PICTURE_NAMES
    assert PictureOptions("a", redux=["a.png"]).redux == ("a.png",)
