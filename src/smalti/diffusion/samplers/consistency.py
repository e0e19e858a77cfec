"""Samplers for models distilled to a few steps: to the estimate, and from it to the next level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import Denoise, Floats, Noise, Sampler, SamplerStep, pairs

TCD_GAMMA = 0.3  # the value that Zheng et al. 2024 recommend


def lcm(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
        levels: NoiseLevels) -> Iterator[SamplerStep]:
    """The estimate with wholly new noise. Luo et al. 2023, latent consistency models
    (arXiv:2310.04378), after Song et al. 2023 (arXiv:2303.01469), algorithm 1."""
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = x = denoise(x, sigma)
        if following > 0:
            x = levels.noised(denoised, noise(), following)
        yield SamplerStep(index, sigma, following, x, denoised)


def tcd(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
        levels: NoiseLevels, eta: float = TCD_GAMMA) -> Iterator[SamplerStep]:
    """Back along the trajectory to below the next level, then new noise up to it.

    Zheng et al. 2024, "Trajectory consistency distillation" (arXiv:2402.19159), algorithm 4: below
    is the training step (1 - gamma) times that of the next level. Their gamma is the `eta` of
    diffusers: 0 draws no noise, 1 goes all the way down as `lcm` does; less shows more detail.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = x_next = denoise(x, sigma)
        if following > 0:
            timestep = round(float(levels.timestep(following)))
            down = float(levels.sigma(math.floor((1 - eta) * timestep)))
            estimated_noise = (x - denoised * np.float32(levels.alpha(sigma))) * np.float32(
                1 / sigma)
            keep = levels.alpha(following) / levels.alpha(down)
            up = math.sqrt(max(0.0, following**2 - (keep * down) ** 2))
            x_next = levels.noised(denoised, estimated_noise, down) * np.float32(keep)
            x_next = x_next + noise() * np.float32(up)
        x = x_next
        yield SamplerStep(index, sigma, following, x, denoised)


SAMPLERS = (
    Sampler("lcm", "LCM", lcm, schedule="lcm", random=True),
    Sampler("tcd", "TCD", tcd, schedule="lcm", random=True, eta=TCD_GAMMA),
)
