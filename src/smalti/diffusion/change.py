"""Pictures that are changed: how much of them, and what a walk then starts from.

Meng et al. 2021, "SDEdit", arXiv:2108.01073: noise is put on the picture, and taken off again with
a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from PIL import Image

from smalti.diffusion.images import Picture, as_pixels, opaque, opened, resized
from smalti.diffusion.request import size_multiple
from smalti.errors import InputError
from smalti.models.config import ModelConfig

Floats = np.ndarray
STRENGTH = 0.75


@dataclass(frozen=True)
class Source:
    """A picture that is changed, RGB."""

    picture: Image.Image

    @classmethod
    def of(cls, picture: Picture) -> Source:
        """That of a picture or a file. Raises InputError for anything else."""
        return cls(opaque(opened(picture)))

    def size(self, config: ModelConfig, width: int | None,
             height: int | None) -> tuple[int, int]:
        """Width and height in pixels to work at: what is asked for, else the picture's own, as near
        as the model's multiples allow."""
        multiple = size_multiple(config)
        near = [max(1, round(extent / multiple)) * multiple for extent in self.picture.size]
        return (near[0] if width is None else width), (near[1] if height is None else height)

    def pixels(self, width: int, height: int) -> Floats:
        """f32[3, height, width] in [-1, 1] of the picture in this size."""
        return as_pixels(resized(self.picture, width, height))


def checked_strength(strength: object, given: bool) -> float | None:
    """How much of a picture is changed, above 0 to 1; None where no picture is `given`.

    Raises InputError for other numbers, and for a strength without a picture.

    >>> checked_strength(None, True), checked_strength(1, True), checked_strength(None, False)
    (0.75, 1.0, None)
    """
    if not given:
        if strength is not None:
            raise InputError("strength says how much of a picture is changed, but no image is "
                             "given")
        return None
    strength = STRENGTH if strength is None else strength
    if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 < strength <= 1:
        raise InputError(f"strength is {strength!r}; expected a number above 0, which changes "
                         f"nothing, to 1, which leaves nothing")
    return float(strength)


def steps_of(steps: int, strength: float | None) -> int:
    """The steps, of so many from noise to picture, that are done from a picture on: the last ones,
    and one at least. A1111 and diffusers count this way.

    >>> steps_of(20, 0.75), steps_of(20, None), steps_of(4, 0.1)
    (15, 20, 1)
    """
    return steps if strength is None else max(1, int(steps * strength))
