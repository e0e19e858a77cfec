"""A picture from a tiny model of every family: prompts steer it, and the same seed repeats it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny

from smalti import Guide, Pipeline, SkipLayers
from smalti.errors import CheckpointError, InputError

SIDE = 32
OPTIONS = {"width": SIDE, "height": SIDE, "steps": 2}
Pipes = Callable[[str], Pipeline]
GUIDED = [family for family in tiny.FAMILIES if family != "flux"]


@pytest.fixture(scope="module")
def pipes(family_files: tiny.Files) -> Pipes:
    """A pipeline of each family, which keeps its programs from test to test."""
    return cache(lambda family: Pipeline.load(family_files[family], threads=1))


def pixels(pipe: Pipeline, prompt: str = "a red apple", **options: object) -> np.ndarray:
    return np.asarray(pipe(prompt, **{**OPTIONS, **options}).images[0], np.float64)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_picture(pipes: Pipes, family: str) -> None:
    pipe = pipes(family)
    picture = pixels(pipe)
    assert picture.shape == (SIDE, SIDE, 3) and picture.std() > 5
    np.testing.assert_array_equal(pixels(pipe), picture)
    assert np.abs(pixels(pipe, "a blue book on a shelf") - picture).mean() > 0.1
    assert np.abs(pixels(pipe, seed=8) - picture).mean() > 1
    pair = pipe("a red apple", **OPTIONS, batch_size=2, seed=6).images
    np.testing.assert_array_equal(np.asarray(pair[1]), picture.astype(np.uint8))


@pytest.mark.parametrize("family", GUIDED)
def test_the_negative_prompt_steers(pipes: Pipes, family: str) -> None:
    pipe = pipes(family)
    without = pixels(pipe, guidance_scale=5)
    assert np.abs(pixels(pipe, guidance_scale=5, negative_prompt="blurry") - without).mean() > 0.1


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in ("sd1", "sd3") else pytest.mark.sweep)
    for name in tiny.FAMILIES])
def test_forms_of_prompts_are_read_by_every_family(pipes: Pipes, family: str) -> None:
    """Plain text reaches T5, weights reach CLIP, and a prompt may be longer than one chunk."""
    pipe = pipes(family)
    plain = pixels(pipe)
    np.testing.assert_array_equal(pixels(pipe, "a (red:1) apple"), plain)
    weighted = np.abs(pixels(pipe, "a (red:3) apple") - plain).max() > 0
    assert weighted == (family not in tiny.NEWER)  # they read plain texts
    other = pixels(pipe, "a [red:blue:1] apple", steps=4)  # one step of two shows in no byte in f32
    assert np.abs(other - pixels(pipe, steps=4)).max() > 0
    longer = "a red apple " * 30
    assert np.abs(pixels(pipe, longer) - pixels(pipe, longer + "and a dog")).max() > 0


def test_layers_can_be_skipped_in_sd3(pipes: Pipes) -> None:
    pipe, other = (pipes(family) for family in ("sd3", "sd1"))
    guide = Guide(skip=SkipLayers((1,), start=0.01, end=0.5))
    result = pipe("a red apple", guide=guide, **{**OPTIONS, "steps": 4})
    assert "Skip layers: 1" in result.texts[0] and "SLG: 2.5 0.01-0.5" in result.texts[0]
    plain = pixels(pipe, steps=4)
    assert np.abs(np.asarray(result.images[0]) - plain).mean() > 0.1
    early = Guide(skip=SkipLayers((1,), start=0.01, end=0.02))  # between two steps
    np.testing.assert_array_equal(pixels(pipe, steps=4, guide=early), plain)
    with pytest.raises(InputError, match="a layer to skip is 99; expected a whole number from 0"):
        pipe("a red apple", guide=Guide(skip=SkipLayers((99,))), **OPTIONS)
    with pytest.raises(InputError, match="layers can be skipped in models of the family of Stab"):
        other("a red apple", guide=guide)


def test_what_flux_is_told_of_guidance_steers(pipes: Pipes) -> None:
    pipe = pipes("flux")
    result = pipe("a red apple", **OPTIONS)
    assert "Distilled CFG Scale: 3.5" in result.texts[0]
    assert np.abs(pixels(pipe, distilled_guidance=10) - np.asarray(result.images[0])).mean() > 0.1
    with pytest.raises(InputError, match="distilled_guidance is -1"):
        pipe("a red apple", distilled_guidance=-1)


def test_guidance_is_told_to_no_other_family(pipes: Pipes) -> None:
    with pytest.raises(InputError, match="use guidance_scale"):
        pipes("sd3")("a red apple", distilled_guidance=3, **OPTIONS)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_clip_skip(pipes: Pipes, family: str) -> None:
    pipe = pipes(family)
    first, second = (pixels(pipe, clip_skip=skip) for skip in (1, 2))
    assert np.abs(first - second).mean() > 0.1
    usual = {"sd1": first, "sdxl": second}[family]
    np.testing.assert_array_equal(pixels(pipe), usual)
    assert "Clip skip: 2" in pipe("a red apple", **OPTIONS, clip_skip=2).texts[0]
    with pytest.raises(InputError, match="clip_skip is 3; expected a whole number from 1 to 2"):
        pipe("a red apple", clip_skip=3)


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in ("sd1", "sd3", "flux2") else pytest.mark.sweep)
    for name in tiny.FAMILIES])
def test_every_part_is_explained(pipes: Pipes, family: str) -> None:
    pipe = pipes(family)
    assert {"text", "vae"} < set(pipe.parts)
    for part in pipe.parts:
        assert pipe.explain(part, width=SIDE, height=SIDE).strip()


def test_a_long_prompt_names_what_t5_does_not_read(pipes: Pipes) -> None:
    pipe = pipes("chroma")
    size, warning = pipe("apple " * 511 + "pear", **OPTIONS).warnings
    assert "this model was made for pictures of 1024x1024" in size
    assert "the prompt is longer than the 511 tokens" in warning and "pear" in warning
    size, warning = pipe("apple " * 2500, **OPTIONS).warnings  # and nothing of chunks of CLIP
    assert "the prompt is longer than the 511 tokens" in warning


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The widths of CLIP and of what the denoiser reads differ."""
    sdxl, refiner = tiny.FAMILIES["sdxl"], tiny.FAMILIES["sdxl-refiner"]
    stored = tiny.single_file(sdxl, tiny.random_weights(sdxl))
    stored = {name: value for name, value in stored.items()
              if not name.startswith(tiny.DENOISER)}
    other = tiny.single_file(refiner, tiny.random_weights(refiner))
    path = tiny.write(tmp_path / "mixed.safetensors",
                      {**stored, **tiny.part(other, tiny.DENOISER, tiny.DENOISER)})
    with pytest.raises(CheckpointError, match="64 channels of the UNet's context, but 128"):
        Pipeline.load(path)


def test_a_model_that_changes_pictures_makes_none(tmp_path: Path) -> None:
    from dataclasses import replace

    config = tiny.FAMILIES["sd1"]
    config = replace(config, denoiser=replace(config.denoiser, in_channels=9))
    path = tiny.write_whole(tmp_path / "paint.safetensors", config)
    pipe = Pipeline.load(path, threads=1)
    with pytest.raises(InputError, match="reads 9 channels, 4 of the picture"):
        pipe("a red apple", **OPTIONS)


def test_transformers_make_no_picture_that_can_be_repeated(pipes: Pipes) -> None:
    with pytest.raises(InputError, match="models with a UNet; this one is a transformer"):
        pipes("sd3")("a red apple", tiling="x", **OPTIONS)


def test_a_refiner_takes_the_last_steps_over(family_files: tiny.Files, pipes: Pipes) -> None:
    base, refiner = pipes("sdxl"), pipes("sdxl-refiner")
    both = Pipeline.load(family_files["sdxl"], threads=1, refiner=family_files["sdxl-refiner"])
    options = {**OPTIONS, "steps": 4}

    def latents(pipe: Pipeline, **more: object) -> list[np.ndarray]:
        return [step.latents for step in pipe.steps("a red apple", **options, **more)]

    found, alone = latents(both, refiner_switch=0.5), latents(base)
    same = [np.array_equal(*pair) for pair in zip(found, alone, strict=True)]
    assert same == [True, True, False, False]
    for share, expected in ((1, alone), (0, latents(refiner))):
        np.testing.assert_array_equal(latents(both, refiner_switch=share)[-1], expected[-1])
    text = both("a red apple", **options).texts[0]
    assert "Refiner switch at: 0.8" in text and "Refiner: sdxl-refiner" in text
    with pytest.raises(InputError, match="refiner_switch is 2; expected a share"):
        both("a red apple", refiner_switch=2)
    with pytest.raises(InputError, match="no refiner"):
        base("a red apple", refiner_switch=0.5)
    with pytest.raises(CheckpointError, match="sd1.safetensors cannot refine"):
        Pipeline.load(family_files["sdxl"], refiner=family_files["sd1"])
