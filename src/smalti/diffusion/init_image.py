"""The picture that img2img, inpainting or outpainting begins with: what of it is computed, in which
size, and how it is put back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from smalti.dataclass import dataclass
from smalti.diffusion.images import Picture, as_pixels, given, opaque, opened, resized
from smalti.diffusion.img2img import Img2Img
from smalti.diffusion.options import SIDE_MAX, PictureOptions
from smalti.diffusion.purpose import EDIT, TEXT, pictures_read
from smalti.diffusion.request import size_multiple
from smalti.errors import InputError
from smalti.models.config import ModelConfig

Floats = np.ndarray
Box = tuple[int, int, int, int]
RGBA = 4
"""Channels of pictures with opacity."""
STRENGTH, STRENGTH_OF_ALL = 0.75, 1.0
"""Strength where none is given: A1111's for img2img, and 1 where all is repainted."""
MASK_BLUR, PADDING = 4, 32
"""Pixels where none are given, as in A1111."""
IMAGE_GUIDANCE = 1.5
"""Of InstructPix2Pix, as in the paper."""
HALF = 0.5
"""A mask above it counts as one where a network reads it."""
FADE = 2
"""How far the mask of an extended picture reaches into it, in times of its blur."""


@dataclass(frozen=True)
class InitImage:
    """The initial picture of img2img, RGB; the `mask`, L, of its size, is white where it is
    repainted.

    Only `box` of it (left, top, right, bottom) is computed, in `width` x `height` pixels. The
    `others`, RGB, are read besides by models that read several.
    """

    picture: Image.Image
    mask: Image.Image | None
    box: Box
    width: int
    height: int
    change: Img2Img
    others: Sequence[Image.Image] = ()

    @property
    def shown(self) -> Image.Image:
        """What is computed, in the size that it has in the picture."""
        return self.picture.crop(self.box)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Width and height of all pictures that are read, in pixels."""
        return [each.size for each in (self.shown, *self.others)]

    def read_by(self, config: ModelConfig) -> list[tuple[int, int]]:
        """Width and height in which a model reads these pictures as tokens; none where it does not:
        each in a size of its own or all in that of the picture which is made, as is the first one
        where it shows through."""
        denoiser, made = config.denoiser, (self.width, self.height)
        return [made if not denoiser.apart or number == 0 and self.mask is not None
                else near(size, config) for number, size in enumerate(self.sizes)
                ] if denoiser.reference else []

    def pixels(self) -> Floats:
        """f32[3, height, width] in [-1, 1] of what is computed, or of four channels where it has
        opacity."""
        return as_pixels(resized(self.shown, self.width, self.height))

    def masked(self) -> Floats:
        """f32[height, width] in [0, 1] of what is computed: 1 where it is repainted."""
        if self.mask is None:
            return np.ones((self.height, self.width), np.float32)
        part = self.mask.crop(self.box)
        if part.size != (self.width, self.height):
            part = part.resize((self.width, self.height), Image.Resampling.BILINEAR)
        return np.asarray(part, np.float32) / 255

    def holed(self) -> Image.Image:
        """What is computed, in that size, as a ControlNet reads it that fills it: RGBA that is
        transparent where it is repainted, or RGB without a mask."""
        shown = resized(self.shown, self.width, self.height)
        if self.mask is not None:
            shown = shown.copy()
            shown.putalpha(Image.fromarray(
                np.where(self.masked() > HALF, 0, 255).astype(np.uint8)))
        return shown

    def put_back(self, made: Image.Image) -> Image.Image:
        """The whole picture with what was made of the box; where the mask is black it is the
        original, pixel for pixel."""
        if self.mask is None:
            return made
        left, top, right, bottom = self.box
        whole = self.picture.copy()
        made = made if whole.mode == made.mode else opaque(made)
        made = resized(made, right - left, bottom - top)
        whole.paste(made, self.box, self.mask.crop(self.box))
        return whole


def init_image(config: ModelConfig, options: PictureOptions, kind: str = "text"
               ) -> InitImage | None:
    """The initial picture that options give, prepared for a model; None without one.

    Without `width` and `height` it is computed in its own size, as near as the model's multiples
    allow, or in the model's own where it is `only_masked`. `kind` is the `purpose` of the model.
    All is repainted, where nothing else is said, by a model or a ControlNet that sees what is to
    stay. Raises InputError for what cannot be.
    """
    guidance = _or(options.image_guidance, IMAGE_GUIDANCE) if kind == EDIT else None
    if options.image is None:
        return None
    first, *more = given(options.image)
    if len(more) >= pictures_read(config):
        raise InputError(f"{1 + len(more)} pictures are given as image; this model reads "
                         f"{pictures_read(config)} at most")
    masked = options.mask is not None or options.extend is not None
    filled = masked and any(use.fills_changed for use in options.controls)
    usual = (STRENGTH_OF_ALL if kind != TEXT or options.extend is not None or filled
             else STRENGTH)
    change = Img2Img(_or(options.strength, usual),
                    _or(options.mask_blur, MASK_BLUR) if masked else None,
                    _or(options.padding, PADDING) if options.only_masked else None, guidance)
    picture, drawn = opened(first), None
    see_through = picture.has_transparency_data and config.vae.image_channels == RGBA
    picture = picture.convert("RGBA") if see_through else opaque(picture)
    others = [opaque(opened(each)) for each in more]
    if masked:
        picture, drawn = _prepared(picture, options.mask, options.extend, change.mask_blur or 0)
    own = ((config.default_width, config.default_height) if options.only_masked
           else near(picture.size, config))
    size = _or(options.width, own[0]), _or(options.height, own[1])
    if drawn is not None:
        _check_possible(size)
        if options.only_masked:
            masked_box = drawn.getbbox() or (0, 0, *picture.size)
            box = around(masked_box, change.padding or 0, size[0] / size[1], picture.size)
            return InitImage(picture, drawn, box, *size, change, others)
        if (options.width, options.height) != (None, None):
            picture, drawn = resized(picture, *size), resized(drawn, *size)
    return InitImage(picture, drawn, (0, 0, *picture.size), *size, change, others)


def _or(value: Any, default: Any) -> Any:
    """A value, or what is usual."""
    return default if value is None else value


def near(size: tuple[int, int], config: ModelConfig) -> tuple[int, int]:
    """The size of a picture, or that in which the model changes it or reads it besides, as near as
    its multiples allow."""
    multiple = size_multiple(config)
    whole = math.floor if config.denoiser.cropped else round
    width, height = (max(1, whole(extent / multiple)) * multiple
                     for extent in config.denoiser.sides(*size))
    return width, height


def as_read(picture: Image.Image, size: tuple[int, int], config: ModelConfig) -> Image.Image:
    """A picture in the size in which a model reads it: stretched, or where the model reads it in a
    size of its own and no other is asked for, cut off on both sides."""
    inner = config.denoiser.sides(*picture.size)
    left, top = ((extent - kept) // 2 for extent, kept in zip(inner, size, strict=True))
    if not config.denoiser.cropped or size != near(picture.size, config) or min(left, top) < 0:
        return resized(picture, *size)
    return resized(picture, *inner).crop((left, top, left + size[0], top + size[1]))


def _prepared(picture: Image.Image, mask: Picture | None, extend: Sequence[int] | None,
              blur: int) -> tuple[Image.Image, Image.Image]:
    """The picture, larger where it is extended, and its mask, L, which fades."""
    drawn = Image.new("L", picture.size) if mask is None else _drawn(mask, picture.size)
    if extend is None:
        return picture, drawn.filter(ImageFilter.GaussianBlur(blur))
    left, top, right, bottom = sides = _sides(extend)
    pads = ((top, bottom), (left, right))
    drawn = ImageChops.lighter(Image.fromarray(np.pad(np.asarray(drawn), pads)),
                               _frame(picture.size, sides, FADE * blur))
    faded = drawn.filter(ImageFilter.GaussianBlur(blur))
    mirrored = Image.fromarray(np.pad(np.asarray(picture), (*pads, (0, 0)), mode="symmetric"))
    return mirrored, ImageChops.lighter(faded, _frame(picture.size, sides, 0))


def _frame(size: tuple[int, int], sides: tuple[int, ...], reach: int) -> Image.Image:
    """White around a picture that is extended, and `reach` pixels into it from there, else black.
    """
    (width, height), (left, top, right, bottom) = size, sides
    frame = Image.new("L", (left + width + right, top + height + bottom), 255)
    inner = (left + reach * (left > 0), top + reach * (top > 0),
             left + width - reach * (right > 0), top + height - reach * (bottom > 0))
    if inner[0] < inner[2] and inner[1] < inner[3]:
        frame.paste(0, inner)
    return frame


def _sides(extend: Sequence[int]) -> tuple[int, ...]:
    """Pixels to add on the left, top, right and bottom. Raises InputError for other things."""
    sides = tuple(extend) if isinstance(extend, Sequence) and not isinstance(extend, str) else ()
    if len(sides) != 4 or not all(
            isinstance(side, Integral) and not isinstance(side, bool) and 0 <= side <= SIDE_MAX
            for side in sides) or not any(sides):
        raise InputError(f"extend is {extend!r}; expected the pixels to add on the left, top, "
                         f"right and bottom, such as (0, 0, 256, 0), each at most {SIDE_MAX}")
    return sides


def around(box: Box, padding: int, ratio: float, size: tuple[int, int]) -> Box:
    """A box with `padding`, made longer in one direction so that width / height is `ratio`, as far
    as it stays within a picture of this `size`.

    >>> around((40, 40, 60, 50), 5, 1.0, (100, 100)), around((0, 0, 10, 10), 0, 2.0, (15, 80))
    ((35, 30, 65, 60), (0, 0, 15, 10))
    """
    sides = [(box[0] - padding, box[2] + padding), (box[1] - padding, box[3] + padding)]
    (left, right), (top, bottom) = [(max(0, low), min(high, most))
                                    for (low, high), most in zip(sides, size, strict=True)]
    wide, high = right - left, bottom - top
    wide, high = max(wide, round(high * ratio)), max(high, round(wide / ratio))
    left, right = _widened(left, right, wide, size[0])
    top, bottom = _widened(top, bottom, high, size[1])
    return left, top, right, bottom


def _widened(low: int, high: int, length: int, most: int) -> tuple[int, int]:
    """A stretch of `length` around another, moved and cut to lie within 0 to `most`."""
    length = min(length, most)
    start = min(max(0, (low + high - length) // 2), most - length)
    return start, start + length


def _drawn(mask: Picture, size: tuple[int, int]) -> Image.Image:
    """A mask as L in the size of its picture; what is transparent is black. Raises InputError for
    one that is black."""
    drawn = opened(mask)
    if drawn.has_transparency_data:
        over = drawn.convert("RGBA")
        drawn = Image.alpha_composite(Image.new("RGBA", over.size, (0, 0, 0, 255)), over)
    drawn = drawn.convert("L")
    if drawn.size != size:
        drawn = drawn.resize(size, Image.Resampling.BILINEAR)
    if drawn.getbbox() is None:
        raise InputError("the mask is black everywhere, so that nothing would be made anew; it is "
                         "to be white where the picture is to change")
    return drawn


def _check_possible(size: tuple[object, ...]) -> None:
    """Raise InputError for a size that no picture has; what else is wrong with it is said of the
    request."""
    if not all(isinstance(extent, Integral) and 0 < int(extent) <= SIDE_MAX for extent in size):
        raise InputError(f"width and height are {size[0]!r} and {size[1]!r}; expected whole "
                         f"numbers from 1 to {SIDE_MAX}")
