"""Noise schedules: which noise levels sigma a sampler walks down.

A model was trained at certain noise levels; a sampler visits some levels between the highest and
the lowest and then 0. Notation and formulas: Karras et al. 2022, "Elucidating the design space of
diffusion-based generative models" (arXiv:2206.00364), called EDM below; otherwise the source stands
beside the formula. Spellings are those of A1111, ComfyUI, k-diffusion and stable-diffusion.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.diffusion.beta import beta_quantile
from smalti.diffusion.spelling import Spelled
from smalti.errors import InputError

Floats = npt.NDArray[np.float64]

KARRAS_RHO = 7.0  # Karras et al. 2022, "Elucidating the design space …", after equation 5
STEPS_MAX = 1000  # as many timesteps as models are trained with
LAST_KEPT = 4.8973451890853435e-08  # of the signal at zero terminal SNR, as ComfyUI has it

ALIGNED_SD1 = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
"""Ten optimised steps of Stable Diffusion 1.x: Sabour et al. 2024, "Align your steps"
(arXiv:2404.14507). A family with others has them in its record."""

TURBO_STRIDES = 10  # adversarially distilled models know ten levels (Sauer et al. 2023)
LCM_STRIDES = 50  # latent consistency models fifty (Luo et al. 2023, arXiv:2310.04378)


@dataclass(frozen=True)
class NoiseLevels:
    """The noise levels a model was trained at: `sigmas[t]` for t = 0 ... T - 1, rising.

    Latents at a level are clean + sigma * noise ("variance exploding"; whatever scale the
    network wants is the denoiser's affair). `aligned` is the walk of `align_your_steps`, where one
    is known.

    >>> levels = NoiseLevels.scaled_linear()
    >>> round(levels.lowest, 6), round(levels.highest, 5)
    (0.029167, 14.61464)
    >>> float(levels.timestep(levels.highest))
    999.0
    """

    sigmas: Floats
    aligned: tuple[float, ...] = ()
    flow: ClassVar[bool] = False

    @classmethod
    def scaled_linear(
        cls, beta_start: float = 0.00085, beta_end: float = 0.012, train_steps: int = 1000, *,
        zero_terminal_snr: bool = False, aligned: tuple[float, ...] = ALIGNED_SD1
    ) -> NoiseLevels:
        """The levels of Stable Diffusion: betas are squares of a line between their roots.

        beta_i = (linspace(sqrt(start), sqrt(end), T)_i)^2, abar_i = prod (1 - beta_j) for j <= i,
        sigma_i = sqrt((1 - abar_i) / abar_i). With `zero_terminal_snr` sqrt(abar) is shifted and
        scaled so that nothing of the signal is left at the end (Lin et al. 2023, arXiv:2305.08891,
        algorithm 1), but for a trace that keeps the highest sigma finite.
        """
        betas = np.linspace(beta_start**0.5, beta_end**0.5, train_steps) ** 2
        kept = np.cumprod(1.0 - betas)
        if zero_terminal_snr:
            root = np.sqrt(kept)
            kept = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
            kept[-1] = LAST_KEPT
        return cls(np.sqrt((1.0 - kept) / kept), aligned)

    @classmethod
    def log_spaced(cls, lowest: float = 0.002, highest: float = 80.0,
                   train_steps: int = 1000) -> NoiseLevels:
        """Levels of a model that was trained at all of them, as those of EDM."""
        return cls(np.geomspace(lowest, highest, train_steps))

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
        return np.exp(np.interp(np.asarray(timestep, np.float64), steps, np.log(self.sigmas)))

    def after(self, fraction: float) -> float:
        """The noise level after this fraction of the way in training time.

        Infinity for 0 and below, 0 for 1 and above, so that limits given as fractions include the
        first and the last step.

        >>> round(NoiseLevels.scaled_linear().after(0.5), 4)
        1.6156
        """
        if not 0 < fraction < 1:
            return math.inf if fraction <= 0 else 0.0
        return float(self.sigma((len(self.sigmas) - 1) * (1 - fraction)))

    def alpha(self, sigma: float) -> float:
        """The factor of the clean latents in noisy ones at a level: always 1 here."""
        return 1.0

    def noised(self, clean: npt.NDArray[np.float32], noise: npt.NDArray[np.float32],
               sigma: float) -> npt.NDArray[np.float32]:
        """Latents at a noise level, from clean ones and standard noise, float32."""
        return clean * np.float32(self.alpha(float(sigma))) + noise * np.float32(sigma)


@dataclass(frozen=True)
class FlowLevels(NoiseLevels):
    """The levels of a flow model: latents are (1 - sigma) * clean + sigma * noise, sigma <= 1.

    sigma is training time in (0, 1] moved to higher noise: shift * t / (1 + (shift - 1) * t);
    Esser et al. 2024 (arXiv:2403.03206), equation 23. Step i of T is time (i + 1) / T. Where there
    is a `terminal` level, `trailing` walks end with it.

    >>> FlowLevels.shifted(3.0).sigmas[[249, 499, 999]].tolist()
    [0.5, 0.75, 1.0]
    """

    shift: float = 1.0
    terminal: float = 0.0
    flow: ClassVar[bool] = True

    @classmethod
    def shifted(cls, shift: float = 1.0, train_steps: int = 1000,
                terminal: float = 0.0) -> FlowLevels:
        """Levels for a shift: 3 for SD3, 1 for Flux schnell and Chroma, `flux_shift` for Flux dev.

        Raises InputError for a shift that is not above 0.
        """
        if not 0 < shift < math.inf:
            raise InputError(f"flow shift is {shift!r}; expected a number above 0")
        time = np.arange(1, train_steps + 1) / train_steps
        return cls(shift * time / (1 + (shift - 1) * time), shift=shift, terminal=terminal)

    def timestep(self, sigma: npt.ArrayLike) -> Floats:
        """The (fractional) training step of a noise level, ends held."""
        sigma = np.asarray(sigma, np.float64)
        time = sigma / (self.shift - (self.shift - 1) * sigma)
        return np.clip(time * len(self.sigmas) - 1, 0, len(self.sigmas) - 1)

    def sigma(self, timestep: npt.ArrayLike) -> Floats:
        """The noise level of a (fractional) training step; inverse of `timestep`."""
        steps = np.clip(np.asarray(timestep, np.float64), 0, len(self.sigmas) - 1)
        time = (steps + 1) / len(self.sigmas)
        return self.shift * time / (1 + (self.shift - 1) * time)

    def stretched(self, sigmas: Floats) -> Floats:
        """Falling levels, moved so that the last is the terminal one; diffusers'
        `FlowMatchEulerDiscreteScheduler.stretch_shift_to_terminal`.

        >>> levels = FlowLevels.shifted(terminal=0.02)
        >>> levels.stretched(np.array([1.0, 0.75, 0.5])).round(6).tolist()
        [1.0, 0.51, 0.02]
        """
        if not self.terminal or sigmas[-1] >= 1:
            return sigmas
        return 1 - (1 - sigmas) * (1 - self.terminal) / (1 - sigmas[-1])

    def alpha(self, sigma: float) -> float:
        """The factor of the clean latents in noisy ones at a level: 1 - sigma."""
        return 1.0 - sigma


def normal(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in training time, from the last training step to the first."""
    return levels.sigma(np.linspace(len(levels.sigmas) - 1, 0, steps))


def karras(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in sigma^(1/7): more of them at low noise. EDM, equation 5."""
    ramp = np.linspace(0, 1, steps)
    high, low = levels.highest ** (1 / KARRAS_RHO), levels.lowest ** (1 / KARRAS_RHO)
    return (high + ramp * (low - high)) ** KARRAS_RHO


def exponential(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in log sigma; k-diffusion, also its `polyexponential` at the usual rho 1."""
    return np.geomspace(levels.highest, levels.lowest, steps)


def sgm_uniform(levels: NoiseLevels, steps: int) -> Floats:
    """As `normal`, but the lowest trained level is the step to 0; Stability AI's generative-models.
    """
    return levels.sigma(np.linspace(len(levels.sigmas) - 1, 0, steps + 1)[:-1])


def simple(levels: NoiseLevels, steps: int) -> Floats:
    """Every T/n-th trained level, from the highest; ComfyUI."""
    count = len(levels.sigmas)
    return levels.sigmas[count - 1 - np.arange(steps) * count // steps]


def trailing(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in time from 1 to 1/n, whatever the trained steps; Lin et al. 2023, table 2.

    The schedule of flow models (Flux's `get_schedule`), of which the shift is in the levels.
    """
    sigmas = _even(levels, steps)
    return levels.stretched(sigmas) if isinstance(levels, FlowLevels) else sigmas


def _even(levels: NoiseLevels, steps: int) -> Floats:
    return levels.sigma(len(levels.sigmas) * np.linspace(1, 1 / steps, steps) - 1)


def ddim_uniform(levels: NoiseLevels, steps: int) -> Floats:
    """Every (T // n)-th trained level, counted from the second; Song et al. 2020, DDIM.

    diffusers' spacing "leading" with an offset of 1.
    """
    count = len(levels.sigmas)
    chosen = 1 + np.arange(min(steps, count - 1)) * (count // steps)
    return levels.sigmas[chosen[::-1]]


def beta(levels: NoiseLevels, steps: int) -> Floats:
    """Training steps at quantiles of Beta(0.6, 0.6): more of them at both ends.

    Lee et al. 2024, "Beta sampling is all you need" (arXiv:2407.12173); rounded to trained levels,
    each taken once, as in ComfyUI.
    """
    ramp = 1 - np.arange(steps) / steps
    last = len(levels.sigmas) - 1
    chosen = beta_quantile(ramp, 0.6, 0.6) * last
    chosen = np.rint(chosen.round(9)).astype(int)  # so that the middle is a tie, as it should be
    return levels.sigmas[np.unique(chosen)[::-1]]


def kl_optimal(levels: NoiseLevels, steps: int) -> Floats:
    """Equal steps in arctan sigma; Sabour et al. 2024 (arXiv:2404.14507), theorem 3.1."""
    return np.tan(np.linspace(math.atan(levels.highest), math.atan(levels.lowest), steps))


def align_your_steps(levels: NoiseLevels, steps: int) -> Floats:
    """The optimised walk of the family; between its ten steps log sigma is interpolated.

    Raises InputError for a family without one.
    """
    if not levels.aligned:
        raise InputError("no walk of align_your_steps is known for this kind of model; "
                         "`karras`, or `trailing` for flow models, goes with all")
    known = np.linspace(0, 1, len(levels.aligned))
    logs = np.interp(np.linspace(0, 1, steps + 1), known, np.log(levels.aligned))
    return np.exp(logs[:-1])


def linear_quadratic(levels: NoiseLevels, steps: int) -> Floats:
    """Half of the steps for the first 2.5 % of the way, then a parabola; Genmo's Mochi."""
    if steps == 1:
        return np.array([levels.highest])
    small, first = 0.025, steps // 2
    rest = steps - first
    slope = small / first  # of the line; the parabola starts with the same
    bend = (1 - small - slope * rest) / rest**2
    beyond = np.maximum(np.arange(steps) - first, 0)
    return levels.highest * (1 - slope * np.arange(steps) - bend * beyond**2)


def turbo(levels: NoiseLevels, steps: int) -> Floats:
    """Levels of distilled models: the first of ten equal parts of training time, from the top;
    for more than ten steps, equal parts."""
    strides = max(steps, TURBO_STRIDES)
    return _even(levels, strides)[:steps]


def lcm(levels: NoiseLevels, steps: int) -> Floats:
    """Of the fifty levels of a latent consistency model, equally spaced ones from the top;
    diffusers' `LCMScheduler`. For more than fifty steps, equal parts."""
    strides = max(steps, LCM_STRIDES)
    return _even(levels, strides)[np.arange(steps) * strides // steps]


@dataclass(frozen=True)
class Schedule:
    """A noise schedule: its name, the label that A1111 shows, and its function."""

    name: str
    label: str
    function: Callable[[NoiseLevels, int], Floats]
    aliases: tuple[str, ...] = ()
    fixed_steps: int = 0  # of levels that are given, whatever the model and the number asked for

    def sigmas(self, levels: NoiseLevels, steps: int, drop_penultimate: bool = False) -> Floats:
        """The `steps` + 1 noise levels of a run, falling, the last one 0.

        `drop_penultimate` takes those of one step more and leaves out the last before 0, as some
        samplers want it. `beta` and `ddim_uniform` give fewer levels where there are not as many
        trained ones, custom schedules as many as they have. Raises `InputError` for fewer than one
        step or more than 1000.

        >>> find_schedule("karras").sigmas(NoiseLevels.scaled_linear(), 3).round(4).tolist()
        [14.6146, 1.2741, 0.0292, 0.0]
        """
        if not 1 <= steps <= STEPS_MAX:
            raise InputError(f"{steps} steps; expected 1 to {STEPS_MAX}")
        if drop_penultimate and not self.fixed_steps:
            return np.append(self.function(levels, steps + 1)[:-1], 0.0)
        return np.append(self.function(levels, steps), 0.0)


NOISES = Spelled(
    "noise schedule",
    (
        Schedule("normal", "Normal", normal, aliases=("uniform", "discrete", "default")),
        Schedule("karras", "Karras", karras),
        Schedule("exponential", "Exponential", exponential, aliases=("polyexponential",)),
        Schedule("sgm_uniform", "SGM Uniform", sgm_uniform),
        Schedule("simple", "Simple", simple),
        Schedule("trailing", "Trailing", trailing,
                 aliases=("flow", "flux", "shift", "ddim_trailing")),
        Schedule("ddim_uniform", "DDIM", ddim_uniform, aliases=("ddim", "leading")),
        Schedule("beta", "Beta", beta),
        Schedule("kl_optimal", "KL Optimal", kl_optimal),
        Schedule("align_your_steps", "Align Your Steps", align_your_steps, aliases=("ays",)),
        Schedule("linear_quadratic", "Linear Quadratic", linear_quadratic),
        Schedule("turbo", "Turbo", turbo),
        Schedule("lcm", "LCM", lcm),
    ),
)


def find_schedule(name: str) -> Schedule:
    """The schedule of a name, in the spelling of A1111, ComfyUI or stable-diffusion.cpp.

    Noise levels themselves, as "14.6, 7.8, 1.5, 0", are a schedule too. Raises `InputError` that
    lists the known names, and for levels that do not fall from above 0 to 0.

    >>> find_schedule("Karras").name, find_schedule("uniform").name
    ('karras', 'normal')
    >>> find_schedule("14.6, 1.5, 0").sigmas(NoiseLevels.scaled_linear(), 20).tolist()
    [14.6, 1.5, 0.0]
    """
    if "," not in name:
        return NOISES.find(name)
    try:
        sigmas = np.array([float(text) for text in name.split(",")])
    except ValueError:
        raise InputError(
            f"noise levels are {name!r:.80}; expected falling numbers such as '14.6, 1.5, 0'"
        ) from None
    if sigmas[-1] != 0 or not (np.diff(sigmas) < 0).all() or not np.isfinite(sigmas).all():
        raise InputError(f"noise levels are {name!r:.80}; expected numbers that fall to 0")
    if len(sigmas) > STEPS_MAX + 1:
        raise InputError(f"{len(sigmas)} noise levels; expected at most {STEPS_MAX + 1}")
    text = name.replace(" ", "")
    return Schedule(text, text, lambda levels, steps: sigmas[:-1], fixed_steps=len(sigmas) - 1)
