"""Seeded numbers for the parameters of any model: no file, and the same for every engine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

NEAR_ONE = ("weight", "scale", "running_var")
"""Endings of one-dimensional parameters that are about one, as they multiply."""
SPREAD = 0.1
"""Standard deviation of one-dimensional parameters (biases, scales of norms): so little beside 1
that signals keep their size through many layers."""


def seeded(name: str, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """f32 of `shape` that keep signals at a size of one, drawn from `name` and `seed` alone.

    Matrices and windows are uniform with variance 1 / (elements of a row).

    >>> weight = seeded("to_q.weight", (64, 320))
    >>> weight.shape, weight.dtype, round(float(weight.var()) * 320, 1)
    ((64, 320), dtype('float32'), 1.0)
    >>> bool((seeded("norm.weight", (64,)) > 0.5).all())
    True
    """
    random = np.random.Generator(np.random.SFC64((zlib.crc32(name.encode()), seed)))
    values = random.random(tuple(shape), np.float32)
    values -= np.float32(0.5)
    deviation = SPREAD if len(shape) == 1 else 1 / math.sqrt(math.prod(shape[1:]))
    values *= np.float32(deviation * math.sqrt(12))
    if len(shape) == 1 and name.endswith(NEAR_ONE):
        values += np.float32(1)
    return values
