"""Euler's method and what is one change away from it; one evaluation a step."""

from __future__ import annotations

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
    for_flow_too,
    pairs,
)

GRADIENT_GAMMA = 2.0  # of Permenter & Yuan 2023, section 5


def euler(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
          levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Euler's method on the probability-flow equation dx/dsigma = (x - D) / sigma.

    EDM, algorithm 1 without its second-order correction. DDIM at eta 0 (Song et al. 2020,
    arXiv:2010.02502, equation 12) is the same in these variables.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        x = x + (x - denoised) * ((following - sigma) / sigma)
        yield SamplerStep(index, sigma, following, x, denoised)


def euler_a(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
            levels: NoiseLevels, eta: float = 1.0) -> Iterator[SamplerStep]:
    """Ancestral Euler: a step to below the next level, then fresh noise up to it.

    k-diffusion, `sample_euler_ancestral`; see `ancestral`.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        down, keep, up = ancestral(sigma, following, levels, eta)
        x = x + (x - denoised) * ((down - sigma) / sigma)
        if following > 0:
            x = x * keep + noise() * np.float32(up)
        yield SamplerStep(index, sigma, following, x, denoised)


@for_flow_too
def euler_cfgpp(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Euler with CFG++: the noise that is put back is that of the negative prompt.

    Chung et al. 2024 (arXiv:2406.08070), algorithm 2; wants guidance scales from 0 to 2.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised, negative = denoise.both(x, sigma)
        x = denoised + (x - negative) * (following / sigma)
        yield SamplerStep(index, sigma, following, x, denoised)


@for_flow_too
def euler_a_cfgpp(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                  levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Ancestral Euler with CFG++; ComfyUI, `euler_ancestral_cfg_pp`."""
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised, negative = denoise.both(x, sigma)
        down, _, up = ancestral(sigma, following, levels)
        x = denoised + (x - negative) * (down / sigma)
        if following > 0:
            x = x + noise() * np.float32(up)
        yield SamplerStep(index, sigma, following, x, denoised)


def gradient_estimation(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                        levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Euler with a direction that goes on as it changed: d + (gamma - 1) * (d - d before).

    Permenter & Yuan 2023 (arXiv:2306.04848), section 5, with its gamma of 2; the last step is
    Euler's, as in ComfyUI.
    """
    before = None
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        direction = used = (x - denoised) * (1 / sigma)
        if before is not None and following > 0:
            used = direction + (direction - before) * (GRADIENT_GAMMA - 1)
        x = x + used * (following - sigma)
        before = direction
        yield SamplerStep(index, sigma, following, x, denoised)


SAMPLERS = (
    Sampler("euler", "Euler", euler),
    Sampler("euler_a", "Euler a", euler_a, aliases=("euler_ancestral",), random=True,
            eta=1.0),
    Sampler("ddim", "DDIM", euler, aliases=("ddim_trailing",), schedule="ddim_uniform"),
    Sampler("euler_cfg++", "Euler CFG++", euler_cfgpp, needs_negative=True,
            aliases=("euler_cfg_pp", "ddim_cfg++", "ddim_cfgpp")),
    Sampler("euler_a_cfg++", "Euler a CFG++", euler_a_cfgpp, random=True, needs_negative=True,
            aliases=("euler_ancestral_cfg_pp", "euler_a_cfg_pp", "euler_ancestral_cfg++")),
    Sampler("gradient_estimation", "Gradient Estimation", gradient_estimation,
            aliases=("euler_ge",)),
)
