"""Processes that compute something for this one while it does something else.

    helpers = Helpers(1)
    later = helpers.submit(2.0, factorial, 20)   # a function of a module, which takes about 2 s
    later.result()

Python runs one thread at a time, so that work in Python, as compiling is, gains from another core
by another process only. It is an interpreter that finds the modules that this one finds and runs
nothing of the program that was started, which need not be written for it, as those have to be that
use `multiprocessing`. What is asked and answered is pickled.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from smalti.errors import DeviceError, SmaltiError
from smalti.runtime.cache import code_digest
from smalti.runtime.gpu.child import APART, QUIET, searched

PROGRAM = """
import gc, sys
gc.disable()
sys.path[:] = sys.argv[1:]
from smalti.runtime.helper_process import serve
serve()
"""
"""What a helper runs; before it has its path it imports only what is built in, as nothing in the
current folder may run."""
HELLO = b"smalti-helper "
"""A line that begins so, after whatever a site prints, is the first that a helper says: its code's
digest."""
START_SECONDS = 0.35
"""What a process takes until it has the modules of the compiler: measured on a core of Zen 3."""
START_SECONDS_MAX = 60.0
"""One that has not said that it is there after so long never will: it may be no Python."""
IDLE_SECONDS = 5.0
"""After so long without work a process ends: it takes about 200 MB."""
NOT_SENT = (OSError, pickle.PickleError, ArithmeticError, AttributeError, ImportError, LookupError,
            MemoryError, RecursionError, TypeError, ValueError)
"""What writing and reading raise for what `pickle` does not take, and for half an answer."""
Result = TypeVar("Result")
Work = tuple[float, Future, Callable[..., Any], tuple]
"""What is asked for: the seconds that it may take, what hears of the result, a function and its
arguments."""
_log = logging.getLogger(__name__)
_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


@atexit.register
def end_all() -> None:
    """End all processes, also those that are busy: nobody waits for them any more."""
    for helper in list(_helpers):
        helper.kill()


class Helper:
    """A process that calls functions for this one, one after the other."""

    def __init__(self) -> None:
        """Returns when it is there. Raises DeviceError where no process can be started, or one that
        runs other code than this one."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *searched()], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, creationflags=QUIET | APART,
                start_new_session=not APART)
        except (OSError, ValueError) as error:
            raise DeviceError(f"no process could be started ({error})") from error
        _helpers.add(self)
        slow = threading.Timer(START_SECONDS_MAX, self.kill)
        slow.daemon = True
        slow.start()
        try:
            self._hear_hello()
        except DeviceError:
            self.end()
            raise
        finally:
            slow.cancel()

    def _hear_hello(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(HELLO):
                if line[len(HELLO):].strip().decode("ascii", "replace") != code_digest():
                    raise DeviceError("it has other code than this one: Smalti was changed while "
                                      "it ran")
                return
        raise DeviceError(f"it ended with code {self._process.wait()} before it did anything")

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """What a function of a module returns for these arguments. Raises DeviceError, which says
        how, where it fails, its process ends, or something cannot be sent."""
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        try:
            asked.write(pickle.dumps((function, arguments)))
            asked.flush()
            trouble, result = pickle.load(answered)
        except EOFError:
            raise DeviceError(f"its process ended with code {self._process.wait()}") from None
        except NOT_SENT as error:
            raise DeviceError(f"{type(error).__name__}: {error}") from error
        if trouble:
            raise DeviceError(trouble)
        return result

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()

    def end(self) -> None:
        """End the process, and give back what it took."""
        self.kill()
        self._process.communicate()


class Helpers:
    """At most `count` helpers. One is started when what waits for it takes longer than its start,
    and ends when there is nothing to do for some time. Where one cannot be started, a warning says
    so, and nothing is taken any more."""

    def __init__(self, count: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self._count, self._idle_seconds = count, idle_seconds
        self._asked: deque[Work] = deque()
        self._seconds = 0.0  # of what is asked for
        self._changed = threading.Condition()
        self._running = 0

    def start(self) -> None:
        """Start a helper, if none runs, for what will be asked for soon."""
        with self._changed:
            if not self._running:
                self._start()

    def submit(self, seconds: float, function: Callable[..., Result], *arguments: object
               ) -> Future[Result]:
        """What a function of a module, which may take so many `seconds`, will have returned for
        these arguments, or how it failed. It can be cancelled as long as no helper has begun with
        it, and has to be where nobody waits for it: there may be none."""
        future: Future[Result] = Future()
        with self._changed:
            if not self._count:
                future.cancel()
                return future
            self._drop_cancelled()
            self._asked.append((seconds, future, function, arguments))
            self._seconds += seconds
            self._start_where_worth_it()
            self._changed.notify()
        return future

    def _drop_cancelled(self) -> None:
        """Forget what nobody wants any more, as far as it is at either end."""
        for end, pop in ((0, self._asked.popleft), (-1, self._asked.pop)):
            while self._asked and self._asked[end][1].cancelled():
                self._seconds -= pop()[0]

    def _start_where_worth_it(self) -> None:
        """Start a helper more where what waits takes longer than that; `_changed` is held."""
        if self._seconds > START_SECONDS * (1 + self._running):
            self._start()

    def _start(self) -> None:
        """Start a helper, if there may be one more; `_changed` is held."""
        if self._running >= self._count:
            return
        self._running += 1
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError as error:  # the system gives no threads
            self._running -= 1
            self._give_up(error)

    def _work(self) -> None:
        """Have a process do what is asked, as long as there is something."""
        helper: Helper | None = None
        try:
            helper = Helper()
            while (work := self._next()) is not None:
                _, future, function, arguments = work
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    result = helper.call(function, *arguments)
                except DeviceError as error:
                    future.set_exception(error)
                    ended, helper = helper, None
                    ended.end()
                    helper = Helper()
                else:
                    future.set_result(result)
        except DeviceError as error:
            with self._changed:
                self._give_up(error)
        finally:
            with self._changed:
                self._running -= 1
                self._start_where_worth_it()  # for what was asked when this one was leaving
            if helper is not None:
                helper.end()

    def _next(self) -> Work | None:
        """What is to be done next; None after some time without."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._asked, self._idle_seconds):
                return None
            work = self._asked.popleft()
            self._seconds = self._seconds - work[0] if self._asked else 0.0
            return work

    def _give_up(self, error: Exception) -> None:
        """Take nothing any more; `_changed` is held."""
        if self._count:
            _log.warning("no process could be started to compile beside this one (%s); all is "
                         "compiled here", error)
        self._count = 0
        while self._asked:
            self._asked.popleft()[1].cancel()
        self._seconds = 0.0


def serve() -> None:
    """Call the functions that the process that started this one asks for, until it ends.

    Such a process looks nothing over for garbage (see `PROGRAM`), which would take a fifth of its
    time; it does not live long. What is printed in it goes to nobody.
    """
    asked, answered = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answered.write(b"\n" + HELLO + code_digest().encode() + b"\n")
    answered.flush()
    while True:
        try:
            function, arguments = pickle.load(asked)
        except EOFError:
            return
        try:
            answer = "", function(*arguments)
        except (SmaltiError, ArithmeticError) as error:  # any other ends this process
            answer = f"{type(error).__name__}: {error}", None
        answered.write(pickle.dumps(answer))
        answered.flush()
