"""Write a full-size Stable Diffusion 1.5 checkpoint with seeded random weights.

    python bench/make_checkpoint.py sd15.safetensors

Names, shapes and size (2.1 GB in f16) are those of the published file, the numbers are not: they
keep signals at a size of about one, so that errors are seen and nothing overflows. For measuring
time, memory and agreement with other libraries this is as good as the published weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.checkpoint.expected import Shape, expected_tensors
from smalti.models import SD15

GAIN = 0.9
"""Of each product, relative to what would keep the variance: sums with shortcuts grow slowly."""
OFFSET = 0.02
"""Standard deviation of biases, and of the scales of norms around one."""


def weights(rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
    """Random numbers for one tensor: products keep the variance, norms are close to identity."""
    numbers = rng.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return (numbers * (GAIN / math.sqrt(math.prod(shape[1:])))).astype(np.float16)
    return (numbers * OFFSET + name.endswith(".weight")).astype(np.float16)


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    table = expected_tensors(SD15)
    save_file({name: weights(rng, name, shape) for name, shape in table.items()}, given.output)
    count = sum(math.prod(shape) for shape in table.values())
    print(f"{given.output}: {len(table)} tensors, {count / 1e6:.0f} million numbers, seed "
          f"{given.seed}")


if __name__ == "__main__":
    main()
