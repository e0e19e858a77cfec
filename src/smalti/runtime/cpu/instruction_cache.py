"""Makes CPUs fetch code that was written as data.

An x86 CPU notices writes to code by itself. On AArch64 the caches of data and of instructions know
nothing of each other: what was written is cleaned to where both meet, and what the cache of
instructions has of these addresses is dropped, in the caches of all cores, before any of them may
run the code. macOS and Windows have functions for it; on Linux, programs may use the instructions
themselves (`codegen/arm64/driver.py`). These are code, too, in fresh pages: for the first block of
code, it is Linux that maintains the caches, as it does when it makes any page executable.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache

from smalti.codegen.arm64.driver import maintenance, reader
from smalti.codegen.cpu.block import joined
from smalti.dataclass import dataclass
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.code_memory import placed


def synchronise(address: int, size: int) -> None:
    """Let instructions be fetched as they were written, from `size` bytes at `address`, which is a
    multiple of the bytes of a page."""
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.FlushInstructionCache.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        kernel.FlushInstructionCache(kernel.GetCurrentProcess(), address, size)
    elif sys.platform == "darwin":
        invalidate = ctypes.CDLL(None).sys_icache_invalidate
        invalidate.restype, invalidate.argtypes = None, (ctypes.c_void_p, ctypes.c_size_t)
        invalidate(address, size)
    elif architecture() == "arm64":
        code = _maintenance()
        code.maintain(address, address + size, *code.lines)


@dataclass(frozen=True)
class _Maintenance:
    """What maintains the caches by this CPU's own instructions, bytes of the lines of the caches of
    data and of instructions, and what would give the memory of the code back."""

    maintain: Callable[[int, int, int, int], None]
    lines: tuple[int, int]
    free: Callable[[], object]


@lru_cache(maxsize=1)
def _maintenance() -> _Maintenance:
    block, (maintain, cache_type) = joined([maintenance(), reader("ctr_el0")])
    address, free = placed(block)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(address + cache_type)
    return _Maintenance(ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * 4)(address + maintain),
                        line_bytes(read()), free)


def line_bytes(cache_type: int) -> tuple[int, int]:
    """Bytes of the smallest lines of caches of data and of instructions, by the register CTR_EL0.

    >>> line_bytes(0x9444C004)
    (64, 64)
    """
    word = 4  # in which the register counts, as logarithms
    return word << (cache_type >> 16 & 15), word << (cache_type & 15)
