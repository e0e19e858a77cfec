"""Shifts of the noise levels of flow models that follow from the size of the picture."""

from __future__ import annotations

import math
from collections.abc import Callable

from smalti.dataclass import dataclass

TOKEN_PIXELS = 16
"""Side in pixels of what all published models of this kind make one token of."""

Shift = Callable[[int, int, int], float]
"""(width, height in pixels, steps from noise to picture) -> the shift."""


@dataclass(frozen=True)
class ExponentialShift:
    """The shift e^mu, with mu linear in the number of tokens between two points (tokens, mu), and
    beyond them, whatever the steps.

    >>> qwen = ExponentialShift((256, 0.5), (8192, 0.9))
    >>> round(math.log(qwen(1024, 1024, 40)), 6)
    0.693548
    """

    least: tuple[int, float]
    most: tuple[int, float]

    def __call__(self, width: int, height: int, steps: int) -> float:
        (low, mu_low), (high, mu_high) = self.least, self.most
        tokens = _tokens(width, height)
        return math.exp(mu_low + (tokens - low) / (high - low) * (mu_high - mu_low))


def _tokens(width: int, height: int) -> int:
    return (width // TOKEN_PIXELS) * (height // TOKEN_PIXELS)


FEW, MANY = 10, 200
"""Steps for which mu of FLUX.2 was fitted, each with a line in the number of tokens."""
FEW_SLOPE, FEW_START = 8.73809524e-05, 1.89833333
MANY_SLOPE, MANY_START = 0.00016927, 0.45666666
TOKENS_LARGE = 4300
"""Tokens above which the line of many steps holds for all."""


def flux2_shift(width: int, height: int, steps: int) -> float:
    """Of FLUX.2: Black Forest Labs' reference, `compute_empirical_mu`. Between and beyond the two
    numbers of steps mu is linear in them.

    >>> [round(math.log(flux2_shift(1024, 1024, steps)), 5) for steps in (4, 50)]
    [2.29118, 2.02335]
    """
    tokens = _tokens(width, height)
    few, many = FEW_SLOPE * tokens + FEW_START, MANY_SLOPE * tokens + MANY_START
    if tokens > TOKENS_LARGE:
        return math.exp(many)
    return math.exp(many + (steps - MANY) * (many - few) / (MANY - FEW))


flux_shift = ExponentialShift((256, 0.5), (4096, 1.15))
"""Of Flux dev: Black Forest Labs' reference, `get_schedule`."""
