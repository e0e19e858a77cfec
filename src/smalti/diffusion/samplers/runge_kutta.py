"""Second-order steps of two evaluations each, after EDM's algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import (
    Denoise,
    Floats,
    Noise,
    Sampler,
    SamplerStep,
    ancestral,
    pairs,
)


def heun(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
         levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Heun's method: the mean of the directions at both ends of a step. EDM, algorithm 1."""
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        direction = (x - denoised) * (1 / sigma)
        if following > 0:
            end = x + direction * (following - sigma)
            direction = (direction + (end - denoise(end, following)) * (1 / following)) * 0.5
        x = x + direction * (following - sigma)
        yield SamplerStep(index, sigma, following, x, denoised)


def dpm2(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
         levels: NoiseLevels) -> Iterator[SamplerStep]:
    """The direction halfway in log sigma, after DPM-Solver-2 of Lu et al. 2022 (arXiv:2206.00927).

    k-diffusion, `sample_dpm_2`.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        x = _midpoint(denoise, x, denoised, sigma, following)
        yield SamplerStep(index, sigma, following, x, denoised)


def dpm2_a(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
           levels: NoiseLevels, eta: float = 1.0) -> Iterator[SamplerStep]:
    """`dpm2` to below the next level, then noise; k-diffusion, `sample_dpm_2_ancestral`."""
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        down, keep, up = ancestral(sigma, following, levels, eta)
        x = _midpoint(denoise, x, denoised, sigma, down)
        if following > 0:
            x = x * keep + noise() * np.float32(up)
        yield SamplerStep(index, sigma, following, x, denoised)


def _midpoint(denoise: Denoise, x: Floats, denoised: Floats, sigma: float,
              following: float) -> Floats:
    """x at level `following`; the step to 0 is Euler's."""
    direction = (x - denoised) * (1 / sigma)
    if following > 0:
        middle = math.sqrt(sigma * following)
        halfway = x + direction * (middle - sigma)
        direction = (halfway - denoise(halfway, middle)) * (1 / middle)
    return x + direction * (following - sigma)


SAMPLERS = (
    Sampler("heun", "Heun", heun, evaluations=2),
    Sampler("dpm2", "DPM2", dpm2, aliases=("dpm_2",), schedule="karras", evaluations=2,
            drops_penultimate=True),
    Sampler("dpm2_a", "DPM2 a", dpm2_a, aliases=("dpm_2_ancestral", "dpm2_ancestral"),
            schedule="karras", random=True, evaluations=2, drops_penultimate=True, eta=1.0),
)
