"""Modules that helpers compile before this process comes to need them.

Compiling is work in Python, which keeps one core busy (see `helper_process.py`). When a picture is
made for the first time, the decoder is compiled while this process compiles the denoiser, or runs
it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from functools import cache as once
from functools import partial
from typing import TYPE_CHECKING

from smalti import settings
from smalti.compiler.select import Submit
from smalti.errors import DeviceError
from smalti.runtime import cache
from smalti.runtime.order import ModuleOrder, entries_of, loaded, shown

if TYPE_CHECKING:
    from smalti.runtime.helper_process import Helpers

Entries = dict[str, bytes]
_coming: dict[str, Future[Entries]] = {}
"""What is being compiled, by the names of the modules, until the cache has it. Two threads that
want the same at the same moment may have it compiled twice; no lock is held while something is
asked for, as what is cancelled is told here at once."""
HELPERS_MAX = 3
"""Helpers at most where nothing is said: a picture has two or three parts, and each helper takes
about 200 MB."""
NODE_SECONDS = 5e-3
"""What compiling takes for each operation of a graph, about: 4 ms for the UNet of the model that
ships and 7 ms for its decoder, on a core of Zen 3."""
_log = logging.getLogger(__name__)


def helpers_for(threads: int | None) -> int:
    """How many helpers work beside a process that may keep so many cores busy, or, where nothing is
    said, all that it may.

    None do in a program that brings its own interpreter along (`sys.frozen`), as that would start
    the program again.
    """
    asked, cores = settings.helpers(), settings.threads()
    if getattr(sys, "frozen", False) or not sys.executable:
        return 0
    return min(cores, threads or cores, HELPERS_MAX + 1) - 1 if asked is None else asked


@once
def _helpers(count: int) -> Helpers:
    from smalti.runtime.helper_process import Helpers  # not needed for what is in the cache

    return Helpers(count)


def submitting(threads: int | None) -> Submit | None:
    """What takes work for the helpers of a process of so many `threads`; None where there are none,
    or stages are shown, which would be in no order."""
    count = helpers_for(threads)
    return None if count < 1 or shown() else _helpers(count).submit


def expect(threads: int | None) -> None:
    """Start a helper of a process of so many `threads` where nothing in the cache was made by the
    code that runs, so that much is to be compiled soon; once in a process."""
    if (count := helpers_for(threads)) > 0 and not shown() and cache.is_new():
        _expect(count)


@once
def _expect(count: int) -> None:
    _helpers(count).start()
    _helpers(count).submit(0.0, loaded)


def begin(orders: Iterable[ModuleOrder], threads: int | None) -> None:
    """Have helpers of a process of so many `threads` compile those of the modules that the cache
    has not, if there are helpers."""
    submit = submitting(threads)
    if submit is None:
        return
    for order in orders:
        if order.name in _coming or order.kept() is not None:
            continue
        future = submit(NODE_SECONDS * len(order.graph.nodes), entries_of, order.with_kernels())
        _coming[order.name] = future
        future.add_done_callback(partial(_arrived, order))


def _arrived(order: ModuleOrder, future: Future[Entries]) -> None:
    """Keep what a helper has made: in the cache, or, where that keeps nothing, here."""
    made = not future.cancelled() and future.exception() is None
    for name, payload in future.result().items() if made else ():
        cache.put(name, payload)
    if not made or order.kept() is not None:
        _coming.pop(order.name, None)


def coming(order: ModuleOrder) -> Future[Entries] | None:
    """What will have the module, where a helper compiles it."""
    return _coming.get(order.name)


def arrived(future: Future[Entries]) -> bytes | None:
    """The module that is coming, as bytes; None where no helper has begun with it, or one failed:
    then it is to be compiled here."""
    if future.cancel():
        return None
    try:
        return next(iter(future.result().values()))
    except DeviceError as error:
        _log.warning("a process that compiles beside this one failed (%s); it is done here", error)
    except CancelledError:
        pass
    return None


def _forget() -> None:
    """In a process that was forked: nobody brings it what its parent is waiting for."""
    _coming.clear()
    _helpers.cache_clear()
    _expect.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
