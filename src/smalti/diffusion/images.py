"""Pictures that a pipeline is given: read, resized, and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from smalti.errors import InputError

Floats = np.ndarray
Picture = Image.Image | str | Path
BACKGROUND = (255, 255, 255, 255)
"""What is seen through transparent pixels."""


def given(pictures: Picture | Sequence[Picture], what: str = "image") -> list[Any]:
    """One picture or several as a list, which are given as `what`. Raises InputError for none.

    >>> given("a.png"), given(["a.png", "b.png"])
    (['a.png'], ['a.png', 'b.png'])
    """
    found: list[Any] = list(pictures) if isinstance(pictures, list | tuple) else [pictures]
    if not found:
        raise InputError(f"{what} is an empty list; expected a picture, or several")
    return found


def opened(picture: Picture) -> Image.Image:
    """A picture, or the one in a file, turned as its camera says.

    Raises InputError for anything else.

    >>> opened("no-such.png")
    Traceback (most recent call last):
        ...
    smalti.errors.InputError: no-such.png cannot be read as a picture: ...
    """
    if isinstance(picture, Image.Image):
        return picture
    if not isinstance(picture, str | Path):
        raise InputError(f"a picture is given as {type(picture).__name__}; expected a PIL image or "
                         f"the path of a file")
    try:
        with Image.open(picture) as read:
            return ImageOps.exif_transpose(read)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{picture} cannot be read as a picture: {why}") from None


def opaque(picture: Image.Image) -> Image.Image:
    """The picture as RGB, what is transparent on white; of 16 bits the upper 8 count. Raises
    InputError for one without pixels.

    >>> opaque(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if min(picture.size) < 1:
        raise InputError(f"a picture of {picture.width} x {picture.height} pixels is given; "
                         f"expected one at least")
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, BACKGROUND), over).convert("RGB")


def resized(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The picture in another size; itself where it has that size."""
    if picture.size == (width, height):
        return picture
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def as_pixels(picture: Image.Image) -> Floats:
    """A picture as f32[3, height, width] in [-1, 1], f32[4, height, width] where it has opacity.

    >>> as_pixels(Image.new("RGB", (2, 1), (255, 0, 0)))[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """
    channels = np.asarray(picture, np.float32).transpose(2, 0, 1)
    return np.ascontiguousarray(channels) / np.float32(127.5) - np.float32(1)
