"""A server ends with the process that it was started for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from smalti.errors import InputError
from smalti.server.parent import DENIED, ended, ended_on_windows


def test_a_process_that_ends_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gone = ended(child.pid)
    assert not gone() and not ended(os.getppid())()
    child.communicate(b"\n")
    assert gone() and ended(child.pid)()


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_numbers_of_no_process_are_refused(pid: int) -> None:
    with pytest.raises(InputError, match="a process has the number"):
        ended(pid)


class Kernel:
    """The functions of Windows that are used: a process of number 7 that ends."""

    def __init__(self) -> None:
        self.waits = [258, 258, 0]  # WAIT_TIMEOUT, twice
        self.OpenProcess = lambda right, inherit, pid: 99 if pid == 7 else None
        self.WaitForSingleObject = lambda handle, milliseconds: self.waits.pop(0)


def test_the_same_on_windows() -> None:
    def own(function: object) -> object:
        return type("Function", (), {"__call__": staticmethod(function)})()

    kernel = Kernel()
    kernel.OpenProcess, kernel.WaitForSingleObject = map(own, (
        kernel.OpenProcess, kernel.WaitForSingleObject))
    gone = ended_on_windows(7, kernel, lambda: 0)
    assert [gone(), gone(), gone()] == [False, False, True]
    assert ended_on_windows(8, kernel, lambda: 87)()
    assert not ended_on_windows(8, kernel, lambda: DENIED)(), "another user's is taken to be there"
