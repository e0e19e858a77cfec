"""Memory straight from the operating system, which gets it back as soon as nothing refers to it."""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np

from smalti.errors import DeviceError

RESIDENT = Path("/proc/self/statm")
"""Where Linux tells the pages that a process has."""


def resident_bytes() -> int | None:
    """Bytes of memory that this process takes at present; None where the system does not tell."""
    try:
        return int(RESIDENT.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return None


def anonymous(size: int) -> np.ndarray:
    """`size` zeroed bytes, in large pages where the system has them.

    Raises DeviceError when there is not enough.
    """
    options = {}
    if hasattr(mmap, "MAP_PRIVATE"):  # shared memory would not get large pages
        options["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        block = mmap.mmap(-1, max(size, 1), **options)
    except OSError as error:
        raise DeviceError(f"the operating system refuses {size / 2**20:.0f} MiB of memory "
                          f"({error.strerror or error}); choose a smaller size, or close other "
                          f"programs") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may be built without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)
