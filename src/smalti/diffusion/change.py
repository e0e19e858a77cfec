"""How a picture is changed, as a request says it.

Meng et al. 2021, "SDEdit", arXiv:2108.01073: noise is put on the picture, and taken off again with
a prompt. With a mask only a part of it is made anew, and the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from smalti.errors import InputError

STRENGTH = 0.75
IMAGE_GUIDANCE, IMAGE_GUIDANCE_MAX = 1.5, 100.0


@dataclass(frozen=True)
class Change:
    """How a picture is changed, as the text of the result tells it.

    `strength` is how much of it, above 0 to 1; `mask_blur` the pixels over which a mask fades, None
    without a mask; `padding` the pixels around the mask that are computed, too, where no more of
    the picture is. `image_guidance` is how strongly the picture steers a model for edits.
    """

    strength: float
    mask_blur: int | None = None
    padding: int | None = None
    image_guidance: float | None = None

    def steps(self, steps: int) -> int:
        """The steps, of so many from noise to picture, that are done: the last ones, and one at
        least. diffusers counts this way but for flow models, where it rounds up; A1111 does one
        more.

        >>> Change(0.75).steps(20), Change(0.1).steps(4)
        (15, 1)
        """
        return max(1, int(steps * self.strength))

    def labels(self) -> dict[str, str]:
        """What the text of a picture says of it, in A1111's names."""
        found = {"Denoising strength": f"{self.strength:g}"}
        if self.mask_blur is not None:
            found["Mask blur"] = str(self.mask_blur)
        if self.padding is not None:
            found |= {"Inpaint area": "Only masked", "Masked area padding": str(self.padding)}
        if self.image_guidance is not None:
            found["Image CFG scale"] = f"{self.image_guidance:g}"
        return found


def checked_strength(strength: object) -> float:
    """How much is changed. Raises InputError for anything but a number above 0, to 1."""
    strength = STRENGTH if strength is None else strength
    if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 < strength <= 1:
        raise InputError(f"strength is {strength!r}; expected a number above 0, which changes "
                         f"nothing, to 1, which leaves nothing")
    return float(strength)


def checked_pixels(what: str, count: object, usual: int) -> int:
    """A number of pixels. Raises InputError for anything but a whole number from 0 to 1024."""
    count = usual if count is None else count
    if not isinstance(count, Integral) or isinstance(count, bool) or not 0 <= count <= 1024:
        raise InputError(f"{what} is {count!r}; expected a whole number from 0 to 1024, in pixels")
    return int(count)


def checked_image_guidance(scale: object, edits: bool) -> float | None:
    """How strongly the picture steers; None for a model that is not for `edits`. Raises InputError.

    >>> checked_image_guidance(None, True), checked_image_guidance(None, False)
    (1.5, None)
    """
    if not edits:
        if scale is not None:
            raise InputError("image_guidance is for models that edit pictures, such as "
                             "InstructPix2Pix")
        return None
    scale = IMAGE_GUIDANCE if scale is None else scale
    if not isinstance(scale, Real) or isinstance(scale, bool) or not 0 <= scale <= (
            IMAGE_GUIDANCE_MAX):
        raise InputError(f"image_guidance is {scale!r}; expected a number from 0 to "
                         f"{IMAGE_GUIDANCE_MAX:g}; 1.5 is usual")
    return float(scale)
