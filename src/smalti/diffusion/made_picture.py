"""Pictures that carry how they were made, and where they are written to."""

from __future__ import annotations

import io
import os
import re
import zlib
from pathlib import Path
from typing import IO, Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from smalti.diffusion.images import opaque
from smalti.diffusion.metadata import PNG_KEY, exif_of
from smalti.errors import OutputError
from smalti.runtime.container import replaced

NUMBER = re.compile(r"%0?(\d*)d")
"""The number of a picture in a pattern of names, such as `%03d`."""
DIGITS_MAX = 20
"""Digits that such a number may be padded to: more than any count of pictures has, and a name that
file systems take."""
COMMENTED = ("JPEG", "WEBP", "AVIF", "TIFF")
"""Formats whose EXIF data take a text."""
OPAQUE = ("JPEG", "BMP")
"""Formats that have no opacity, or whose opacity few programs read."""
PNG_PACKING = {"compress_type": zlib.Z_RLE}
"""How PNG files are packed: what repeats is looked for in runs of one byte only. This every zlib
does in the same way, so that a picture is the same file on every system; where more is looked for,
zlib and zlib-ng, of which Pillow takes one or the other, find different things. Behind PNG's
filters photographs become 2 % smaller to 3 % larger by it, in a third of the time."""


class MadePicture(Image.Image):
    """A PIL image with its settings as `info["parameters"]`, which `save` writes into the file.

    They stand where A1111 puts them: in a chunk of PNG files, in the EXIF comment of JPEG and WebP
    files. Pictures that are made of it (`resize`, `crop`, ...) are plain ones.

    >>> made = MadePicture.of(Image.new("RGB", (2, 1), "red"), "a red line")
    >>> stream = io.BytesIO()
    >>> made.save(stream, "png")
    >>> Image.open(stream).info["parameters"]
    'a red line'
    """

    @classmethod
    def of(cls, image: Image.Image, text: str) -> MadePicture:
        """An image with this parameters text."""
        made = cls()
        made.__dict__.update(image.__dict__)
        made.info = {**image.info, PNG_KEY: text}
        return made

    def save(self, fp: str | bytes | os.PathLike[str] | os.PathLike[bytes] | IO[bytes],
             format: str | None = None, **params: Any) -> None:
        """Write the picture with its settings; what is given is as for `PIL.Image.Image.save`. In
        a format without opacity what is transparent is white."""
        text, kind = self.info.get(PNG_KEY), format
        if kind is None and isinstance(fp, str | os.PathLike):
            kind = Image.registered_extensions().get(Path(os.fsdecode(fp)).suffix.lower())
        if (kind or "").upper() in OPAQUE and self.mode == "RGBA":
            MadePicture.of(opaque(self), text or "").save(fp, format, **params)
            return
        if (kind or "").upper() == "PNG" and not params.keys() & {"compress_level", "optimize"}:
            params = PNG_PACKING | params
        if text and (kind or "").upper() == "PNG" and "pnginfo" not in params:
            params["pnginfo"] = PngInfo()
            params["pnginfo"].add_text(PNG_KEY, text)
        elif text and (kind or "").upper() in COMMENTED and "exif" not in params:
            params["exif"] = exif_of(text)
        super().save(fp, format, **params)


def save_whole(picture: Image.Image, path: Path) -> None:
    """Write a picture to a file, which is either the whole of it or untouched.

    Raises OutputError for an ending that is no picture's, and when the operating system refuses.
    """
    content = encoded(picture, path)
    with replaced(path) as stream:
        stream.write(content)


def encoded(picture: Image.Image, path: Path) -> bytes:
    """What is in the file of a picture. Raises OutputError for an ending that is no picture's."""
    kind, content = Image.registered_extensions().get(path.suffix.lower()), io.BytesIO()
    if kind not in Image.SAVE:
        raise OutputError(f"{path} has no ending of a picture; give a name that ends in .png, .jpg "
                          f"or .webp")
    picture.save(content, kind, **(PNG_PACKING if kind == "PNG" else {}))
    return content.getvalue()


def numbered(pattern: str, count: int) -> list[Path]:
    """`count` paths to write to, numbered from 1 where `pattern` holds `%03d` or the like.

    A pattern without a number gets `-%03d` before its ending when there are several pictures.
    Raises OutputError for a name that holds two numbers, or one of more than 20 digits.

    >>> [path.name for path in numbered("apple.png", 1)]
    ['apple.png']
    >>> [path.name for path in numbered("apple.webp", 2)]
    ['apple-001.webp', 'apple-002.webp']
    """
    fields = NUMBER.findall(pattern)
    if len(fields) > 1:
        raise OutputError(f"the output {pattern!r} holds {len(fields)} numbers; one is enough")
    if fields and (len(fields[0]) > 3 or int(fields[0] or 0) > DIGITS_MAX):
        raise OutputError(f"the output {pattern!r:.80} asks for {fields[0]:.20} digits; expected "
                          f"at most {DIGITS_MAX}, such as %03d")
    if not fields and count == 1:
        return [Path(pattern)]
    if not fields:
        stem, ending = os.path.splitext(pattern)
        pattern = f"{stem}-%03d{ending}"

    def name(number: int) -> str:
        return NUMBER.sub(lambda field: str(number).zfill(int(field[1] or 0)), pattern)

    return [Path(name(number)) for number in range(1, count + 1)]
