"""Ctrl-C: outside of a command it ends the process at once, inside it is a KeyboardInterrupt; and
how modules are loaded.

Loading modules runs foreign code that loses exceptions (the import system's own callbacks) or makes
others of them (numpy's C code: ImportError), and what click does before and after a command would
say "Aborted!" or show a traceback. No file is open for writing then, so the process just ends.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""What the `signal` module takes and gives for a signal."""
_ours = False
"""Whether the process is one of the command line, and not one that uses its functions."""
STOPPED = 130
"""The exit code of what Ctrl-C stopped: 128 and the number of the signal, as shells have it."""


def end_at_once() -> None:
    """From now on Ctrl-C ends the process with exit code 130, whatever runs.

    Nothing is changed in another thread than the main one, which never receives Ctrl-C, nor where
    the process ignores it, as a shell makes those that it starts in the background.
    """
    global _ours
    _ours = True
    if _listens():
        signal.signal(signal.SIGINT, _end)


@contextmanager
def loading_modules() -> Iterator[None]:
    """Inside, modules are loaded: Ctrl-C is as `end_at_once` has it, and no garbage is collected.

    The collector would run 230 times while a picture's modules load, which takes 0.1 s of its
    process. In a process that began with `end_at_once` it is not to look at it later
    either: all that lives now is kept to the end, of which modules are nearly all.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with _handled_by(_end):
            yield
    finally:
        if collects:
            if _ours:
                gc.freeze()
            gc.enable()


@contextmanager
def raising() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt where it would end the process at once."""
    before = signal.getsignal(signal.SIGINT)
    with _handled_by(signal.default_int_handler if before is _end else before):
        yield


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    """Inside, Ctrl-C is handled so, where this process listens to it."""
    if not _listens():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _listens() -> bool:
    """Whether this thread may receive Ctrl-C."""
    return signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None) \
        and threading.current_thread() is threading.main_thread()


def _end(number: int, frame: FrameType | None) -> None:
    if sys.stderr is not None:
        os.write(2, b"\nstopped\n")
    os._exit(STOPPED)
