"""The whole way from a prompt to a picture against diffusers, with the same weights and noise."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.benchmark.pictures import peer_pipeline, share_within_one
from smalti.checkpoint import load
from smalti.diffusion.pipeline import SHIPPED_MODEL, Pipeline
from smalti.diffusion.random import NoiseSource

pytestmark = pytest.mark.peers

STEPS = 5
GUIDANCE = 7.0
SHARE_MIN = 0.999


@pytest.mark.parametrize("noise", ["karras", "normal"])
def test_the_shipped_model_makes_the_same_picture(noise: str) -> None:
    pipe, peer = Pipeline.load(), peer_pipeline(load(SHIPPED_MODEL))
    found = pipe("a red apple", steps=STEPS, guidance_scale=GUIDANCE, sampler="euler",
                 noise=noise, seed=3)
    height, width = found.parameters.height, found.parameters.width
    latents = NoiseSource("cpu", (3,), (4, height // 8, width // 8)).draw()
    expected = peer.picture("a red apple", latents, noise, STEPS, GUIDANCE)
    assert expected.std() > 10, "an empty picture proves nothing"
    share = share_within_one(np.asarray(found.images[0]), expected)
    assert share >= SHARE_MIN, f"{share:.3%} of the pixels are within 1 of 255"
