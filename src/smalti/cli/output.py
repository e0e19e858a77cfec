"""Where pictures go: names for a batch, a check before the work, and whole files only."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from smalti.cli.interrupt import loading_modules
from smalti.errors import OutputError
from smalti.replacement import followed, take_place

if TYPE_CHECKING:
    from PIL.Image import Image


def output_paths(pattern: str, count: int) -> list[Path]:
    """`count` paths to write to, numbered from 1 where `pattern` holds `%03d` or the like.

    A pattern without a number gets `-%03d` before its ending when there are several pictures.
    Raises OutputError for a name that does not end in `.png` or holds two numbers,
    or one of more than 20 digits.

    >>> [path.name for path in output_paths("apple.png", 1)]
    ['apple.png']
    >>> [path.name for path in output_paths("apple.png", 2)]
    ['apple-001.png', 'apple-002.png']
    >>> [path.name for path in output_paths("%02d-apple.png", 2)]
    ['01-apple.png', '02-apple.png']
    """
    if Path(pattern).suffix.lower() != ".png":
        raise OutputError(f"pictures are written as PNG, but the output is {pattern!r}; "
                          f"give a name that ends in .png")
    with loading_modules():
        from smalti.diffusion.made_picture import numbered
    return numbered(pattern, count)


def check_writable(paths: Sequence[Path]) -> None:
    """Raise OutputError when one of `paths` cannot be written; leaves no trace.

    >>> check_writable([Path("no-such-folder") / "apple.png"])
    Traceback (most recent call last):
        ...
    smalti.errors.OutputError: cannot write no-such-folder/apple.png: there is no folder ...
    """
    for path in paths:
        try:
            _check_writable(path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}; choose another output"
                              ) from None


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give a file name in it")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}; make it "
                          f"first or choose another output")
    _refuse_devices(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"cannot write {path}: the file is read-only; choose another output")
    part = part_path(followed(path))
    part.touch()
    part.unlink()


def _refuse_devices(path: Path) -> None:
    """Raise OutputError for a device, a pipe and the like: a new file would take its place."""
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it is no file; give the name of a file, which may "
                          f"be new")


def show_bytes(size: int) -> str:
    """The size of a file in a unit that fits.

    >>> show_bytes(123), show_bytes(4567), show_bytes(2_500_000)
    ('123 bytes', '4.6 kB', '2.5 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def check_apart(output: Path, *sources: Path | None) -> None:
    """Raise OutputError when `output` is one of the files that are read."""
    for source in sources:
        if source is not None and source.exists() and output.exists() and output.samefile(source):
            raise OutputError(f"the output {output} would replace {source}, which is read; choose "
                              f"another output")


def part_path(path: Path) -> Path:
    """The temporary file beside `path`, of this process alone."""
    return path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}.part")


def write_png(image: Image, path: Path, parameters: str) -> None:
    """Write `image` with its `parameters` text; `path` is either the whole picture or untouched.

    Raises OutputError when the operating system refuses.
    """
    from smalti.diffusion.made_picture import MadePicture

    content = io.BytesIO()
    MadePicture.of(image, parameters).save(content, "PNG")
    replace_file(path, content.getvalue())


def replace_file(path: Path, content: bytes) -> None:
    """Write `content`; `path` is either the whole of it or untouched.

    Raises OutputError when the operating system refuses.
    """
    with whole_file(path) as stream:
        stream.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A stream to write `path` to, which is untouched unless everything inside ends well.

    Raises OutputError when the operating system refuses.
    """
    _refuse_devices(path)
    whole = followed(path)
    part = part_path(whole)
    try:
        with open(part, "wb") as stream:
            yield stream
        take_place(part, whole)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
