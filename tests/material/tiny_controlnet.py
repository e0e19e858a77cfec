"""A ControlNet for the tiny model, as a folder of diffusers."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file
from tiny_model import TINY

from smalti.benchmark.weights import seeded
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
