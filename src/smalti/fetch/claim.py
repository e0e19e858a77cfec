"""A claim on a name that one process has at a time, and that ends with it however that ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2
"""Between looks whether another process is done."""


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


@contextmanager
def claimed(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Inside, no other process has this claim; `path` is an empty file that stays.

    `waiting` is called once where another process has it. Raises OSError where the file cannot be
    opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
