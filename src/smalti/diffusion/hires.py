"""The hires pass: the picture of the first pass is enlarged, and denoised again in part.

Models show things twice in pictures much larger than those that they were trained with; so the
picture is laid out small (A1111 calls this hires. fix).
"""

from __future__ import annotations

import math
from numbers import Integral
from pathlib import Path

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.noise import STEPS_MAX
from smalti.diffusion.options import PictureOptions
from smalti.errors import InputError

Floats = np.ndarray
STRENGTH = 0.7
"""Where none is given, as in A1111: latents that are enlarged are blurred, and need that much."""
LATENT = "Latent"


@dataclass(frozen=True)
class Hires:
    """A second pass in `width` x `height` pixels, `factor` times as large.

    `steps` are those that it does, which are the share `strength` of those from noise. `upscaler`
    is the name of the network that enlarges the picture; else latents are.
    """

    factor: float
    width: int
    height: int
    strength: float
    steps: int
    upscaler: str = LATENT

    @property
    def schedule_steps(self) -> int:
        """The steps from noise to picture of which `steps` are the share `strength`.

        >>> Hires(2.0, 1024, 1024, 0.7, 14).schedule_steps
        20
        """
        steps = math.ceil(self.steps / self.strength)
        return steps + (int(steps * self.strength) < self.steps)  # 50 * 0.58 is below 29


def hires(options: PictureOptions, size: tuple[int, int], multiple: int,
          first_steps: int) -> Hires | None:
    """The second pass behind a first one of this `size` and so many steps; None without one.

    Sides are the next multiples. Raises InputError for more steps than there can be.
    """
    if options.hires is None:
        return None
    strength = STRENGTH if options.hires_strength is None else options.hires_strength
    steps = options.hires_steps
    steps = max(1, int(first_steps * strength)) if steps is None else steps
    if not isinstance(steps, Integral) or isinstance(steps, bool) or not (
            1 <= steps <= int(STEPS_MAX * strength)):
        raise InputError(f"hires_steps is {steps!r}; expected a whole number from 1 to "
                         f"{int(STEPS_MAX * strength)} at this strength")
    width, height = (round(extent * options.hires / multiple) * multiple for extent in size)
    upscaler = options.hires_upscaler
    name = getattr(upscaler, "name", None) or (LATENT if upscaler is None else Path(upscaler).stem)
    return Hires(options.hires, width, height, strength, int(steps), name)


def enlarged(latents: Floats, height: int, width: int, patch: int = 1) -> Floats:
    """Latents [..., h, w] in another size, bilinearly, with pixels at the middles of squares.

    Channels of latents [n, z, h, w] that are the pixels of a `patch`, as in `VaeConfig`, are laid
    out before: enlarged apart, neighbours would come to lie behind others.

    >>> enlarged(np.array([[0.0, 1.0]]), 1, 4).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    if patch > 1:
        whole = enlarged(_laid_out(latents, patch), patch * height, patch * width)
        n, channels, *_ = whole.shape
        squares = whole.reshape(n, channels, height, patch, width, patch)
        return squares.transpose(0, 1, 3, 5, 2, 4).reshape(n, -1, height, width)
    rows, columns = (_weights(before, after) for before, after in zip(
        latents.shape[-2:], (height, width), strict=True))
    return (rows @ latents @ columns.T).astype(latents.dtype)


def _laid_out(latents: Floats, patch: int) -> Floats:
    """Latents [n, p^2 c, h, w] -> [n, c, p h, p w]."""
    n, channels, height, width = latents.shape
    squares = latents.reshape(n, channels // patch**2, patch, patch, height, width)
    return squares.transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, patch * height, patch * width)


def _weights(before: int, after: int) -> Floats:
    """f64[after, before]: how much of each pixel is in each new one."""
    places = (np.arange(after) + 0.5) * (before / after) - 0.5
    return np.maximum(0, 1 - np.abs(np.clip(places, 0, before - 1)[:, None] - np.arange(before)))
