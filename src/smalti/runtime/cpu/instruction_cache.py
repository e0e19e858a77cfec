"""Makes CPUs fetch code that was written as data.

An x86 CPU notices writes to code by itself. On AArch64 the caches of data and of instructions know
nothing of each other: what was written is cleaned to where both meet, and what the cache of
instructions has of these addresses is dropped, in the caches of all cores, before any of them may
run the code. macOS and Windows have functions for it.
"""

from __future__ import annotations

import ctypes
import sys


def synchronise(address: int, size: int) -> None:
    """Let instructions be fetched as they were written, from `size` bytes at `address`."""
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.FlushInstructionCache.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        kernel.FlushInstructionCache(kernel.GetCurrentProcess(), address, size)
    elif sys.platform == "darwin":
        invalidate = ctypes.CDLL(None).sys_icache_invalidate
        invalidate.restype, invalidate.argtypes = None, (ctypes.c_void_p, ctypes.c_size_t)
        invalidate(address, size)
