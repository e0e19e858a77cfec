"""The process that started this one: a server that was started for a program ends with it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from smalti.errors import InputError

SYNCHRONIZE = 0x00100000
"""The right to wait for a process, of Windows."""
ENDED = 0
"""What waiting for one gives that has ended: WAIT_OBJECT_0."""
DENIED = 5
"""That it is another user's: ERROR_ACCESS_DENIED."""
PID_MAX = (1 << 31) - 1


def ended(pid: int) -> Callable[[], bool]:
    """A function that tells whether the process of this number has ended.

    The number is given to another process later on, so where it is that of the process which
    started this one, its end is seen in that this one has another parent. Raises InputError for a
    number that no process has.

    >>> ended(os.getpid())()
    False
    """
    if not 0 < pid <= PID_MAX:
        raise InputError(f"a process has the number {pid}; expected one from 1 to {PID_MAX}")
    if sys.platform == "win32":
        return ended_on_windows(pid, ctypes.WinDLL("kernel32", use_last_error=True),
                                ctypes.get_last_error)
    if os.getppid() == pid:
        return lambda: os.getppid() != pid
    return lambda: not _exists(pid)


def _exists(pid: int) -> bool:
    """Whether there is a process of this number; signal 0 is none, it only asks."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def ended_on_windows(pid: int, kernel: Any, last_error: Callable[[], int]) -> Callable[[], bool]:
    """The same by the functions of Windows, where signal 0 would be Ctrl-C. The handle stays open,
    so the number stays that of the process."""
    kernel.OpenProcess.restype = ctypes.c_void_p
    kernel.WaitForSingleObject.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    handle = kernel.OpenProcess(SYNCHRONIZE, False, pid)
    if not handle:
        denied = last_error() == DENIED
        return lambda: not denied
    return lambda: kernel.WaitForSingleObject(handle, 0) == ENDED
