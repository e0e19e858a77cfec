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
import json
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
from smalti.runtime.gpu.child import APART, QUIET, searched

PROGRAM = """
import gc, json, sys
gc.disable()
sys.path[:] = json.loads(sys.argv[1])
from smalti.runtime.helper_process import serve
serve()
"""
START_SECONDS = 0.35
"""What a process takes until it has the modules of the compiler: measured on a core of Zen 3."""
IDLE_SECONDS = 5.0
"""After so long without work a process ends, which takes about 100 MB."""
NOT_SENT = (pickle.PickleError, AttributeError, TypeError)
"""What `pickle` raises for functions and arguments that it cannot write."""
Result = TypeVar("Result")
Work = tuple[float, Future, Callable[..., Any], tuple]
"""What is asked for: the seconds that it may take, what hears of the result, a function and its
arguments."""


_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


@atexit.register
def end_all() -> None:
    """End all processes, also those that are busy: nobody waits for them any more."""
    for helper in list(_helpers):
        helper.kill()


class Helper:
    """A process that calls functions for this one, one after the other."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(searched())], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, creationflags=QUIET | APART,
            start_new_session=not APART)
        _helpers.add(self)

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """What a function of a module returns for these arguments. Raises DeviceError where it
        fails or its process ends, OSError where nothing can be asked any more, and what `pickle`
        does for what cannot be sent."""
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        asked.write(pickle.dumps((function, arguments)))
        asked.flush()
        try:
            error, result = pickle.load(answered)
        except EOFError:
            raise DeviceError(f"its process ended with code {self._process.wait()}") from None
        if error:
            raise DeviceError(error)
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
    and ends when there is nothing to do for some time."""

    def __init__(self, count: int, idle_seconds: float = IDLE_SECONDS) -> None:
        self._count, self._idle_seconds = count, idle_seconds
        self._asked: deque[Work] = deque()
        self._changed = threading.Condition()
        self._running = 0

    def submit(self, seconds: float, function: Callable[..., Result], *arguments: object
               ) -> Future[Result]:
        """What a function of a module, which may take so many `seconds`, will have returned for
        these arguments, or how it failed. It can be cancelled as long as no helper has begun with
        it, and has to be where nobody waits for it: there may be none."""
        future: Future[Result] = Future()
        with self._changed:
            wanted = (each for each in self._asked if not each[1].cancelled())
            self._asked = deque([*wanted, (seconds, future, function, arguments)])
            waiting = sum(each for each, *_ in self._asked)
            if self._running < self._count and waiting > START_SECONDS * (1 + self._running):
                self._running += 1
                threading.Thread(target=self._work, daemon=True).start()
            self._changed.notify()
        return future

    def _work(self) -> None:
        """Have a process do what is asked, as long as there is something."""
        helper: Helper | None = None
        while (work := self._next()) is not None:
            _, future, function, arguments = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                helper = helper or Helper()
                future.set_result(helper.call(function, *arguments))
            except (DeviceError, OSError, *NOT_SENT) as error:
                if helper is not None:
                    helper.end()
                helper = None
                future.set_exception(error)
        if helper is not None:
            helper.end()

    def _next(self) -> Work | None:
        """What is to be done next; None after some time without."""
        with self._changed:
            if self._changed.wait_for(lambda: self._asked, self._idle_seconds):
                return self._asked.popleft()
            self._running -= 1
            return None


def serve() -> None:
    """Call the functions that the process that started this one asks for, until it ends.

    Such a process looks nothing over for garbage (see `PROGRAM`), which would take a fifth of its
    time; it does not live long.
    """
    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing that is printed may stand between answers
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
