"""What a process has for itself until it ends, however that ends: a name, a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.2
"""Between looks whether another process is done."""
LOCK = "in-use.lock"
"""What a process claims in its temporary folder."""
BEGUN_SECONDS = 60.0
"""After which a temporary folder has its claim: a younger one may be about to have it."""


def _locked(handle: int) -> bool:
    """Whether an open file is now locked by this process. The system ends a lock with its process.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _opened(path: Path) -> int:
    """The file of a claim."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


@contextmanager
def claimed(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Inside, no other process has this claim; `path` is an empty file that stays.

    `waiting` is called once where another process has it. Raises OSError where the file cannot be
    opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _opened(path)
    try:
        told = False
        while not _locked(handle):
            if not told:
                told = True
                waiting()
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder, which is deleted behind it. One that a process of the same purpose left,
    because it was killed, is deleted first."""
    prefix = f"smalti-{purpose}-"
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError):  # it is another user's, or in use, or another process deletes it
            if time.time() - lock.stat().st_mtime > BEGUN_SECONDS:
                with claimed(lock, _in_use):
                    pass
                shutil.rmtree(lock.parent)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        handle = _opened(Path(name) / LOCK)
        try:
            _locked(handle)  # where a file system has no locks, nobody deletes what was left
            yield Path(name)
        finally:
            os.close(handle)


def _in_use() -> None:
    raise BlockingIOError
