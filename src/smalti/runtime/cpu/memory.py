"""Memory allocated from the operating system, and returned to it as soon as nothing refers to it;
how much of it is free."""

from __future__ import annotations

import mmap
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from smalti.errors import DeviceError
from smalti.runtime.cpu import windows_memory

RESIDENT = Path("/proc/self/statm")
"""The file in which Linux says how many pages of memory a process has."""
SYSTEM = Path("/")
"""The folder under which Linux has its files that tell of it."""
CHECKED_BYTES = 64 << 20
"""Smaller requests are made without checking how much is free, which takes about 50 µs."""


def resident_bytes() -> int | None:
    """Bytes of memory that this process takes at present; None if the system does not say."""
    if sys.platform == "win32":
        return windows_memory.resident_bytes()
    try:
        return int(RESIDENT.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return None


def free_bytes(root: Path = SYSTEM, swap: bool = True) -> int | None:
    """Bytes of memory that this process can still get: free memory and swap, limited by what its
    control group allows; on Windows what it may still have in memory and in the paging file. None
    if the system does not say.

    `root` is the folder under which the files of Linux are read; there, what is free without
    `swap` is what files can be read into.
    """
    if sys.platform == "win32" and root == SYSTEM:
        return int(windows_memory.memory_status().available_committed)
    entries = dict(re.findall(r"^(\w+):\s*(\d+) kB$", _text(root / "proc/meminfo"), re.M))
    if "MemAvailable" not in entries:
        return None
    found = [1024 * (int(entries["MemAvailable"]) + swap * int(entries.get("SwapFree", 0)))]
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            found += [left for folder in {top, top / path.strip("/")}
                      if (left := _left(folder)) is not None]
    return max(0, min(found))


def _left(folder: Path) -> int | None:
    """Bytes that a control group still allows, including file cache that it can drop; None if it
    has no limit."""
    limit, taken = (_text(folder / name) or _text(folder / other) for name, other in (
        ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes")))
    if not limit.isdigit() or not taken.isdigit():  # "max": there is none
        return None
    cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.M)
    return int(limit) - int(taken) + max(map(int, cached), default=0)


def _text(path: Path) -> str:
    """The text of a small file of the system; empty if there is no such file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def check_free(size: int, what: str, advice: str) -> None:
    """Raise DeviceError if `size` bytes are more than the free memory.

    The system would grant them all the same, and kill some process when they are written to. `what`
    and `advice` are for the message.
    """
    free = free_bytes() if size >= CHECKED_BYTES else None
    if free is not None and size > free:
        raise DeviceError(f"{what} {size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
                          f"free; {advice}")


def anonymous(size: int) -> np.ndarray:
    """`size` zeroed bytes, in large pages where the system has them.

    Raises DeviceError when there is not enough.
    """
    check_free(size, "a run needs", "choose a smaller size, or close other programs")
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
