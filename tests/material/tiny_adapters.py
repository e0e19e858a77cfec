"""Adapters of random numbers for the tiny models, of all layers of denoiser and text encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.families import text_encoders
from smalti.families.expected import expected_tensors
from smalti.families.prefixes import UNET
from smalti.models.config import ModelConfig

RANK = 2


def write_adapter(path: Path, config: ModelConfig, seed: int = 0) -> Path:
    """A LoRA of all weights, with differences of biases and norms; embeddings are left alone."""
    rng, tensors = np.random.default_rng(seed), {}
    parts = {UNET: "diffusion_model.", **{
        encoder.inside: f"text_encoders.{name}.transformer."
        for name, encoder in text_encoders().items()}}
    for name, shape in expected_tensors(config).items():
        prefix = next((prefix for prefix in parts if name.startswith(prefix)), None)
        layer, _, leaf = name.rpartition(".")
        if prefix is None or "embed" in name.removeprefix(prefix) or "shared" in name or (
                leaf not in ("weight", "bias")) or "relative" in name:
            continue
        module = parts[prefix] + layer.removeprefix(prefix)
        if leaf == "bias":
            tensors[f"{module}.diff_b"] = rng.standard_normal(shape, np.float32) / 10
        elif len(shape) == 1:
            tensors[f"{module}.w_norm"] = rng.standard_normal(shape, np.float32) / 10
        else:
            ones = (1,) * (len(shape) - 2)
            tensors[f"{module}.lora_up.weight"] = rng.standard_normal(
                (shape[0], RANK, *ones), np.float32) / 10
            tensors[f"{module}.lora_down.weight"] = rng.standard_normal(
                (RANK, *shape[1:]), np.float32) / 3
    save_file(tensors, path)
    return path
