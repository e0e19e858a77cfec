"""Where pictures go: files in folders by date, each with its settings, and back by their records.

    OUTPUT/2026-11-22/165533-3f9ac01b77d2-1.png     the time of asking, the job, the number

The name of a file is known before it is made, so a job that is made again, because the process was
killed, writes the same files. Small ones lie in `OUTPUT/.thumbnails`, which may be deleted.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from smalti.errors import OutputError
from smalti.server.archive import JobRecord, PictureRecord

if TYPE_CHECKING:
    from smalti.diffusion.result import Result
    from smalti.server.messages import Finished
    from smalti.server.thumbnails import Thumbnails
    from smalti.server.upscaling import Enlarged

THUMBNAILS = ".thumbnails"
"""The folder of small pictures, below that of results."""
THUMBNAIL_SIDE = 384
"""Pixels of a thumbnail, at most: sharp on screens of twice the usual density, four in a row."""

PNG = b"\x89PNG\r\n\x1a\n"
"""What a picture's file begins with: another one in its place is not shown, whoever put it there.
"""


class Gallery:
    """The folder of results. Raises OutputError where it cannot be made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        _made(root)

    @cached_property
    def thumbnails(self) -> Thumbnails:
        """The small pictures."""
        from smalti.server.thumbnails import Thumbnails

        return Thumbnails(self.root / THUMBNAILS)

    def write(self, job: JobRecord, result: Result | Enlarged | Finished
              ) -> list[PictureRecord]:
        """Write the pictures of a job; all of them, or none. Raises OutputError."""
        from smalti.diffusion.made_picture import save_whole

        asked, found = result.parameters, []
        _made(self.root / day(job))
        for number, picture in enumerate(result.images, 1):
            path = f"{day(job)}/{stem(job)}-{number}.png"
            found.append(PictureRecord(
                0, job.id, path, time.time(), picture.width, picture.height,
                result.seeds[number - 1], asked.model, asked.prompt, result.texts[number - 1]))
            try:
                save_whole(picture, self.root / path)
            except OutputError:
                self.remove(found)
                raise
        return found

    def remove(self, pictures: Sequence[PictureRecord]) -> None:
        """Take files away again."""
        for each in pictures:
            (self.root / each.path).unlink(missing_ok=True)

    def clean(self, job: JobRecord) -> None:
        """Take away what a process that was killed left half-written of a job."""
        folder = self.root / day(job)
        for each in folder.glob(f"{stem(job)}-*.part") if folder.is_dir() else ():
            each.unlink(missing_ok=True)

    def thumbnail(self, picture: PictureRecord) -> bytes | None:
        """A picture in small, as WebP; None where its file is gone. Raises InputError for a file
        that is no picture any more."""
        path = self.file(picture)
        if path is None:  # somebody deleted it in the folder itself
            self.thumbnails.forget(_name(picture))
            return None
        return self.thumbnails.of(path, _name(picture), THUMBNAIL_SIDE)

    def delete(self, picture: PictureRecord) -> None:
        """Delete the file of a picture; a link is deleted, not what it leads to. Raises
        OutputError."""
        path = self.root / picture.path
        if path.parent.resolve().is_relative_to(self.root.resolve()):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(f"{path} cannot be deleted: {error.strerror or error}") from None
        self.thumbnails.forget(_name(picture))

    def file(self, picture: PictureRecord) -> Path | None:
        """The file of a picture; None where it is gone, is none, or leads out of the folder."""
        path = self._inside(picture)
        if path is None:
            return None
        with suppress(FileNotFoundError), path.open("rb") as file:
            return path if file.read(len(PNG)) == PNG else None
        return None

    def content(self, picture: PictureRecord) -> bytes | None:
        """What is in the file of a picture; None where `file` is. It is read whole, as it may be
        deleted at any time."""
        path = self._inside(picture)
        if path is None:
            return None
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            return content if content.startswith(PNG) else None
        return None

    def _inside(self, picture: PictureRecord) -> Path | None:
        """Where the file of a picture lies; None where that is not in the folder, or no file."""
        path = (self.root / picture.path).resolve()
        return path if path.is_relative_to(self.root.resolve()) and path.is_file() else None


def encoded(content: bytes, kind: str, quality: int, flat: bool = False) -> bytes:
    """A picture of the gallery, PNG, in the format that PIL calls so, with its settings; `quality`
    is that of JPEG and WebP, 0 to 100. What is transparent is white in JPEG, and where it is to be
    `flat`."""
    from PIL import Image

    from smalti.diffusion.images import opaque
    from smalti.diffusion.made_picture import MadePicture
    from smalti.diffusion.metadata import carried

    stream = io.BytesIO()
    with Image.open(io.BytesIO(content)) as shown:
        flat = shown.mode == "RGBA" and flat
        if kind == "PNG" and not flat:
            return content
        picture = opaque(shown) if flat or shown.mode != "RGBA" else shown.copy()
        options = {} if kind == "PNG" else {"quality": quality}
        MadePicture.of(picture, carried(shown)).save(stream, kind, **options)
    return stream.getvalue()


def is_transparent(content: bytes) -> bool:
    """Whether a picture of the gallery, PNG, can be seen through anywhere."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as shown:
        return shown.mode == "RGBA" and shown.getchannel("A").getextrema() != (255, 255)


def _name(picture: PictureRecord) -> str:
    """What the thumbnail of a picture is kept under."""
    return picture.path.removesuffix(".png")


def day(job: JobRecord) -> str:
    """The folder of a job's pictures."""
    return time.strftime("%Y-%m-%d", time.localtime(job.created))


def stem(job: JobRecord) -> str:
    """What the names of a job's files begin with."""
    return f"{time.strftime('%H%M%S', time.localtime(job.created))}-{job.id}"


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error}; choose "
                          f"another one with --output") from None
