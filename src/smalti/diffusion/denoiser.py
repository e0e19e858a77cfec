"""From what a network predicts to an estimate of the clean latents.

Samplers work on x = clean + sigma * noise. The network wants x scaled to unit variance and a
training step instead of sigma, and gives the noise (epsilon; Ho et al. 2020, arXiv:2006.11239) or
the velocity (v; Salimans & Ho 2022, arXiv:2202.00512). With s = sqrt(sigma^2 + 1):

    epsilon:  clean = x - sigma * out        v:  clean = x / s^2 - out * sigma / s
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from smalti.diffusion.noise import NoiseLevels
from smalti.errors import InputError, NumericsError

Floats = npt.NDArray[np.float32]
PREDICTIONS = ("epsilon", "v_prediction")


class Denoiser:
    """The function `denoise(x, sigma)` that samplers call.

    `network(latents, timestep)` is the guided network (see `smalti.diffusion.guidance`), with
    latents (batch, 4, h, w) float32. Raises `NumericsError` when it gives NaN or infinity.

    >>> levels = NoiseLevels.scaled_linear()
    >>> denoise = Denoiser(lambda latents, timestep: latents, levels, "epsilon")
    >>> x = np.ones((1, 4, 2, 2), np.float32)
    >>> round(float(denoise(x, 1.0)[0, 0, 0, 0]), 4)  # 1 - 1 / sqrt(2)
    0.2929
    """

    def __init__(
        self, network: Callable[[Floats, float], Floats], levels: NoiseLevels, prediction: str
    ) -> None:
        if prediction not in PREDICTIONS:
            known = ", ".join(PREDICTIONS)
            raise InputError(f"unknown prediction type {prediction!r}; known: {known}")
        self.network = network
        self.levels = levels
        self.prediction = prediction

    def __call__(self, x: Floats, sigma: float) -> Floats:
        """Estimate of the clean latents, of x's shape."""
        sigma = float(sigma)  # a numpy float64 would make all of it float64
        scale = math.sqrt(sigma * sigma + 1)
        output = self.network(x * (1 / scale), float(self.levels.timestep(sigma)))
        self._check(output, sigma)
        if self.prediction == "epsilon":
            return x - output * sigma
        return x * (1 / scale**2) - output * (sigma / scale)

    def _check(self, output: Floats, sigma: float) -> None:
        if not np.isfinite(output).all():
            bad = int(np.size(output) - np.isfinite(output).sum())
            raise NumericsError(
                f"the UNet gave NaN or infinity in {bad} of {np.size(output)} values at noise level"
                f" {sigma:.4g}; expected finite numbers; try precision f32, and check the"
                " checkpoint with `smalti inspect`"
            )
