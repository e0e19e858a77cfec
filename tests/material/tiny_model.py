"""A model of the SD 1.x family that is small enough to run in a test, and files of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.families.expected import expected_tensors
from smalti.models.config import ClipTextConfig, ModelConfig, UNetConfig, VaeConfig

TINY = ModelConfig(
    "sd1",
    texts={"clip_l": ClipTextConfig(vocab_size=49408, hidden_size=16, intermediate_size=32,
                                    layers=1, heads=2, positions=77)},
    denoiser=UNetConfig(in_channels=4, out_channels=4, block_channels=(16, 32), res_blocks=1,
                        attention=(False, True), heads=2, head_dim=None, transformer_depth=(0, 1),
                        context_dim=16, norm_groups=8),
    vae=VaeConfig(16, (16, 16), res_blocks=1, z_channels=4, norm_groups=8),
    default_width=16, default_height=16, default_steps=3, default_guidance=3.0,
)
"""Sides are multiples of 4 pixels: the autoencoder halves once, the UNet once."""

METADATA = {"arch_config": json.dumps({
    "text": {"num_attention_heads": 2},
    "unet": {"num_heads": 2, "norm_num_groups": 8},
    "vae": {"norm_num_groups": 8},
    "default": {"width": 16, "height": 16, "steps": 3, "cfg_scale": 3.0},
})}


def tiny_weights() -> dict[str, np.ndarray]:
    """Seeded numbers that keep signals at a size of one, by the names of a single file."""
    random, weights = np.random.default_rng(0), {}
    for name, shape in expected_tensors(TINY).items():
        noise = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            noise = np.float32(0.1) * noise + np.float32(name.endswith("weight"))
        else:
            noise /= np.float32(np.prod(shape[1:]) ** 0.5)
        weights[name] = noise.astype(np.float16)
    return weights


def write_model(path: Path, weights: dict[str, np.ndarray]) -> Path:
    """The weights as a single file that states what shapes do not tell."""
    save_file(weights, path, METADATA)
    return path
