"""Samplers: how latents walk from noise to a picture.

All have one signature: `denoise(x, sigma)` is the model's estimate of the clean latents, `x` the
noisy latents at `sigmas[0]` (that is `sigmas[0]` times standard noise), `sigmas` fall to 0, and
`noise()` gives fresh standard noise of x's shape; `levels` are those of the model. A sampler yields
after each step. Formulas are in the notation of k-diffusion (github.com/crowsonkb/k-diffusion); EDM
is Karras et al. 2022 (arXiv:2206.00364).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.spelling import Spelled

Floats = npt.NDArray[np.float32]
Denoise = Callable[[Floats, float], Floats]
Noise = Callable[[], Floats]


@dataclass(frozen=True)
class Step:
    """One finished step: its number from 0, the latents after it, and what they come from.

    `x` is at noise level `sigma_next`; `denoised` is the model's estimate of the clean latents at
    `sigma`, which makes a preview. All of x's shape, float32.
    """

    index: int
    sigma: float
    sigma_next: float
    x: Floats
    denoised: Floats


def euler(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
          levels: NoiseLevels) -> Iterator[Step]:
    """Euler's method on the probability-flow equation dx/dsigma = (x - D) / sigma.

    EDM, algorithm 1 without its second-order correction. Deterministic: draws no noise.
    """
    for index, (sigma, following) in enumerate(_pairs(sigmas)):
        denoised = denoise(x, sigma)
        x = x + (x - denoised) * ((following - sigma) / sigma)
        yield Step(index, sigma, following, x, denoised)


def euler_a(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
            levels: NoiseLevels) -> Iterator[Step]:
    """Ancestral Euler: a step to below the next level, then fresh noise up to it.

    Down and up levels keep the variance: down^2 + up^2 = next^2, with up^2 that of the posterior
    of Ho et al. 2020 (arXiv:2006.11239); k-diffusion, `sample_euler_ancestral` with eta 1.
    """
    for index, (sigma, following) in enumerate(_pairs(sigmas)):
        denoised = denoise(x, sigma)
        up = following * math.sqrt(max(0.0, 1 - (following / sigma) ** 2))
        down = math.sqrt(max(0.0, following**2 - up**2))
        x = x + (x - denoised) * ((down - sigma) / sigma)
        if following > 0:
            x = x + noise() * np.float32(up)
        yield Step(index, sigma, following, x, denoised)


def dpmpp_2m(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
             levels: NoiseLevels) -> Iterator[Step]:
    """DPM-Solver++(2M): second order from two estimates, one evaluation a step.

    Lu et al. 2022 (arXiv:2211.01095), algorithm 2, with t = -log sigma; the first and the last
    step are of first order, as in k-diffusion's `sample_dpmpp_2m`. Draws no noise.
    """
    previous, width_before = None, 0.0
    for index, (sigma, following) in enumerate(_pairs(sigmas)):
        denoised = denoise(x, sigma)
        estimate = denoised
        width = math.log(sigma / following) if following > 0 else math.inf
        if previous is not None and following > 0:
            extra = width / (2 * width_before)  # 1 / 2r
            estimate = denoised * (1 + extra) - previous * extra
        x = x * (following / sigma) - estimate * math.expm1(-width)
        previous, width_before = denoised, width
        yield Step(index, sigma, following, x, denoised)


def initial_latents(noise: Floats, sigmas: Sequence[float]) -> Floats:
    """Where a walk starts: standard noise scaled to the first level, float32.

    >>> initial_latents(np.ones((1, 4, 8, 8), np.float32), [14.5, 0.0])[0, 0, 0, 0].item()
    14.5
    """
    return noise * np.float32(sigmas[0])


@dataclass(frozen=True)
class Sampler:
    """A sampler: its name, the label that A1111 shows, its function, other spellings."""

    name: str
    label: str
    function: Callable[[Denoise, Floats, Sequence[float], Noise, NoiseLevels], Iterator[Step]]
    aliases: tuple[str, ...] = ()
    random: bool = False  # whether it draws noise while it walks
    needs_negative: bool = False  # whether it asks for the estimate of the negative prompt alone

    def __call__(
        self, denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
        levels: NoiseLevels
    ) -> Iterator[Step]:
        """Walk from `x`, yielding after each step."""
        return self.function(denoise, x, sigmas, noise, levels)


SAMPLERS = Spelled(
    "sampler",
    (
        Sampler("euler", "Euler", euler),
        Sampler("euler_a", "Euler a", euler_a, aliases=("euler_ancestral",), random=True),
        Sampler("dpm++_2m", "DPM++ 2M", dpmpp_2m, aliases=("dpmpp_2m", "dpm++2m", "dpmpp2m")),
    ),
)


def find_sampler(name: str) -> Sampler:
    """The sampler of a name, in the spelling of A1111, ComfyUI or k-diffusion.

    Raises `InputError` that lists the known names.

    >>> find_sampler("Euler a").name, find_sampler("sample_dpmpp_2m").name
    ('euler_a', 'dpm++_2m')
    """
    return SAMPLERS.find(name)


def _pairs(sigmas: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Each level with the one after it, as plain floats, which leave float32 arrays float32."""
    return pairwise(float(sigma) for sigma in sigmas)
