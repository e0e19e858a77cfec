"""DPM-Solver++ and its relatives: exact in x, a polynomial in t = -log sigma for the estimate.

For a constant estimate D the step is x' = (sigma' / sigma) x + (1 - sigma' / sigma) D; higher order
comes from how D changes with t. Lu et al. 2022 (arXiv:2211.01095). The last step is of first order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import (
    FLOW_SIGMA_MAX,
    Denoise,
    Floats,
    Noise,
    Sampler,
    SamplerStep,
    ancestral,
    for_flow_too,
    log_step,
    pairs,
)


def dpmpp_2m(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
             levels: NoiseLevels) -> Iterator[SamplerStep]:
    """DPM-Solver++(2M): second order from two estimates, one evaluation a step.

    Lu et al. 2022, algorithm 2; k-diffusion, `sample_dpmpp_2m`.
    """
    previous, width_before = None, 0.0
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        estimate = denoised
        width = log_step(sigma, following)
        if previous is not None and following > 0:
            extra = width / (2 * width_before)  # 1 / 2r
            estimate = denoised * (1 + extra) - previous * extra
        x = x * (following / sigma) - estimate * math.expm1(-width)
        previous, width_before = denoised, width
        yield SamplerStep(index, sigma, following, x, denoised)


@for_flow_too
def dpmpp_2m_cfgpp(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                   levels: NoiseLevels) -> Iterator[SamplerStep]:
    """DPM-Solver++(2M) with CFG++: the noise that is put back is that of the negative prompt.

    Chung et al. 2024 (arXiv:2406.08070), algorithm 5; ComfyUI, `dpmpp_2m_cfg_pp`.
    """
    previous, width_before = None, 0.0
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised, negative = denoise.both(x, sigma)
        width = log_step(sigma, following)
        x = denoised + (x - negative) * (following / sigma)
        if previous is not None and following > 0:
            extra = width / (2 * width_before)
            x = x - (denoised - previous) * (math.expm1(-width) * extra)
        previous, width_before = negative, width
        yield SamplerStep(index, sigma, following, x, denoised)


def res_multistep(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                  levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Refined exponential solver: as 2M, with the change of the estimate integrated exactly.

    Zhang et al. 2023 (arXiv:2308.02157), the multistep form as in ComfyUI and NVIDIA's Cosmos.
    """
    previous, width_before = None, 0.0
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        width = log_step(sigma, following)
        x = x * (following / sigma) - denoised * math.expm1(-width)
        if previous is not None and following > 0:
            extra = (width + math.expm1(-width)) / width_before  # h phi_2(-h) / r
            x = x + (denoised - previous) * extra
        previous, width_before = denoised, width
        yield SamplerStep(index, sigma, following, x, denoised)


def dpmpp_2s_a(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
               levels: NoiseLevels, eta: float = 1.0) -> Iterator[SamplerStep]:
    """DPM-Solver++(2S) with ancestral noise: the estimate is that of the middle of a step.

    Lu et al. 2022, algorithm 1 with r = 1/2; k-diffusion, `sample_dpmpp_2s_ancestral`.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        down, keep, up = ancestral(sigma, following, levels, eta)
        estimate = denoised
        if down > 0:
            middle = _middle(sigma, down, levels)
            share = middle / sigma
            estimate = denoise(x * share + denoised * (1 - share), middle)
        x = x * (down / sigma) + estimate * (1 - down / sigma)
        if following > 0:
            x = x * keep + noise() * np.float32(up)
        yield SamplerStep(index, sigma, following, x, denoised)


def _middle(sigma: float, following: float, levels: NoiseLevels) -> float:
    """The level halfway in the logarithm of noise over clean latents."""
    if not levels.flow:
        return math.sqrt(sigma * following)
    if sigma >= 1:
        return FLOW_SIGMA_MAX
    odds = math.sqrt(sigma / (1 - sigma) * following / (1 - following))
    return odds / (1 + odds)


SAMPLERS = (
    Sampler("dpm++_2m", "DPM++ 2M", dpmpp_2m, schedule="karras",
            aliases=("dpmpp_2m", "dpm++2m", "dpmpp2m")),
    Sampler("dpm++_2m_cfg++", "DPM++ 2M CFG++", dpmpp_2m_cfgpp, schedule="karras",
            needs_negative=True, aliases=("dpmpp_2m_cfg_pp",)),
    Sampler("dpm++_2s_a", "DPM++ 2S a", dpmpp_2s_a, schedule="karras", random=True, evaluations=2,
            aliases=("dpmpp_2s_ancestral", "dpm++2s_a", "dpm++_2s_ancestral", "dpmpp_2s_a"),
            eta=1.0),
    Sampler("res_multistep", "Res Multistep", res_multistep),
)
