"""Multistep methods: the directions of several steps, one evaluation each.

All integrate a polynomial through the directions d = (x - D) / sigma of up to four steps from one
level to the next; they differ in its variable and in the spacing they assume. Order rises with the
first steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import Denoise, Floats, Noise, Sampler, SamplerStep, pairs

Weights = Callable[[Sequence[float], float], Sequence[float]]
"""(levels of the latest directions, the newest first; the next level) -> weight of each."""

ADAMS_BASHFORTH = ((1,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12),
                   (55 / 24, -59 / 24, 37 / 24, -9 / 24))
"""Weights of the latest directions for equal steps, the newest first, of orders 1 to 4."""


def lms(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
        levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Linear multistep of order 4: the polynomial is in sigma, whatever the spacing.

    k-diffusion, `sample_lms`. Of full order to the very end.
    """
    return _walk(denoise, x, sigmas, _in_sigma, order=4, euler_at_end=False)


def ipndm_v(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
            levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Adams-Bashforth of order 4 for uneven steps, with Euler's to 0.

    Zhang & Chen 2022 (arXiv:2204.13902), iPNDM, with the spacing as it is (ComfyUI, `ipndm_v`).
    """
    return _walk(denoise, x, sigmas, _in_sigma, order=4, euler_at_end=True)


def ipndm(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
          levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Adams-Bashforth of order 4 as if steps were even, with Euler's to 0.

    Zhang & Chen 2022 (arXiv:2204.13902), section 3.3, after Liu et al. 2022 (arXiv:2202.09778).
    """
    return _walk(denoise, x, sigmas, _as_if_even, order=4, euler_at_end=True)


def deis(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
         levels: NoiseLevels) -> Iterator[SamplerStep]:
    """The polynomial is in log sigma, of order 3; Euler's step to 0.

    Zhang & Chen 2022, "Fast sampling of diffusion models with exponential integrator"
    (arXiv:2204.13902), DEIS-rhoAB with log rho, as diffusers has it.
    """
    return _walk(denoise, x, sigmas, _in_log_sigma, order=3, euler_at_end=True)


def _walk(denoise: Denoise, x: Floats, sigmas: Sequence[float], weights: Weights, order: int,
          euler_at_end: bool) -> Iterator[SamplerStep]:
    known: list[tuple[float, Floats]] = []  # level and direction, the newest first
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        known = [(sigma, (x - denoised) * (1 / sigma)), *known][:order]
        used = known[:1] if euler_at_end and following == 0 else known
        factors = weights([level for level, _ in used], following)
        for factor, (_, direction) in zip(factors, used, strict=True):
            x = x + direction * float(factor)
        yield SamplerStep(index, sigma, following, x, denoised)


def _as_if_even(levels: Sequence[float], following: float) -> Sequence[float]:
    return [weight * (following - levels[0]) for weight in ADAMS_BASHFORTH[len(levels) - 1]]


def _in_sigma(levels: Sequence[float], following: float) -> Sequence[float]:
    """The integral of v^m over the step is 1 / (m + 1) for v in widths of it."""
    width = following - levels[0]
    places = [(level - levels[0]) / width for level in levels]
    return _quadrature(places, [width / (m + 1) for m in range(len(levels))])


def _in_log_sigma(levels: Sequence[float], following: float) -> Sequence[float]:
    """The integrals of v^m over the step, for v = log(sigma / level): by parts, one by one."""
    sigma, places = levels[0], [math.log(level / levels[0]) for level in levels]
    moments = [following - sigma]
    end = math.log(following / sigma) if following > 0 else 0.0
    for m in range(1, len(levels)):
        moments.append(following * end**m - m * moments[-1])
    return _quadrature(places, moments)


def _quadrature(places: Sequence[float], moments: Sequence[float]) -> Sequence[float]:
    """Weights with which values at `places` integrate every polynomial through them exactly."""
    return np.linalg.solve(np.vander(places, increasing=True).T, moments).tolist()


SAMPLERS = (
    Sampler("lms", "LMS", lms),
    Sampler("ipndm", "IPNDM", ipndm, schedule="simple"),  # of steps that grow slowly
    Sampler("ipndm_v", "IPNDM V", ipndm_v),
    Sampler("deis", "DEIS", deis),
)
