"""Adapters of random numbers for the tiny models, of all layers of denoiser and text encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.checkpoint import Checkpoint
from smalti.checkpoint.adapters import AdapterFile
from smalti.families import text_encoders
from smalti.families.expected import expected_tensors
from smalti.families.prefixes import UNET
from smalti.models.config import ModelConfig

RANK = 2
KOHYA = ("lora_down.weight", "lora_up.weight")
"""What kohya's trainers, and those of Lightning, call the two matrices of a layer."""


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


def pair(module: str, rows: int, width: int, down: str = "lora_A.weight",
         up: str = "lora_B.weight") -> dict[str, np.ndarray]:
    """A LoRA of one layer, as diffusers and others name its matrices."""
    random = np.random.default_rng(rows)
    return {f"{module}.{down}": random.standard_normal((RANK, width), np.float32),
            f"{module}.{up}": random.standard_normal((rows, RANK), np.float32)}


def applied(folder: Path, model: Checkpoint,
            stored: Mapping[str, np.ndarray]) -> tuple[int, list[str], str]:
    """How many tensors of an adapter are applied, those that are named as left out, and what it is
    for."""
    save_file(dict(stored), folder / "a.safetensors")
    adapter = AdapterFile.open(folder / "a.safetensors")
    fit = adapter.fit(expected_tensors(model.config), "model.safetensors")
    return fit.applied, [name for name, _ in fit.unused], adapter.kind.words
