"""How much memory there is, and how much of it this process takes, on Windows."""

from __future__ import annotations

import ctypes
import sys

from smalti.errors import DeviceError


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX: bytes of main memory, and of what a process may have in it and on disk."""

    _fields_ = [("size", ctypes.c_uint32), ("load", ctypes.c_uint32),
                *((name, ctypes.c_uint64) for name in (
                    "total", "available", "total_committed", "available_committed",
                    "total_addresses", "available_addresses", "reserved"))]


class ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS; `resident` is called the working set there."""

    _fields_ = [("size", ctypes.c_uint32), ("faults", ctypes.c_uint32),
                *((name, ctypes.c_size_t) for name in (
                    "peak_resident", "resident", "peak_paged", "paged", "peak_non_paged",
                    "non_paged", "committed", "peak_committed"))]


def memory_status() -> MemoryStatus:
    """What the system tells of memory. Raises DeviceError on other systems."""
    status = MemoryStatus(size=ctypes.sizeof(MemoryStatus))
    _kernel().GlobalMemoryStatusEx(ctypes.byref(status))
    return status


def resident_bytes() -> int:
    """Bytes of main memory that this process takes. Raises DeviceError on other systems."""
    kernel, found = _kernel(), ProcessMemory(size=ctypes.sizeof(ProcessMemory))
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.size)
    return int(found.resident)


def _kernel() -> ctypes.CDLL:
    if sys.platform != "win32":
        raise DeviceError(f"kernel32 is a library of Windows, this is {sys.platform}")
    return ctypes.WinDLL("kernel32")
