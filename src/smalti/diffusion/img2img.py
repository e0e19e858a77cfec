"""How a picture is changed, as a request says it.

Meng et al. 2021, "SDEdit", arXiv:2108.01073: noise is put on the picture, and taken off again with
a prompt. With a mask only a part of it is made anew, and the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Img2Img:
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

        >>> Img2Img(0.75).steps(20), Img2Img(0.1).steps(4)
        (15, 1)
        """
        return max(1, int(steps * self.strength))

    def options(self) -> dict[str, float | int | None]:
        """The options of a picture that say the same."""
        return {"strength": self.strength, "mask_blur": self.mask_blur, "padding": self.padding,
                "image_guidance": self.image_guidance}
