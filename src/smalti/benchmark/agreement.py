"""How far results are from those of a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the Euclidean norm. Raises ValueError for other shapes.

    >>> relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    """
    if found.shape != expected.shape:
        raise ValueError(f"{found.shape} instead of {expected.shape}")
    difference = np.linalg.norm((found.astype(np.float64) - expected).ravel())
    return float(difference / np.linalg.norm(expected.astype(np.float64).ravel()))


def largest_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest relative error of several results."""
    return max(relative_error(a, b) for a, b in zip(found, expected, strict=True))


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    """Peak signal to noise ratio in dB of pictures in [-1, 1]; what is beyond is clipped.

    >>> round(psnr(np.full((3, 8, 8), 0.02), np.zeros((3, 8, 8))))
    40
    """
    difference = np.clip(found, -1.0, 1.0).astype(np.float64) - np.clip(expected, -1.0, 1.0)
    error = float(np.mean(difference ** 2))
    return math.inf if error == 0 else 10 * math.log10(4 / error)
