"""Noise schedules: which noise levels sigma a sampler walks down.

A model was trained at discrete noise levels; a sampler visits some levels between the highest and
the lowest and then 0. Notation and formulas: Karras et al. 2022, "Elucidating the design space of
diffusion-based generative models" (arXiv:2206.00364), called EDM below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smalti.diffusion.spelling import Spelled
from smalti.errors import InputError

Floats = npt.NDArray[np.float64]

KARRAS_RHO = 7.0
STEPS_MAX = 1000


@dataclass(frozen=True)
class NoiseLevels:
    """The noise levels a model was trained at: `sigmas[t]` for t = 0 ... T - 1, rising.

    >>> levels = NoiseLevels.scaled_linear()
    >>> round(levels.lowest, 6), round(levels.highest, 5)
    (0.029167, 14.61464)
    >>> float(levels.timestep(levels.highest))
    999.0
    """

    sigmas: Floats

    @classmethod
    def scaled_linear(
        cls, beta_start: float = 0.00085, beta_end: float = 0.012, train_steps: int = 1000
    ) -> NoiseLevels:
        """The levels of Stable Diffusion: betas are squares of a line between their roots.

        beta_i = (linspace(sqrt(start), sqrt(end), T)_i)^2, abar_i = prod (1 - beta_j) for j <= i,
        sigma_i = sqrt((1 - abar_i) / abar_i).
        """
        betas = np.linspace(beta_start**0.5, beta_end**0.5, train_steps) ** 2
        kept = np.cumprod(1.0 - betas)
        return cls(np.sqrt((1.0 - kept) / kept))

    @property
    def lowest(self) -> float:
        """The lowest trained noise level."""
        return float(self.sigmas[0])

    @property
    def highest(self) -> float:
        """The highest trained noise level."""
        return float(self.sigmas[-1])

    def timestep(self, sigma: npt.ArrayLike) -> Floats:
        """The (fractional) training step of a noise level: linear in log sigma, ends held."""
        steps = np.arange(len(self.sigmas), dtype=np.float64)
        return np.interp(np.log(sigma), np.log(self.sigmas), steps)

    def sigma(self, timestep: npt.ArrayLike) -> Floats:
        """The noise level of a (fractional) training step; inverse of `timestep`."""
        steps = np.arange(len(self.sigmas), dtype=np.float64)
        return np.exp(np.interp(timestep, steps, np.log(self.sigmas)))


def normal(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in training time, from the last training step to the first."""
    return levels.sigma(np.linspace(len(levels.sigmas) - 1, 0, steps))


def karras(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in sigma^(1/7): more of them at low noise. EDM, equation 5."""
    ramp = np.linspace(0, 1, steps)
    high, low = levels.highest ** (1 / KARRAS_RHO), levels.lowest ** (1 / KARRAS_RHO)
    return (high + ramp * (low - high)) ** KARRAS_RHO


@dataclass(frozen=True)
class Schedule:
    """A noise schedule: its name, the label that A1111 shows, and its function."""

    name: str
    label: str
    function: Callable[[NoiseLevels, int], Floats]
    aliases: tuple[str, ...] = ()

    def sigmas(self, levels: NoiseLevels, steps: int) -> Floats:
        """The `steps` + 1 noise levels of a run, falling, the last one 0.

        Raises `InputError` for fewer than one step or more than 1000.

        >>> find_schedule("karras").sigmas(NoiseLevels.scaled_linear(), 3).round(4).tolist()
        [14.6146, 1.2741, 0.0292, 0.0]
        """
        if not 1 <= steps <= STEPS_MAX:
            raise InputError(f"{steps} steps; expected 1 to {STEPS_MAX}")
        return np.append(self.function(levels, steps), 0.0)


NOISES = Spelled(
    "noise schedule",
    (
        Schedule("normal", "Normal", normal, aliases=("uniform", "discrete", "default")),
        Schedule("karras", "Karras", karras),
    ),
)


def find_schedule(name: str) -> Schedule:
    """The schedule of a name, in the spelling of A1111 or ComfyUI.

    Raises `InputError` that lists the known names.

    >>> find_schedule("Karras").name, find_schedule("uniform").name
    ('karras', 'normal')
    """
    return NOISES.find(name)
