"""Ctrl-C while modules load, when a KeyboardInterrupt would not arrive.

Loading runs foreign code that loses exceptions (the import system's own callbacks) or makes others
of them (numpy's C code: ImportError). No file is open for writing then, so the process just ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = 130


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, Ctrl-C ends the process with exit code 130, whatever runs.

    Nothing is changed in another thread than the main one, which never receives Ctrl-C, nor where
    the process ignores it, as a shell makes those that it starts in the background.
    """
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    if sys.stderr is not None:
        os.write(2, b"\nstopped\n")
    os._exit(STOPPED)
