"""Evaluations of a network that are left out where the picture hardly changes from step to step.

After Zhou et al. 2025, "EasyCache", arXiv:2507.02860: how fast the result changes is measured at
the evaluations that are done; as long as the change that this foretells stays below a threshold,
the last one is used again. What is kept here is the estimate of the clean latents, and change is
measured along log sigma: so fresh noise of samplers does not count as change, and a network may
predict whatever it does.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.network import PictureNetwork
from smalti.diffusion.samplers.walk import Denoise

Floats = np.ndarray
START, END = 0.15, 0.95
"""Shares of the steps between which evaluations may be left out: the first ones lay out the
picture, the last ones finish it, and both change it most; EasyCache keeps some at both ends."""


SMALLEST = float(np.finfo(np.float32).tiny)
"""What a size is at least that is divided by: the smallest normal f32."""


@dataclass
class Saved:
    """What was left out: `skipped` of so many `evaluations` of a picture, and the largest `error`
    that was foretold, as a share of the estimate's size."""

    evaluations: int = 0
    skipped: int = 0
    error: float = 0.0


@dataclass
class _Kept:
    """The last evaluations of a picture: estimates with and without guidance, log sigma, and how
    fast they change, relative to their size."""

    estimates: tuple[Floats, Floats]
    place: float
    rate: float = math.inf


@dataclass
class Cached:
    """`denoise` that leaves out evaluations whose result is foretold to differ by less than
    `threshold`, picture by picture; `share` is the share of the steps that are done.

    What it does to a picture does not depend on the others of its batch.
    """

    denoise: Denoise
    network: PictureNetwork
    threshold: float
    saved: Saved = field(default_factory=Saved)
    share: float = 0.0
    _kept: dict[int, _Kept] = field(default_factory=dict)

    def __call__(self, x: Floats, sigma: float) -> Floats:
        return self.both(x, sigma)[0]

    def both(self, x: Floats, sigma: float) -> tuple[Floats, Floats]:
        """With guidance, and for the negative prompt alone."""
        place = math.log(sigma)
        errors = [self._foretold(picture, place) for picture in range(len(x))]
        needed = [error >= self.threshold for error in errors]
        self.saved.evaluations += len(x)
        self.saved.skipped += needed.count(False)
        self.saved.error = max([self.saved.error,
                                *(error for error in errors if error < self.threshold)])
        if any(needed):
            with self.network.only(needed):
                found = self.denoise.both(x, sigma)
            for picture in np.flatnonzero(needed):
                self._keep(int(picture), (found[0][picture], found[1][picture]), place)
        kept = [self._kept[picture].estimates for picture in range(len(x))]
        return np.stack([each[0] for each in kept]), np.stack([each[1] for each in kept])

    def go_on(self, network: PictureNetwork) -> None:
        """Go on with another network, of which nothing is known yet."""
        self.network = network
        self._kept.clear()

    def _foretold(self, picture: int, place: float) -> float:
        """The change since the last evaluation, as a share of the estimate's size."""
        if picture not in self._kept or not START <= self.share < END:
            return math.inf
        kept = self._kept[picture]
        if place == kept.place:  # for other latents, as Heun's method asks
            return math.inf
        return kept.rate * abs(place - kept.place)

    def _keep(self, picture: int, estimates: tuple[Floats, Floats], place: float) -> None:
        before = self._kept.get(picture)
        rate = math.inf if before is None else before.rate
        if before is not None and place != before.place:
            change = np.abs(estimates[0] - before.estimates[0]).mean()
            size = max(float(np.abs(estimates[0]).mean()), SMALLEST)
            rate = float(change) / size / abs(place - before.place)
        self._kept[picture] = _Kept(estimates, place, rate)
