"""Whole pictures of a tiny FLUX.3 against diffusers' blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.random import NoiseSource

pytestmark = pytest.mark.peers

WIDTH, HEIGHT, STEPS = 40, 32, 3
ERROR_MAX = 1e-4
PROMPT, NEGATIVE = "a red apple, ripe", "blurry"
BASE = replace(tiny.FLUX3, denoiser=replace(tiny.FLUX3.denoiser, flow_map=False))


def both(folder: Path, config: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Pipeline]:
    """The pipeline of diffusers, and ours of its folder."""
    monkeypatch.setitem(tiny.FAMILIES, "flux3", config)
    pipe = theirs.pipeline("flux3")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, folder / "model"), threads=1)
    assert (ours.config.family, ours.config.flow_shift) == ("flux3", 6.93)
    assert ours.config.denoiser == config.denoiser and ours.config.texts == config.texts
    return pipe, ours


def compared(pipe: Any, ours: Pipeline, prompt: str, told: dict[str, Any],
             **options: Any) -> list[str]:
    """Assert that both make the same picture; what is said of it."""
    import torch

    height, width = options.get("height", HEIGHT), options.get("width", WIDTH)
    latents = NoiseSource("cpu", (7,), (128, height // 4, width // 4)).draw()
    expected = []
    for name in ("latents", "images"):
        with torch.no_grad():
            found = pipe(prompt=prompt, num_inference_steps=STEPS, height=height, width=width,
                         latents=torch.from_numpy(latents), output_type="np", output=name, **told)
        expected.append(np.asarray(found))
    *_, last = ours.steps(prompt, steps=STEPS, seed=7, sampler="euler", width=width,
                          height=height, **options)
    assert relative_error(last.latents, expected[0]) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - np.round(255 * expected[1][0].astype(np.float64))) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1
    return last.result.warnings


@pytest.mark.parametrize("prompt", [PROMPT, "a red apple, ripe, " * 20])
def test_a_picture_of_the_base(tmp_path: Path, prompt: str,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The window of a long prompt is one of 160 tokens, that of the negative one of 80."""
    pipe, ours = both(tmp_path, BASE, monkeypatch)
    assert (ours.config.default_steps, ours.config.default_guidance) == (50, 3.5)
    compared(pipe, ours, prompt, {"negative_prompt": NEGATIVE}, negative_prompt=NEGATIVE)


@pytest.mark.parametrize("prompt", [PROMPT, "a red apple, ripe, " * 20])
def test_a_picture_of_the_distilled_model(tmp_path: Path, prompt: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, ours = both(tmp_path, tiny.FLUX3, monkeypatch)
    assert (ours.config.default_steps, ours.config.default_guidance) == (16, 1.0)
    compared(pipe, ours, prompt, {})


@pytest.mark.parametrize("sizes", [[(64, 80)], [(64, 64), (80, 64)]])
def test_pictures_that_are_read(tmp_path: Path, sizes: list[tuple[int, int]],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sides that nothing is cut off."""
    pipe, ours = both(tmp_path, tiny.FLUX3, monkeypatch)
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 255, (height, width, 3), np.uint8))
                for width, height in sizes]
    compared(pipe, ours, PROMPT, {"image": pictures}, image=pictures, strength=1.0)
