"""What all samplers have in common: their signature, their steps, and what flow models change.

A sampler is called with `denoise(x, sigma)`, the model's estimate of the clean latents; `x`, the
noisy latents at `sigmas[0]`; `sigmas`, which fall to 0; `noise()`, which gives fresh standard noise
of x's shape; and the noise `levels` of the model. It yields after each step. Formulas are in the
notation of k-diffusion (github.com/crowsonkb/k-diffusion); EDM is Karras et al. 2022
(arXiv:2206.00364).

Diffusion models have x = clean + sigma * noise, flow models x = (1 - sigma) * clean + sigma *
noise. In both dx/dsigma = (x - D) / sigma without fresh noise, so that deterministic samplers serve
both as they are; what draws noise does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.diffusion.noise import NoiseLevels, find_schedule

Floats = npt.NDArray[np.float32]
Noise = Callable[[], Floats]
FLOW_SIGMA_MAX = 0.9999  # where a formula divides by the share of the clean latents


class Denoise(Protocol):
    """The model's estimate of the clean latents."""

    def __call__(self, x: Floats, sigma: float) -> Floats:
        """With guidance."""
        ...

    def both(self, x: Floats, sigma: float) -> tuple[Floats, Floats]:
        """With guidance, and for the negative prompt alone; only CFG++ samplers ask for it."""
        ...


@dataclass(frozen=True)
class SamplerStep:
    """One finished step: its number from 0, the latents after it, and what they come from.

    `x` is at noise level `sigma_next`; `denoised` is the model's estimate of the clean latents at
    `sigma`, which makes a preview. All of x's shape, float32.
    """

    index: int
    sigma: float
    sigma_next: float
    x: Floats
    denoised: Floats


Walk = Callable[..., Iterator[SamplerStep]]
"""(denoise, x, sigmas, noise, levels) -> steps; some take `eta` besides."""


@dataclass(frozen=True)
class Sampler:
    """A sampler: its function, its names, and what is to be known before it runs.

    `label` is what A1111 shows, `aliases` are other spellings. `schedule` is the noise schedule
    that goes best with it. `random` tells whether it draws noise, `evaluations` how often it asks
    for an estimate in a step (but the last), `needs_negative` whether it asks for `both`, and
    `drops_penultimate` that it wants the last level but 0 left out of a schedule. `eta` is how much
    of the noise that it takes away in a step it draws anew, None where that cannot be chosen.
    """

    name: str
    label: str
    function: Walk
    aliases: tuple[str, ...] = ()
    schedule: str = "normal"
    random: bool = False
    evaluations: int = 1
    needs_negative: bool = False
    drops_penultimate: bool = False
    eta: float | None = None

    def __call__(
        self, denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
        levels: NoiseLevels, eta: float | None = None
    ) -> Iterator[SamplerStep]:
        """Walk from `x`, yielding after each step, with another `eta` than the sampler's own."""
        more = {} if self.eta is None or eta is None else {"eta": eta}
        return self.function(denoise, x, sigmas, noise, levels, **more)

    def sigmas(self, schedule: str, levels: NoiseLevels, steps: int) -> npt.NDArray[np.float64]:
        """The noise levels of a run with this sampler, falling, the last one 0.

        `schedule` is a name, falling numbers ("14.6, 1.5, 0"), or "automatic": the sampler's own,
        and `trailing` for flow models. Raises InputError as `find_schedule` and its schedule do.
        """
        found = find_schedule(self.chosen(schedule, levels.flow))
        return found.sigmas(levels, steps, self.drops_penultimate)

    def chosen(self, schedule: str, flow: bool) -> str:
        """The name of a schedule, with "automatic" resolved for a flow or a diffusion model."""
        if schedule.strip().lower() != "automatic":
            return schedule
        return "trailing" if flow else self.schedule


def initial_latents(noise: Floats, sigmas: Sequence[float]) -> Floats:
    """Where a walk from noise alone starts: standard noise scaled to the first level, float32.

    >>> initial_latents(np.ones((1, 4, 8, 8), np.float32), [14.5, 0.0])[0, 0, 0, 0].item()
    14.5
    """
    return noise * np.float32(sigmas[0])


def pairs(sigmas: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Each level with the one after it, as plain floats, which leave float32 arrays float32."""
    return pairwise(float(sigma) for sigma in sigmas)


def log_step(sigma: float, following: float) -> float:
    """Width of a step in -log sigma; infinite for the step to 0."""
    return math.log(sigma / following) if following > 0 else math.inf


def ancestral(sigma: float, following: float, levels: NoiseLevels,
              eta: float = 1.0) -> tuple[float, float, float]:
    """Where to go instead of `following`, and what then leads there: (down, keep, up).

    Latents at level `down` times `keep` plus `up` times fresh noise are at level `following`. The
    noise has the variance of the posterior of Ho et al. 2020 (arXiv:2006.11239): down^2 + up^2 =
    following^2 (k-diffusion, `get_ancestral_step`); `eta` times as much is drawn. For flow models
    down / following = following / sigma at eta 1, and keep restores the share of the clean latents
    (ComfyUI, `_RF`).
    """
    if levels.flow:
        down = following * (1 + (following / sigma - 1) * eta)
        keep = (1 - following) / (1 - down)
        return down, keep, math.sqrt(max(0.0, following**2 - (keep * down) ** 2))
    up = eta * following * math.sqrt(max(0.0, 1 - (following / sigma) ** 2))
    return math.sqrt(max(0.0, following**2 - up**2)), 1.0, up


def for_flow_too(walk: Walk) -> Walk:
    """A walk whose formulas are for diffusion models, for flow models too.

    Latents of a flow model divided by 1 - sigma are clean + sigma / (1 - sigma) * noise, which is
    those of a diffusion model. A first level of 1, where that is infinite, becomes 0.9999.
    """

    @wraps(walk)
    def either(denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
               levels: NoiseLevels) -> Iterator[SamplerStep]:
        if not levels.flow:
            return walk(denoise, x, sigmas, noise, levels)
        return _flow(walk, denoise, x, sigmas, noise, levels)

    return either


def _flow(walk: Walk, denoise: Denoise, x: Floats, sigmas: Sequence[float], noise: Noise,
          levels: NoiseLevels) -> Iterator[SamplerStep]:
    odds = _odds(sigmas)
    steps = walk(_Divided(denoise), x * (1 + odds[0]), odds, noise,
                 NoiseLevels(np.array(_odds(levels.sigmas.tolist()), np.float64)))
    for (sigma, following), step in zip(pairs(sigmas), steps, strict=True):
        yield SamplerStep(step.index, sigma, following, step.x * (1 - following), step.denoised)


def _odds(sigmas: Sequence[float]) -> list[float]:
    held = (min(float(sigma), FLOW_SIGMA_MAX) for sigma in sigmas)
    return [sigma / (1 - sigma) for sigma in held]


@dataclass(frozen=True)
class _Divided:
    """`denoise` of a flow model for latents divided by 1 - sigma, at sigma / (1 - sigma)."""

    denoise: Denoise

    def __call__(self, x: Floats, sigma: float) -> Floats:
        return self.denoise(x / (1 + sigma), sigma / (1 + sigma))

    def both(self, x: Floats, sigma: float) -> tuple[Floats, Floats]:
        return self.denoise.both(x / (1 + sigma), sigma / (1 + sigma))
