"""A finished file takes the place of another one, also where somebody has that open for a moment.

Windows lets nobody replace a file that another program has open. Virus scanners and indexers open
each file that was just written, and a second process may read an entry of the cache: they are
waited for. A file that stays open, as a compiled model that another process runs, is an error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

WAITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds between attempts; a scanner is done with a picture within a few hundredths."""


def followed(path: Path) -> Path:
    """The file that `path` stands for where it is a link, which stays; else `path` itself.

    Nothing else of it is resolved: on Windows that makes other names of drives, and fails for paths
    that are long.
    """
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def take_place(part: Path, whole: Path, *, waits: bool = sys.platform == "win32") -> None:
    """Move the file `part` to `whole`, in the place of what is there.

    Raises OSError; where `waits`, which Windows needs, a PermissionError only of a file that stays
    open for almost a second, and it says so.
    """
    for seconds in WAITS if waits else ():
        try:
            os.replace(part, whole)
            return
        except PermissionError:
            time.sleep(seconds)
    try:
        os.replace(part, whole)
    except PermissionError as error:
        if not waits or not whole.exists():
            raise
        raise PermissionError(error.errno, f"{error.strerror}; the file may be read-only, or open "
                              f"in another program") from None


@contextmanager
def replacing(whole: Path) -> Iterator[BinaryIO]:
    """A stream to a new file that takes the place of `whole` when all went well; else nothing of it
    stays. Raises OSError."""
    part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as stream:
            yield stream
        take_place(part, whole)
    finally:
        part.unlink(missing_ok=True)
