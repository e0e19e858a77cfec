"""What Windows tells of memory."""

from __future__ import annotations

import ctypes
import sys

import pytest

from smalti.errors import DeviceError
from smalti.runtime.cpu.memory import free_bytes, resident_bytes
from smalti.runtime.cpu.windows_memory import MemoryStatus, ProcessMemory, memory_status


def test_records_are_as_long_as_windows_has_them() -> None:
    """Windows refuses a call whose record is of another length."""
    assert ctypes.sizeof(MemoryStatus) == 64 and ctypes.sizeof(ProcessMemory) == 72


def test_the_system_tells_what_is_there() -> None:
    if sys.platform != "win32":
        with pytest.raises(DeviceError, match="a library of Windows"):
            memory_status()
        return
    status = memory_status()
    assert 0 < status.available <= status.total
    assert 1 << 20 < resident_bytes() < status.total
    assert 0 < free_bytes() <= status.total_committed
