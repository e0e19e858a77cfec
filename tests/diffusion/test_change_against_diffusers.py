"""Pictures that are changed, against the pipelines of diffusers: the same weights and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.images import as_pixels

pytestmark = pytest.mark.peers

SIDE, STEPS, STRENGTH = 32, 4, 0.75
ERROR_MAX = 1e-4
GUIDANCE = {"sd3": 4.5, "flux": 1.0}
SIGMAS = {"sd3": [1.0, 0.75, 0.5, 0.25]}


def picture() -> Image.Image:
    y, x = np.mgrid[:SIDE, :SIDE] * 8
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def latents_of(pipe: Any, image: Image.Image) -> Any:
    """What diffusers makes of a picture without drawing: the mean, in the model's space."""
    import torch

    vae = pipe.vae
    with torch.no_grad():
        mean = vae.encode(torch.from_numpy(as_pixels(image)[None])).latent_dist.mean
    return (mean - (vae.config.shift_factor or 0)) * vae.config.scaling_factor


@pytest.mark.parametrize("family", ["sd1", "sdxl", "sd3"])
def test_a_changed_picture_is_that_of_diffusers(tmp_path: Path, family: str) -> None:
    import torch
    from diffusers import AutoPipelineForImage2Image

    base = theirs.pipeline(family)
    ours = Pipeline.load(theirs.save(base, tmp_path / "model"), threads=1)
    pipe = AutoPipelineForImage2Image.from_pipe(base)
    pipe.set_progress_bar_config(disable=True)
    guidance = GUIDANCE.get(family, 7.0)
    options: dict[str, Any] = {"sigmas": SIGMAS[family]} if family in SIGMAS else {}
    if family == "sd3":
        options |= {"height": SIDE, "width": SIDE, "max_sequence_length": 77}
    with torch.no_grad():
        expected = pipe(
            "a red apple", image=latents_of(pipe, picture()), strength=STRENGTH,
            num_inference_steps=STEPS, guidance_scale=guidance, negative_prompt="blurry",
            generator=torch.Generator().manual_seed(7), output_type="latent", **options).images
    ours_options = {}
    if family == "sd3":
        levels = (3 * t / (1 + 2 * t) for t in [*SIGMAS["sd3"], 0.0])
        ours_options["noise"] = ",".join(f"{level:.9f}" for level in levels)
    *_, last = ours.steps("a red apple", "blurry", image=picture(), strength=STRENGTH, steps=STEPS,
                          guidance_scale=guidance, seed=7, sampler="euler", **ours_options)
    assert last.total == 3
    assert relative_error(last.latents, expected.numpy()) <= ERROR_MAX
