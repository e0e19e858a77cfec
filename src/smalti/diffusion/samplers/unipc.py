"""UniPC: a multistep predictor, and a corrector that costs no evaluation.

Zhao et al. 2023, "UniPC: a unified predictor-corrector framework" (arXiv:2302.04867), for
estimates of the clean latents, with t = -log sigma and order 3, lower at both ends. The estimate at
a level corrects the step that led there, and predicts the next one. bh1 and bh2 are its functions
B(h) = h and e^h - 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import Denoise, Floats, Noise, Sampler, SamplerStep, pairs

ORDER = 3  # estimates that a step is made from, where there are so many


def uni_pc(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
           levels: NoiseLevels) -> Iterator[SamplerStep]:
    """UniPC with B(h) = h."""
    return _walk(denoise, x, sigmas, bh2=False)


def uni_pc_bh2(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
               levels: NoiseLevels) -> Iterator[SamplerStep]:
    """UniPC with B(h) = e^h - 1."""
    return _walk(denoise, x, sigmas, bh2=True)


@dataclass(frozen=True)
class _Stretch:
    """A step from (sigma, x), with estimates at it and before, the newest first."""

    sigma: float
    following: float
    x: Floats
    known: list[tuple[float, Floats]]  # level and estimate; as many as the order
    bh2: bool

    def predicted(self) -> Floats:
        """Latents at `following`."""
        return self._sum()

    def corrected(self, estimate: Floats) -> Floats:
        """Latents at `following`, now that there is an estimate at it."""
        return self._sum(estimate)

    def _sum(self, end: Floats | None = None) -> Floats:
        """The step with constant estimate, and the weighted differences from it."""
        width = math.log(self.sigma / self.following)
        share = self.following / self.sigma
        newest = self.known[0][1]
        x = self.x * share + newest * (1 - share)
        places = [-math.log(level / self.sigma) / width for level, _ in self.known[1:]]
        others = [estimate for _, estimate in self.known[1:]]
        if end is not None:
            places, others = [*places, 1.0], [*others, end]
        scale = math.expm1(-width) if self.bh2 else -width
        weights = _weights(places, -width, scale)
        for place, weight, other in zip(places, weights, others, strict=True):
            x = x - (other - newest) * float(scale * weight / place)
        return x


def _weights(places: Sequence[float], width: float, scale: float) -> Sequence[float]:
    """What meets the order conditions: sum of weight * place^(m - 1) is b_m, m = 1, 2, ...

    Places are in widths of the step; a single one has the weight 1/2, as the authors have it.
    """
    if len(places) < 2:
        return [0.5] * len(places)
    phi, factorial, targets = math.expm1(width) / width - 1, 1, []
    for order in range(1, len(places) + 1):
        factorial *= order
        targets.append(phi * factorial / scale)
        phi = phi / width - 1 / (factorial * (order + 1))
    return np.linalg.solve(np.vander(places, increasing=True).T, targets).tolist()


def _walk(denoise: Denoise, x: Floats, sigmas: Sequence[float], bh2: bool) -> Iterator[SamplerStep]:
    known: list[tuple[float, Floats]] = []
    stretch = None
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        if stretch is not None:
            x = stretch.corrected(denoised)
        known = [(sigma, denoised), *known][:ORDER]
        if following == 0:
            x = denoised
        else:
            order = min(len(known), len(sigmas) - 1 - index)
            stretch = _Stretch(sigma, following, x, known[:order], bh2)
            x = stretch.predicted()
        yield SamplerStep(index, sigma, following, x, denoised)


SAMPLERS = (
    Sampler("uni_pc", "UniPC", uni_pc, aliases=("unipc", "uni_pc_bh1"), drops_penultimate=True),
    Sampler("uni_pc_bh2", "UniPC BH2", uni_pc_bh2, aliases=("unipc_bh2",), drops_penultimate=True),
)
