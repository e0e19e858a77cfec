"""Img2img: a picture is made from another one, not from noise alone.

Meng et al. 2021, "SDEdit", arXiv:2108.01073: noise is added to the picture, and removed again with
a prompt. With a mask only a part of it is repainted (inpainting).
"""

from __future__ import annotations

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class Img2Img:
    """The options of img2img, with the usual values filled in.

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

        >>> Img2Img(0.75).steps(20), Img2Img(0.1).steps(4)
        (15, 1)
        """
        return max(1, int(steps * self.strength))

    def options(self) -> dict[str, float | int | None]:
        """The options of a picture that say the same."""
        return {"strength": self.strength, "mask_blur": self.mask_blur, "padding": self.padding,
                "image_guidance": self.image_guidance}
