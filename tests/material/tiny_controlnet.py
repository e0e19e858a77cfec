"""A ControlNet for the tiny model, as a folder of diffusers; what any of them does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file
from tiny_model import TINY

from smalti import Control, Pipeline
from smalti.benchmark.weights import seeded
from smalti.checkpoint import Companion
from smalti.models import ControlNetConfig, controlnet_graph


def write_controlnet(folder: Path) -> Path:
    """Write it; the folder."""
    folder.mkdir(parents=True)
    graph = controlnet_graph(ControlNetConfig(TINY.denoiser, hint_channels=(4, 8)), 1, 2, 2)
    save_file({name: seeded(name, value.shape) for name, value in graph.parameters.items()},
              folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps(
        {"norm_num_groups": 8, "attention_head_dim": 2, "block_out_channels": [16, 32]}))
    return folder


def check_steering(pipe: Pipeline, side: int, picture: Image.Image, nets: Iterable[Companion]
                   ) -> None:
    """A net of no strength changes nothing, each one of some strength a picture of `side` pixels in
    its own way, and all together in another."""
    nets = list(nets)

    def made(*controls: Control) -> np.ndarray:
        return np.asarray(pipe("a red apple", width=side, height=side, steps=2, seed=7,
                               controls=controls).images[0], np.float64)

    plain = made()
    assert np.abs(made(Control(nets[0], picture, 0.0)) - plain).max() <= 1
    alone = [made(Control(net, picture, 0.5)) for net in nets]
    pictures = [plain, *alone, made(*(Control(net, picture, 0.5) for net in nets))]
    for number, one in enumerate(pictures):
        assert all(np.abs(one - other).mean() > 0.1 for other in pictures[:number])
