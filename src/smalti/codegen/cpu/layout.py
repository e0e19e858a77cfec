"""What the driver reads: the launch table and the context of a run, as numpy record types.

The host fills one `LAUNCH` for each kernel and one `CONTEXT` for the program, and hands the
context's address to every worker; driver.py takes the byte offsets from here. All fields are
unsigned 64-bit integers; addresses are of memory that the host keeps alive during the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NO_BARRIER = 1
"""Flag of a launch: the next one needs nothing of it, so no thread waits for the others."""

LEFT_BITS = 32
"""Bits of a counter of tiles that hold the number of the next one."""
PRIOR, WINDOW = 4, 64
"""Tiles that a thread is taken to have done at the speed of all others before a run, and those from
which on what is known of its speed counts half. By the simulation of bench/hybrid.py numbers of
half and of twice this do as well: fewer make estimates jump, more are slow to follow."""

CACHE_LINE_BYTES = 64
"""Bytes of a cache line, of every x86 CPU so far and of AArch64's but Apple's. Those have 128: two
things that different threads write may share a line there, which costs some time."""


def _record(fields: Sequence[tuple[str, int]], size: int) -> np.dtype:
    names, offsets = zip(*fields)
    return np.dtype({"names": names, "offsets": offsets, "formats": ["<u8"] * len(names),
                     "itemsize": size})


LAUNCH = _record([
    ("function", 0),   # address of the kernel's code: f(pointers, tile, scratch, thread)
    ("pointers", 8),   # address of an array of buffer addresses, the kernel's first argument
    ("tiles", 16),     # how many tiles there are; the kernel is called once for each
    ("counter", 24),   # address of the next tile's number, before each run that of the first tile;
                       # above `LEFT_BITS` bits, how many threads have left the launch early
    ("flags", 32),     # NO_BARRIER or 0
], 40)

CONTEXT = _record([
    ("launches", 0),         # address of the launch table
    ("first", 8),            # number of the first launch of this run
    ("last", 16),            # number behind the last launch
    ("threads", 24),         # how many threads enter the driver
    ("spins", 32),           # how often a waiting thread looks before it sleeps
    ("scratch", 40),         # address of thread 0's scratch memory
    ("scratch_bytes", 48),   # from one thread's scratch memory to the next
    ("stamps", 56),          # address of last - first + 1 time stamps, or 0
    ("wait", 64),            # address of WaitOnAddress or __ulock_wait; unused on Linux
    ("wake", 72),            # address of WakeByAddressAll or __ulock_wake; unused on Linux
    ("cancel", 128),         # the host writes 1: leave behind the kernel that runs now
    ("stopped", 136),        # `cancel` as it was when the last barrier opened
    ("arrivals", 192),       # threads that have reached the barrier
    ("generation", 256),     # how many barriers have been passed; sleepers watch this
    ("sleepers", 320),       # threads that sleep, or are about to
], 384)


def offset(record: np.dtype, field: str) -> int:
    """Bytes from the start of a record to a field.

    >>> offset(CONTEXT, "cancel")
    128
    """
    return record.fields[field][1]


def aligned(count: int, record: np.dtype) -> np.ndarray:
    """`count` records of zeros that start at a cache line.

    >>> aligned(2, LAUNCH).ctypes.data % CACHE_LINE_BYTES
    0
    """
    size = count * record.itemsize
    memory = np.zeros(size + CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    return memory[start:start + size].view(record)
