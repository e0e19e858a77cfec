"""Shifts of the noise levels of flow models that follow from the size of the picture."""

from __future__ import annotations

import math
from collections.abc import Callable

TOKEN_PIXELS = 16
"""Side in pixels of what all published models of this kind make one token of."""


def exponential_shift(least: tuple[int, float],
                      most: tuple[int, float]) -> Callable[[int, int], float]:
    """From width and height in pixels to the shift e^mu, with mu linear in the number of tokens
    between two points (tokens, mu), and beyond them.

    >>> qwen = exponential_shift((256, 0.5), (8192, 0.9))
    >>> round(math.log(qwen(1024, 1024)), 6)
    0.693548
    """
    (low, mu_low), (high, mu_high) = least, most

    def shift(width: int, height: int) -> float:
        tokens = (width // TOKEN_PIXELS) * (height // TOKEN_PIXELS)
        return math.exp(mu_low + (tokens - low) / (high - low) * (mu_high - mu_low))

    return shift


flux_shift = exponential_shift((256, 0.5), (4096, 1.15))
"""Of Flux dev: Black Forest Labs' reference, `get_schedule`."""
