"""Solvers of the reverse stochastic equation, which puts fresh noise in all along.

The formulas are for diffusion models, in t = -log sigma and with eta 1: while x is denoised by a
step of width h, noise of variance sigma'^2 (1 - e^(-2h)) comes in. k-diffusion draws it from a
Brownian tree, so that overlapping stretches of a step have noise in common; so it is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.samplers.walk import (
    Denoise,
    Floats,
    Noise,
    Sampler,
    SamplerStep,
    for_flow_too,
    log_step,
    pairs,
)

QUADRATURE_POINTS = 200  # of an integral, as in ComfyUI's `sample_er_sde`


@for_flow_too
def dpmpp_sde(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
              levels: NoiseLevels) -> Iterator[SamplerStep]:
    """SDE-DPM-Solver++(2S): by the estimate of the middle of a step, reached with noise of its own.

    Lu et al. 2022 (arXiv:2211.01095), appendix; k-diffusion, `sample_dpmpp_sde` with r = 1/2.
    """
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = estimate = denoise(x, sigma)
        if following == 0:
            yield SamplerStep(index, sigma, following, denoised, denoised)
            return
        middle = math.sqrt(sigma * following)
        first, second = noise(), noise()
        halfway = _noised_step(x, denoised, sigma, middle, first)
        estimate = denoise(halfway, middle)
        share = (sigma - middle) / (sigma - following)  # of the step that `first` was drawn for
        whole = first * math.sqrt(share) + second * math.sqrt(1 - share)
        x = _noised_step(x, estimate, sigma, following, whole)
        yield SamplerStep(index, sigma, following, x, denoised)


def _noised_step(x: Floats, estimate: Floats, sigma: float, following: float,
                 noise: Floats) -> Floats:
    """From one level to the next with a constant estimate and fresh noise."""
    share = (following / sigma) ** 2
    return x * share + estimate * (1 - share) + noise * (following * math.sqrt(1 - share))


@for_flow_too
def dpmpp_2m_sde(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                 levels: NoiseLevels) -> Iterator[SamplerStep]:
    """SDE-DPM-Solver++(2M), midpoint: two estimates, one evaluation a step.

    Lu et al. 2022 (arXiv:2211.01095), appendix; k-diffusion, `sample_dpmpp_2m_sde`.
    """
    return _two_estimates(denoise, x, sigmas, noise, lambda width: -math.expm1(-2 * width) / 2)


@for_flow_too
def dpmpp_2m_sde_heun(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                      levels: NoiseLevels) -> Iterator[SamplerStep]:
    """SDE-DPM-Solver++(2M) with the change of the estimate integrated exactly.

    k-diffusion, `sample_dpmpp_2m_sde` with solver type "heun".
    """
    return _two_estimates(
        denoise, x, sigmas, noise, lambda width: 1 + math.expm1(-2 * width) / (2 * width))


def _two_estimates(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                   change: Callable[[float], float]) -> Iterator[SamplerStep]:
    """`change(width)` is the factor of the change of the estimate over a step."""
    previous, width_before = None, 0.0
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        if following == 0:
            x = denoised
        else:
            width = log_step(sigma, following)
            x = _noised_step(x, denoised, sigma, following, noise())
            if previous is not None:
                x = x + (denoised - previous) * (change(width) * width / width_before)
            previous, width_before = denoised, width
        yield SamplerStep(index, sigma, following, x, denoised)


@for_flow_too
def dpmpp_3m_sde(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
                 levels: NoiseLevels) -> Iterator[SamplerStep]:
    """SDE-DPM-Solver++(3M): three estimates, one evaluation a step.

    k-diffusion, `sample_dpmpp_3m_sde`; the phi functions are those of exponential integrators.
    """
    known: list[tuple[Floats, float]] = []  # estimate and width of the step after it, newest first
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        if following == 0:
            x = denoised
        else:
            width = log_step(sigma, following)
            x = _noised_step(x, denoised, sigma, following, noise())
            phi_2 = 1 + math.expm1(-2 * width) / (2 * width)
            phi_3 = phi_2 / (2 * width) - 0.5
            if known:
                before, width_before = known[0]
                slope = (denoised - before) * (width / width_before)
                if len(known) > 1:
                    r, r_before = width_before / width, known[1][1] / width
                    bend: Floats = slope - (before - known[1][0]) * (1 / r_before)
                    bend = bend * (1 / (r + r_before))
                    slope = slope + bend * r
                    x = x - bend * phi_3
                x = x + slope * phi_2
            known = [(denoised, width), *known[:1]]
        yield SamplerStep(index, sigma, following, x, denoised)


@for_flow_too
def er_sde(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
           levels: NoiseLevels) -> Iterator[SamplerStep]:
    """Extended reverse-time SDE solver of order 3, one evaluation a step.

    Cui et al. 2023 (arXiv:2309.06169), algorithm 3, with its noise scale
    phi(sigma) = sigma (e^(sigma^0.3) + 10); the integrals are sums over 200 points.
    """
    before: list[tuple[float, Floats]] = []  # level and estimate, the newest first
    slope_before = None
    for index, (sigma, following) in enumerate(pairs(sigmas)):
        denoised = denoise(x, sigma)
        if following == 0:
            x = denoised
        else:
            width = following - sigma
            places = following - width * np.arange(QUADRATURE_POINTS) / QUADRATURE_POINTS
            density = -width / QUADRATURE_POINTS / _noise_scale(places)
            last = float(_noise_scale(following))
            share = last / float(_noise_scale(sigma))
            x = x * share + denoised * (1 - share)
            if before:
                slope = (denoised - before[0][1]) * (1 / (sigma - before[0][0]))
                x = x + slope * (width + last * float(density.sum()))
                if slope_before is not None:
                    bend = (slope - slope_before) * np.float32(2 / (sigma - before[1][0]))
                    moment = float((density * (places - sigma)).sum())
                    x = x + bend * (width**2 / 2 + last * moment)
                slope_before = slope
            x = x + noise() * math.sqrt(max(0.0, following**2 - (sigma * share) ** 2))
        before = [(sigma, denoised), *before[:1]]
        yield SamplerStep(index, sigma, following, x, denoised)


def _noise_scale(sigma: npt.ArrayLike) -> npt.NDArray[np.float64]:
    sigma = np.asarray(sigma, np.float64)
    return sigma * (np.exp(sigma**0.3) + 10)


SAMPLERS = (
    Sampler("dpm++_sde", "DPM++ SDE", dpmpp_sde, schedule="karras", random=True, evaluations=2,
            aliases=("dpmpp_sde", "dpmpp_sde_gpu", "dpm++sde")),
    Sampler("dpm++_2m_sde", "DPM++ 2M SDE", dpmpp_2m_sde, schedule="exponential", random=True,
            aliases=("dpmpp_2m_sde", "dpmpp_2m_sde_gpu", "dpm++2m_sde", "dpm++2m_sde_bt")),
    Sampler("dpm++_2m_sde_heun", "DPM++ 2M SDE Heun", dpmpp_2m_sde_heun, schedule="exponential",
            random=True, aliases=("dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu")),
    Sampler("dpm++_3m_sde", "DPM++ 3M SDE", dpmpp_3m_sde, schedule="exponential", random=True,
            aliases=("dpmpp_3m_sde", "dpmpp_3m_sde_gpu", "dpm++3m_sde")),
    Sampler("er_sde", "ER SDE", er_sde, random=True),
)
