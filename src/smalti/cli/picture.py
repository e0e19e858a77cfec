"""Pictures that commands read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smalti.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image


def read_picture(path: Path) -> Image:
    """The picture in a file, turned as its camera says. Raises InputError for anything else.

    >>> read_picture(Path("no-such.png"))
    Traceback (most recent call last):
        ...
    smalti.errors.InputError: no-such.png cannot be read as a picture: ...
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            return ImageOps.exif_transpose(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from None
