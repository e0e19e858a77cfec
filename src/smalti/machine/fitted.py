"""What calibration finds for one family of kernels: constants of the model, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

NEIGHBOURS = 5
SHRINKAGE = 0.5
"""Weight of "no correction" beside the neighbours, whose own weights are at most 1 / NEARNESS."""
NEARNESS = 0.3
CORRECTION_MAX = float(np.log(2.0))


@dataclass(frozen=True)
class Residual:
    """A bounded factor, from what the model missed at the nearest measured sizes.

    `places` [samples, features] are logarithms of sizes; `misses` [samples] are logarithms of
    measured over predicted time. Far from every sample the factor is 1.
    """

    places: np.ndarray
    misses: np.ndarray

    def factor(self, places: np.ndarray) -> np.ndarray:
        """What to multiply predictions at `places` [n, features] by: [n]."""
        distance = ((places[:, None] - self.places[None]) ** 2).sum(-1)
        count = min(NEIGHBOURS, len(self.misses))
        nearest = np.argpartition(distance, count - 1, axis=1)[:, :count]
        weight = 1 / (np.take_along_axis(distance, nearest, 1) + NEARNESS)
        miss = (weight * self.misses[nearest]).sum(1) / (weight.sum(1) + SHRINKAGE)
        return np.exp(np.clip(miss, -CORRECTION_MAX, CORRECTION_MAX))


@dataclass(frozen=True)
class Fitted:
    """Constants by name, as fitted, and the residual where it was found to help."""

    constants: Mapping[str, float]
    residual: Residual | None = None
