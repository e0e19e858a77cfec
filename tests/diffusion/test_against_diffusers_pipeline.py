"""The whole way from a prompt to a picture against diffusers, with the same weights and noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smalti.benchmark import peers
from smalti.benchmark.pictures import peer_pipeline, share_within_one
from smalti.checkpoint import load
from smalti.diffusion.control import Control, as_hint
from smalti.diffusion.pipeline import SHIPPED_MODEL, Pipeline
from smalti.models import ControlNetConfig

pytestmark = pytest.mark.peers

STEPS = 5
GUIDANCE = 7.0
SHARE_MIN = 0.999


@pytest.mark.parametrize("noise", ["karras", "normal"])
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.0, 0.6), (0.3, 0.8)])
def test_the_shipped_model_makes_the_same_picture(
        noise: str, interval: tuple[float, float]) -> None:
    pipe = Pipeline.load(defaults={"guidance_time": interval})
    peer = replace(peer_pipeline(load(SHIPPED_MODEL)), config=pipe.config)
    found = pipe("a red apple", steps=STEPS, guidance_scale=GUIDANCE, sampler="euler",
                 noise=noise, seed=3)
    latents = peer.standard_noise(found.parameters.height, found.parameters.width, 3)
    expected = peer.picture("a red apple", latents, noise, STEPS, GUIDANCE)
    assert expected.std() > 10, "an empty picture proves nothing"
    share = share_within_one(np.asarray(found.images[0]), expected)
    assert share >= SHARE_MIN, f"{share:.3%} of the pixels are within 1 of 255"


def controlled(unet: Any, net: Any, hint: np.ndarray, strength: float) -> Any:
    """diffusers' UNet with what a ControlNet gives, called as the UNet alone."""
    import torch

    def call(both: Any, step: Any, context: Any, return_dict: bool) -> Any:
        down, middle = net(both, step, context, torch.tensor(hint[None]).repeat(2, 1, 1, 1),
                           conditioning_scale=strength, return_dict=False)
        return unet(both, step, context, down_block_additional_residuals=down,
                    mid_block_additional_residual=middle, return_dict=return_dict)

    return call


def test_a_controlnet_steers_to_the_same_picture(tmp_path: Path) -> None:
    pipe, peer = Pipeline.load(), peer_pipeline(load(SHIPPED_MODEL))
    config = ControlNetConfig(pipe.config.denoiser, hint_channels=(8, 12, 16, 20, 24))
    net = peers.peer_controlnet(config).module
    net.save_pretrained(tmp_path)
    y, x = np.mgrid[:96, :160]
    picture = Image.fromarray((255 * (((x // 20) + (y // 20)) % 2)).astype(np.uint8))
    control = Control.load(tmp_path, picture, strength=0.3, edges=(100, 200))
    options = {"steps": STEPS, "guidance_scale": GUIDANCE, "sampler": "euler", "seed": 3}
    plain = np.asarray(pipe("a red apple", **options).images[0], int)
    result = pipe("a red apple", **options, controls=[control])
    found = np.asarray(result.images[0])
    height, width = result.parameters.height, result.parameters.width
    latents = peer.standard_noise(height, width, 3)
    hint = as_hint(picture, width, height, (100, 200))
    expected = replace(peer, unet=controlled(peer.unet, net, hint, 0.3)).picture(
        "a red apple", latents, "karras", STEPS, GUIDANCE)
    assert expected.std() > 10 and np.abs(expected - plain).mean() > 2
    assert share_within_one(found, expected) >= SHARE_MIN
    assert "ControlNet 0: \"Module: canny, " in result.texts[0]
