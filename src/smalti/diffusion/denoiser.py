"""From what a network predicts to an estimate of the clean latents.

Samplers work on x = clean + sigma * noise, or (1 - sigma) * clean + sigma * noise for flow models.
A network wants x scaled to unit variance and a time instead of sigma, and what it gives has to be
put together with x. Karras et al. 2022 (arXiv:2206.00364), section 5, write all of them as

    clean = skip(sigma) * x + out(sigma) * network(into(sigma) * x, time(sigma))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.diffusion.noise import NoiseLevels
from smalti.errors import InputError, NumericsError
from smalti.models.flux3 import TARGET

Floats = npt.NDArray[np.float32]

Conditioning = Mapping[str, Floats]
"""What a network is given besides latents and time, by the name of its input: `context` (1 or
pictures, positions, width), and where the model has them `vector` or `pooled` (1 or pictures,
width), `guidance` (1 or pictures,) and others. The first axis is one row for all pictures, or one
row each."""

BESIDE = "beside"
"""The part of a conditioning that a network reads as channels behind those of the latents: (1 or
pictures, channels, h, w)."""

Network = Callable[[Floats, Floats, Conditioning], Floats]
"""(latents (rows, channels, h, w), timesteps (rows,), conditioning of as many rows) -> outputs
(rows, channels, h, w), all float32."""

SAME_LEVEL = 1e-6
"""Noise levels that are so near to each other, as a share of them, are one: rounding errors of a
level that became odds and was made of them again are below 1e-11, levels of 1000 steps are 1e-5 and
more apart."""

EDM_DATA_STD = 0.5  # of latents, as Playground 2.5 and the networks of EDM are trained


@dataclass(frozen=True)
class Scaling:
    """The factors of the formula above at one noise level."""

    into: float
    skip: float
    out: float


def epsilon(sigma: float) -> Scaling:
    """The network gives the noise (Ho et al. 2020, arXiv:2006.11239)."""
    return Scaling(1 / math.hypot(sigma, 1), 1.0, -sigma)


def velocity(sigma: float) -> Scaling:
    """The network gives v = (noise - sigma * clean) / s at s = sqrt(sigma^2 + 1).

    Salimans & Ho 2022 (arXiv:2202.00512). EDM with a data deviation of 1 is the same.
    """
    scale = math.hypot(sigma, 1)
    return Scaling(1 / scale, 1 / scale**2, -sigma / scale)


def sample(sigma: float) -> Scaling:
    """The network gives the clean latents."""
    return Scaling(1 / math.hypot(sigma, 1), 0.0, 1.0)


def edm(sigma: float) -> Scaling:
    """The preconditioning of Karras et al. 2022, table 1."""
    scale = math.hypot(sigma, EDM_DATA_STD)
    return Scaling(1 / scale, (EDM_DATA_STD / scale) ** 2, sigma * EDM_DATA_STD / scale)


def flow(sigma: float) -> Scaling:
    """The network gives noise - clean (Liu et al. 2022, "Rectified flow", arXiv:2209.03003)."""
    return Scaling(1.0, 1.0, -sigma)


PREDICTIONS: Mapping[str, Callable[[float], Scaling]] = {
    "epsilon": epsilon,
    "v_prediction": velocity,
    "sample": sample,
    "edm": edm,
    "edm_v": velocity,
    "flow": flow,
}


class Denoiser:
    """A network together with what it predicts and at which levels of noise.

    The time that the network is given is the training step for "epsilon", "v_prediction" and
    "sample", ln(sigma) / 4 for "edm" and "edm_v", and `flow_time` * sigma for "flow" (1000 for SD3;
    1 for networks that multiply by 1000 themselves). Raises InputError for another prediction, and
    for one that does not go with the kind of the levels.

    A network that is a `flow_map` is also told which time a step leads to, as the input `target`:
    that of the next level of the `walk`, which are the noise levels of a sampler.

    >>> levels = NoiseLevels.scaled_linear()
    >>> denoiser = Denoiser(lambda x, time, conditioning: x, levels, "epsilon")
    >>> x = np.ones((1, 4, 2, 2), np.float32)
    >>> (output,) = denoiser.outputs(x, 1.0, [{}])
    >>> round(float(denoiser.clean(x, output, 1.0)[0, 0, 0, 0]), 4)  # 1 - 1 / sqrt(2)
    0.2929
    """

    def __init__(
        self, network: Network, levels: NoiseLevels, prediction: str, flow_time: float = 1000.0,
        flow_map: bool = False
    ) -> None:
        if prediction not in PREDICTIONS:
            known = ", ".join(PREDICTIONS)
            raise InputError(f"unknown prediction type {prediction!r}; known: {known}")
        if (prediction == "flow") != levels.flow:
            kind = "flow" if levels.flow else "diffusion"
            raise InputError(f"prediction type {prediction!r} with the noise of a {kind} model")
        self.network = network
        self.levels = levels
        self.prediction = prediction
        self.flow_time = flow_time
        self.flow_map = flow_map
        self.walk: Sequence[float] = ()

    def time(self, sigma: float) -> float:
        """What the network is given as time at a noise level."""
        if self.prediction == "flow":
            return self.flow_time * sigma
        if self.prediction in ("edm", "edm_v"):
            return math.log(sigma) / 4
        return float(self.levels.timestep(sigma))

    def following(self, sigma: float) -> float:
        """The level of the walk that a step from this one leads to; 0 behind the last.

        Samplers that reckon in the odds of a level (see `samplers.walk.for_flow_too`) give it back
        with a rounding error: what is as near to it as `SAME_LEVEL` is the level itself.

        >>> from smalti.diffusion.noise import FlowLevels
        >>> levels = FlowLevels.shifted(3.0)
        >>> denoiser = Denoiser(lambda x, time, told: x, levels, "flow", flow_map=True)
        >>> denoiser.walk = [1.0, 0.7, 0.0]
        >>> denoiser.following(1.0), denoiser.following(0.8), denoiser.following(0.7)
        (0.7, 0.7, 0.0)
        """
        below = sigma * (1 - SAME_LEVEL)
        return max((float(level) for level in self.walk if level < below), default=0.0)

    def outputs(self, x: Floats, sigma: float, rows: Sequence[Conditioning]) -> list[Floats]:
        """What the network gives for each conditioning, all in one batch; each of x's shape.

        Raises NumericsError for NaN or infinity, and InputError for conditionings that do not fit
        together.
        """
        sigma = float(sigma)  # a numpy float64 would make all of it float64
        if self.flow_map:
            target = np.full(1, self.time(self.following(sigma)), np.float32)
            rows = [{**row, TARGET: target} for row in rows]
        count = len(rows)
        scaled = x * PREDICTIONS[self.prediction](sigma).into
        times = np.full(count * len(x), self.time(sigma), np.float32)
        output = self.network(
            np.concatenate([scaled] * count), times, _stacked(rows, len(x))
        )
        if not np.isfinite(output).all():
            bad = int(np.size(output) - np.isfinite(output).sum())
            raise NumericsError(
                f"the denoiser gave NaN or infinity in {bad} of {np.size(output)} values at noise"
                f" level {sigma:.4g}; expected finite numbers; try precision f32, and check the"
                " checkpoint with `smalti inspect`"
            )
        return np.split(output, count)

    def clean(self, x: Floats, output: Floats, sigma: float) -> Floats:
        """Estimate of the clean latents from x and what the network gave, of x's shape."""
        scaling = PREDICTIONS[self.prediction](float(sigma))
        return x * scaling.skip + output * scaling.out


def _stacked(rows: Sequence[Conditioning], pictures: int) -> Conditioning:
    """Conditionings one after the other, each for all pictures."""
    first = rows[0]
    for other in rows[1:]:
        if other.keys() != first.keys():
            raise InputError(
                f"conditionings have the parts {sorted(first)} and {sorted(other)}; expected the"
                " same parts in all"
            )
    return {
        name: np.concatenate([_for_pictures(name, row[name], pictures) for row in rows])
        for name in first
    }


def _for_pictures(name: str, part: Floats, pictures: int) -> Floats:
    """One row for every picture, or one each."""
    if len(part) not in (1, pictures):
        raise InputError(f"{len(part)} rows of {name} for {pictures} images; expected 1 each")
    return np.broadcast_to(part, (pictures, *part.shape[1:]))
