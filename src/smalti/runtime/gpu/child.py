"""Questions that a driver may not survive, asked in a process of their own.

    answer = asked("smalti.runtime.vulkan.matrices", "vulkan:0", seconds=20)

runs `answered("vulkan:0")` of that module elsewhere, and gives back the text that it returns.

    with Talk("smalti.runtime.doctor.child", {"device": "vulkan:0"}) as talk:
        message = talk.hear(seconds=20)

runs `told(question, say)` of a module elsewhere, and hears what that says as it goes along.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import weakref
from typing import Any

from smalti.errors import DeviceError

PROGRAM = """
import sys
sys.path[:] = [each for each in sys.path if each]  # nothing in the current folder may run yet
import importlib, json
path, module, question = json.loads(sys.argv[1])
sys.path[:] = path
answer = importlib.import_module(module).answered(question)
sys.stdout.flush()
print("\\n" + json.dumps(answer))
"""
TALKING = """
import sys
sys.path[:] = [each for each in sys.path if each]
import importlib, json, os
path, module = json.loads(sys.argv[1])
sys.path[:] = path
heard = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

def say(message):
    heard.write(json.dumps(message) + "\\n")
    heard.flush()

importlib.import_module(module).told(json.load(sys.stdin), say)
"""
"""Drivers that print write to standard error, where nobody listens."""
TOLD_MAX = 300
"""Characters of what a process has said before it failed."""
QUIET: int = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # of Windows
APART: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""Of Windows; elsewhere a new session is as good: Ctrl-C does not reach such a process, and so is
not taken for what its driver did."""

_talks: weakref.WeakSet[Talk] = weakref.WeakSet()


def asked(module: str, question: str, seconds: float) -> str:
    """What the function `answered` of a module returns for `question`, in a process of its own.

    Raises DeviceError, which says how, where that process crashes, fails or takes longer than
    `seconds`. Whatever drivers print is ignored.
    """
    arguments = json.dumps([searched(), module, question])
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, arguments], capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=seconds, creationflags=QUIET)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"it gave no answer within {seconds:g} s") from None
    except OSError as error:
        raise DeviceError(f"no process could be started for it ({error})") from error
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise DeviceError(f"its process {ended(done.returncode)}{': ' if told else ''}"
                          f"{''.join(told)[:TOLD_MAX]}")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = None
    if not isinstance(answer, str):
        raise DeviceError("its process gave no answer")
    return answer


class Talk:
    """A process that runs `told(question, say)` of a module: what that says can be heard."""

    def __init__(self, module: str, question: object) -> None:
        """Raises DeviceError where no process can be started."""
        arguments = json.dumps([searched(), module])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TALKING, arguments], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
                errors="replace", creationflags=QUIET | APART, start_new_session=not APART)
        except OSError as error:
            raise DeviceError(f"no process could be started for it ({error})") from error
        _talks.add(self)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(json.dumps(question),), daemon=True).start()

    def _listen(self, question: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            with self._process.stdin as asked_here:
                asked_here.write(question)
        except OSError:  # it has ended already, which is heard below
            pass
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def hear(self, seconds: float) -> Any:
        """What it says next; None when it has ended well. Raises DeviceError where it crashes, or
        says nothing for so long."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise DeviceError(f"it gave no answer within {seconds:g} s") from None
        if line is not None:
            return json.loads(line)
        if code := self._process.wait():
            raise DeviceError(f"its process {ended(code)}")
        return None

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()


def end_talks() -> None:
    """End all processes that are still talking."""
    for talk in list(_talks):
        talk.__exit__()


def searched() -> list[str]:
    """Where a process finds the modules that this one finds."""
    return [str(entry) or "." for entry in sys.path]


def ended(code: int) -> str:
    """How a process ended, in words.

    >>> ended(-11), ended(3)
    ('ended with signal 11', 'ended with code 3')
    """
    return f"ended with {f'signal {-code}' if code < 0 else f'code {code}'}"
