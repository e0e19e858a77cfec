"""Processes that compute something for this one."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from smalti.errors import DeviceError, InputError
from smalti.runtime.helper_process import START_SECONDS, Helpers

LONG = 2 * START_SECONDS
"""What is said to take so long is worth a helper."""


def elsewhere(*given: object) -> tuple[int, tuple]:
    return os.getpid(), given


def fails(text: str) -> None:
    raise InputError(text)


def running(helpers: Helpers) -> int:
    return helpers._running


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Helpers:
    return Helpers(1, idle_seconds=0.5)


def test_functions_are_called_in_one_other_process(helpers: Helpers) -> None:
    found = [helpers.submit(LONG, elsewhere, number, "\u00e9", b"\n\0") for number in range(3)]
    processes, given = zip(*(each.result() for each in found), strict=True)
    assert len({*processes, os.getpid()}) == 2
    assert given == tuple((number, "\u00e9", b"\n\0") for number in range(3))


def test_what_is_printed_there_is_no_answer(helpers: Helpers) -> None:
    assert helpers.submit(LONG, print, "not an answer").result() is None
    assert helpers.submit(0.0, math.factorial, 20).result() == math.factorial(20)


def test_a_function_that_fails_says_how_and_the_next_one_runs(helpers: Helpers) -> None:
    failed, after = helpers.submit(LONG, fails, "of its own"), helpers.submit(LONG, elsewhere)
    with pytest.raises(DeviceError, match="InputError: of its own"):
        failed.result()
    assert after.result()[1] == ()


def test_a_process_that_ends_is_followed_by_another(helpers: Helpers) -> None:
    first, _ = helpers.submit(LONG, elsewhere).result()
    for function, code in ((os._exit, 3), (int, 1)):
        ended = helpers.submit(LONG, function, "x" if code == 1 else code)
        with pytest.raises(DeviceError, match=f"ended with code {code}"):
            ended.result()
    second, _ = helpers.submit(LONG, elsewhere).result()
    assert first != second


def test_what_cannot_be_sent_is_said(helpers: Helpers) -> None:
    with pytest.raises(Exception, match="(?i)pickle"):
        helpers.submit(LONG, lambda: None).result()
    assert helpers.submit(LONG, elsewhere, 1).result()[1] == (1,)


def test_no_process_is_an_error_for_who_asks(helpers: Helpers,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError):
        helpers.submit(LONG, elsewhere).result()


def test_none_is_started_for_what_takes_less_than_its_start(helpers: Helpers) -> None:
    few = [helpers.submit(START_SECONDS / 4, elsewhere, number) for number in range(3)]
    assert running(helpers) == 0 and not any(each.done() for each in few)
    assert few[0].cancel()
    more = [helpers.submit(START_SECONDS / 4, elsewhere, number) for number in (3, 4)]
    assert running(helpers) == 0  # one of five is not wanted any more
    last = helpers.submit(START_SECONDS / 4, elsewhere, 5)
    assert running(helpers) == 1
    given = [each.result()[1][0] for each in (*few[1:], *more, last)]
    assert given == [1, 2, 3, 4, 5]
    with pytest.raises(CancelledError):
        few[0].result()


def test_more_are_started_where_more_waits_but_never_more_than_there_may_be() -> None:
    helpers = Helpers(2, idle_seconds=0.5)
    found = [helpers.submit(8 * START_SECONDS, time.sleep, 0.2) for _ in range(6)]
    assert running(helpers) == 2
    for each in found:
        each.result()


def test_it_ends_where_there_is_nothing_to_do(helpers: Helpers) -> None:
    process, _ = helpers.submit(LONG, elsewhere).result()
    threads = threading.active_count()
    for _ in range(200):
        if threading.active_count() < threads:
            break
        time.sleep(0.05)
    assert running(helpers) == 0
    if sys.platform != "win32":
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert helpers.submit(LONG, elsewhere).result()[0] != process


BUSY = """
import os, sys, threading, time
from smalti.runtime.helper_process import Helpers
helpers = Helpers(1)
pid, _ = helpers.submit(9.0, os.getpid).result(), None
helpers.submit(9.0, time.sleep, 60)
time.sleep(0.3)
print(pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "os._exit(0)"])
def test_a_busy_one_does_not_keep_its_process_from_ending(end: str, tmp_path: Path,
                                                          environment: dict[str, str]) -> None:
    script = tmp_path / "script.py"  # which has no `if __name__ == "__main__"`
    script.write_text(BUSY + end)
    started = time.monotonic()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60,
                          env=environment)
    assert (done.returncode, done.stderr) == (0, "") and time.monotonic() - started < 30
    if sys.platform == "win32":
        return
    process = int(done.stdout)
    if "_exit" in end:  # without a word: it ends when it has slept
        os.kill(process, signal.SIGKILL)
    for _ in range(100):
        state = Path(f"/proc/{process}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("it still runs")
