"""Small pictures of large ones, made when they are first asked for and kept in a folder."""

from __future__ import annotations

import io
import os
import threading
from contextlib import suppress
from pathlib import Path

from PIL import Image

from smalti.errors import InputError, OutputError
from smalti.runtime.container import replaced
from smalti.server.asked import INPUT_FORMATS, INPUT_PIXELS_MAX

QUALITY = 80
"""Of WebP, as its encoder has it by default; a thumbnail of 384 pixels takes 10 to 30 kB."""


class Thumbnails:
    """Pictures in WebP of a folder; one is made at a time, so that they take one core at most."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()

    def of(self, source: Path, name: str, side: int, most: int | None = None) -> bytes:
        """The picture in the file `source`, at most `side` pixels wide and high; it is kept under
        `name`, a path below the folder. Beside it `most` are kept, those that were asked for last.

        Raises InputError for what is no picture. Where the disk refuses, it is made again each
        time.
        """
        path = self._path(name)
        with self._turn:
            with suppress(OSError):
                content = path.read_bytes()
                if most is not None:
                    os.utime(path)
                return content
            content = reduced(source, side)
            with suppress(OSError, OutputError):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replaced(path) as stream:
                    stream.write(content)
                if most is not None:
                    _trim(path.parent, most)
            return content

    def forget(self, name: str) -> None:
        """Delete the one that is kept under a name, if there is one; one that is being made is
        waited for."""
        with self._turn, suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.webp"


def _trim(folder: Path, most: int) -> None:
    """Keep so many files of a folder, those that were used last. Raises OSError."""
    with os.scandir(folder) as found:
        files = sorted((each.stat().st_mtime_ns, each.path) for each in found)
    for _, path in files[:-most]:
        os.unlink(path)


def reduced(source: Path, side: int) -> bytes:
    """A picture file as WebP of at most `side` pixels. Raises InputError for what is none."""
    try:
        with Image.open(source, formats=INPUT_FORMATS) as picture:
            if picture.width * picture.height > INPUT_PIXELS_MAX:
                raise InputError(f"{source.name} has {picture.width} x {picture.height} pixels; "
                                 f"expected at most {INPUT_PIXELS_MAX} of them")
            picture.draft("RGB", (side, side))
            small = picture.convert("RGBA" if "A" in picture.getbands() else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{source.name} cannot be read as a picture: {error}") from None
    small.thumbnail((side, side))
    stream = io.BytesIO()
    small.save(stream, "WEBP", quality=QUALITY)
    return stream.getvalue()
