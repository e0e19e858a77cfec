"""A LoRA on a full-size SD 1.5: seconds to switch it on, to change its weight and to take it off.

    python bench/lora.py sd15.safetensors lora.safetensors    # writes a LoRA of random numbers
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.benchmark.table import Row
from smalti.benchmark.turns import in_fresh_process
from smalti.checkpoint import Checkpoint, load
from smalti.checkpoint.adapters import AdapterFile, WeightedAdapter
from smalti.checkpoint.tensors import held_as
from smalti.compiler.module import Module
from smalti.diffusion.submodels import Submodels
from smalti.families.prefixes import TEXT, UNET
from smalti.runtime.recipe import Recipe

RANK, ALPHA, BLOCKS_A_LEVEL = 16, 8, 3
SHAPES = {"text": (2, 1), "unet": (2, 64, 64, 77)}
"""Prompt and negative prompt, the last state of CLIP, at 512x512."""
STEPS = 3


def random_lora(checkpoint: Checkpoint, path: Path) -> None:
    """Write a LoRA in kohya's spelling: of all linear layers and 1x1 convolutions of the UNet's
    transformers, which are those that his trainer takes, and of the text encoder's."""
    from smalti.families.unet import diffusers_unet_path

    rng, tensors = np.random.default_rng(0), {}
    for name in checkpoint.names():
        layer, shape = name.removesuffix(".weight"), checkpoint.shape(name)
        inner = any(f".{part}" in layer for part in ("attn1.", "attn2.", "ff.", "proj_"))
        if name.startswith(UNET) and inner and len(shape) > 1:
            path_there = diffusers_unet_path(layer.removeprefix(UNET), BLOCKS_A_LEVEL)
            module = f"lora_unet_{path_there}".replace(".", "_")
        elif name.startswith(f"{TEXT}encoder.layers.") and len(shape) > 1:
            module = f"lora_te_text_model_{layer.removeprefix(TEXT)}".replace(".", "_")
        else:
            continue
        ones = (1,) * (len(shape) - 2)
        down = rng.standard_normal((RANK, shape[1], *ones), np.float32) / shape[1] ** 0.5
        up = rng.standard_normal((shape[0], RANK, *ones), np.float32) / 10
        tensors[f"{module}.lora_down.weight"] = down.astype(np.float16)
        tensors[f"{module}.lora_up.weight"] = up.astype(np.float16)
        tensors[f"{module}.alpha"] = np.array(ALPHA, np.float16)
    save_file(tensors, path)


def lora_seconds(path: Path, adapter: Path,
                 threads: int) -> tuple[float, list[float], float, str]:
    """Seconds of a step; of switching on, changing the weight and switching off; of compiling in
    these; and what is used.

    Raises RuntimeError when anything is compiled for a model without weights of 4 bits.
    """
    opened = load(path)
    parts = Submodels(opened, threads=threads)
    for part, shape in SHAPES.items():
        parts.bound(part, shape)
    rng = np.random.default_rng(1)
    inputs = {"latent": rng.standard_normal((2, 4, 64, 64), np.float32),
              "timesteps": np.full(2, 500, np.float32),
              "context": rng.standard_normal((2, 77, 768), np.float32)}
    steps = []
    for _ in range(STEPS):
        started = time.perf_counter()
        parts.run("unet", SHAPES["unet"], **inputs)
        steps.append(time.perf_counter() - started)
    held = {held_as(opened.dtype(name)) for name in opened.names()}
    took, compiling, module = [], [], Recipe.module

    def timed(*given: object) -> Module:
        if not any(dtype and dtype.startswith("q4") for dtype in held):
            raise RuntimeError("a program is compiled")
        started = time.perf_counter()
        made = module(*given)
        compiling.append(time.perf_counter() - started)
        return made

    Recipe.module = timed
    for uses in ((1.0,), (0.5,), ()):
        started = time.perf_counter()
        parts = parts.using(parts.adapted(
            [WeightedAdapter(AdapterFile.open(adapter), weight) for weight in uses]))
        if uses:
            used = str(parts.weights.fits[0])
        for part, shape in SHAPES.items():
            parts.bound(part, shape)
        took.append(time.perf_counter() - started)
    return min(steps), took, sum(compiling), used


def lora_row(path: Path, threads: int) -> Row:
    """A LoRA comes, is changed and goes, in one process; the slowest of the three counts."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder) / "lora.safetensors"
        random_lora(load(path), adapter)
        step, (on, changed, off), compiling, used = in_fresh_process(
            lora_seconds, path, adapter, threads)
    return Row.at_most(
        f"LoRA of rank {RANK} on UNet and text encoder: on, another weight, off",
        round(step, 3), max(on, changed, off), " s",
        f"on {on:.2f} s, another weight {changed:.2f} s, off {off:.2f} s, of these "
        f"{compiling:.2f} s to compile; a step {step:.2f} s; {used}")


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    random_lora(load(given.checkpoint), given.output)


if __name__ == "__main__":
    main()
