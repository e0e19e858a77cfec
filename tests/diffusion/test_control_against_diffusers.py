"""Pictures of tiny models, steered by ControlNets, against the pipelines of diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Control, Pipeline
from smalti.benchmark import peers
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.random import NoiseSource
from smalti.models import ControlNetConfig

pytestmark = pytest.mark.peers

SIDE, STEPS = 32, 3
ERROR_MAX = 1e-4
PROMPT, NEGATIVE = "a red apple, ripe", "blurry"
HINT = (8, 12)
"""Channels in which a picture is read, halved once, as the autoencoders of tiny models do."""


def picture(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def controlnet(folder: Path, config: ControlNetConfig, seed: int) -> Any:
    """A module of diffusers with seeded weights, also saved to `folder`."""
    module = peers.peer_controlnet(config, seed).module
    module.save_pretrained(folder)
    return module


def latents_of(pipe: Any, start: np.ndarray, **options: Any) -> np.ndarray:
    """The latents at the end of diffusers' walk."""
    import torch

    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        found = pipe(PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS, height=SIDE,
                     width=SIDE, latents=torch.from_numpy(start), guidance_scale=7.0,
                     output_type="latent", **options).images
    return found.numpy()


def ours(pipe: Pipeline, controls: list[Control]) -> np.ndarray:
    *_, last = pipe.steps(PROMPT, NEGATIVE, width=SIDE, height=SIDE, steps=STEPS, sampler="euler",
                          guidance_scale=7.0, seed=7, controls=controls)
    return last.latents


def start_of(pipe: Pipeline) -> np.ndarray:
    shape = (pipe.config.vae.z_channels, SIDE // 2, SIDE // 2)
    return NoiseSource("cpu", (7,), shape).draw()


@pytest.mark.parametrize("family", ["sd1", "sd2", "sdxl"])
def test_two_controlnets(tmp_path: Path, family: str) -> None:
    import diffusers

    config = ControlNetConfig(tiny.FAMILIES[family].denoiser, hint_channels=HINT)
    base = theirs.pipeline(family)
    pipe = Pipeline.load(theirs.save(base, tmp_path / "model"), threads=1)
    nets = [controlnet(tmp_path / name, config, seed) for seed, name in enumerate("ab")]
    pictures, strengths = [picture(1), picture(2)], [0.4, -0.2]
    kind = (diffusers.StableDiffusionXLControlNetPipeline if family == "sdxl"
            else diffusers.StableDiffusionControlNetPipeline)
    more = {} if family == "sdxl" else {"requires_safety_checker": False}
    parts = {**base.components, **more, "controlnet": nets}
    expected = latents_of(kind(**parts), start_of(pipe), image=pictures,
                          controlnet_conditioning_scale=strengths)
    found = ours(pipe, [Control.load(tmp_path / name, image, strength=strength) for
                        name, image, strength in zip("ab", pictures, strengths, strict=True)])
    assert relative_error(found, expected) <= ERROR_MAX
    assert relative_error(ours(pipe, []), expected) > 100 * ERROR_MAX


def test_a_union(tmp_path: Path) -> None:
    import diffusers

    config = ControlNetConfig(tiny.FAMILIES["sdxl"].denoiser, hint_channels=HINT, types=6)
    base = theirs.pipeline("sdxl")
    pipe = Pipeline.load(theirs.save(base, tmp_path / "model"), threads=1)
    net = controlnet(tmp_path / "union", config, 0)
    union = diffusers.StableDiffusionXLControlNetUnionPipeline(
        **{**base.components, "controlnet": net})
    expected = latents_of(union, start_of(pipe), control_image=[picture(1)], control_mode=[3],
                          controlnet_conditioning_scale=0.4)
    for kind, same in ((3, True), (1, False)):
        found = ours(pipe, [Control.load(tmp_path / "union", picture(1), strength=0.4, kind=kind)])
        assert (relative_error(found, expected) <= ERROR_MAX) == same
