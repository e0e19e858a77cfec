"""Processes that compute something for this one."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from soon import soon

from smalti.errors import DeviceError, InputError
from smalti.runtime import helper_process
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


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(("function", "given"), [
    (lambda: None, ()), (elsewhere, (lambda: None,)), (elsewhere, (nested(5000),)),
    (threading.Lock, ()), (nested, (5000,))])
def test_what_cannot_be_sent_is_said(function: Callable, given: tuple, helpers: Helpers) -> None:
    with pytest.raises(DeviceError):
        helpers.submit(LONG, function, *given).result(timeout=60)
    assert helpers.submit(LONG, elsewhere, 1).result(timeout=60)[1] == (1,)


def given_up(helpers: Helpers, caplog: pytest.LogCaptureFixture) -> str:
    """What is said where no helper can be started; what was asked for is cancelled then, and so is
    what is asked for later."""
    asked = [helpers.submit(LONG, elsewhere) for _ in range(5)]
    for each in asked:
        with pytest.raises(CancelledError):
            each.result(timeout=60)
    assert helpers.submit(LONG, elsewhere).cancelled()
    assert soon(lambda: running(helpers) == 0)
    (said,) = [record.getMessage() for record in caplog.records]  # once
    return said


def test_no_process_is_said_once(helpers: Helpers, monkeypatch: pytest.MonkeyPatch,
                                 caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "no process could be started" in given_up(helpers, caplog)


def test_a_process_that_does_not_find_the_code_is_given_up(
        helpers: Helpers, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(helper_process, "searched", lambda: ["/nowhere"])
    assert "ended with code 1 before it did anything" in given_up(helpers, caplog)


def test_a_program_that_is_no_python_is_not_waited_for(
        helpers: Helpers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    other = "import sys, time; time.sleep(60)"
    popen = subprocess.Popen
    monkeypatch.setattr(helper_process, "START_SECONDS_MAX", 0.3)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **given: popen(
        [command[0], "-c", other], **given))
    assert "before it did anything" in given_up(helpers, caplog)


def test_a_process_with_other_code_is_given_up(
        helpers: Helpers, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    """What it made would be kept as if this code had made it."""
    monkeypatch.setattr(helper_process, "code_digest", lambda: "of code before it was changed")
    assert "other code than this one" in given_up(helpers, caplog)


def test_a_site_may_print_and_a_folder_have_modules_of_the_same_names(
        helpers: Helpers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "gc", "pickle", "subprocess"):
        tmp_path.joinpath(f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    site = tmp_path / "site"
    site.mkdir()
    site.joinpath("sitecustomize.py").write_text("print('Loading ...')\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(tmp_path)
    assert helpers.submit(LONG, elsewhere, 1).result(timeout=60)[1] == (1,)


def test_a_path_may_hold_other_things_than_text(helpers: Helpers, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])  # which Python tolerates
    assert helpers.submit(LONG, elsewhere, 1).result(timeout=60)[1] == (1,)


def test_many_that_are_asked_for_take_no_longer_each() -> None:
    helpers = Helpers(1)
    helpers._running = 1  # which takes nothing
    started = time.perf_counter()
    asked = [helpers.submit(1e-3, elsewhere) for _ in range(20_000)]
    for each in reversed(asked):
        each.cancel()
    helpers.submit(1e-3, elsewhere)
    assert time.perf_counter() - started < 5 and len(helpers._asked) == 1


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
    assert soon(lambda: running(helpers) == 0)
    assert sys.platform == "win32" or soon(lambda: ended(process))
    assert helpers.submit(LONG, elsewhere).result()[0] != process


def ended(process: int) -> bool:
    """Whether a process has ended, also where nobody has asked how."""
    state = Path(f"/proc/{process}/stat")
    if sys.platform == "linux":
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


BUSY = """
import os, sys, threading, time
from smalti.runtime import helper_process
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
    assert soon(lambda: ended(process))
