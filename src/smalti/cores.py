"""The cores of the CPU that this process may keep busy, and how fast each is.

    usable()                    (1.0, 1.0, 0.4, 0.4): two fast cores, two slow ones

A core whose circuits two threads share (hyper-threading) counts once: arithmetic gains nothing from
the second one. Cores are told by the system: Linux by its files, macOS by `sysctlbyname`, Windows
by `GetSystemCpuSetInformation`. Where it tells nothing every logical CPU is a core, and all of them
are equally fast.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

CORES_MAX = 256
"""More than the cores of any desktop."""
EFFICIENT = 0.4
"""The speed of a core for efficiency, in that of one for performance, where the system does not
tell it. A guess: Intel's Gracemont multiplies and adds half as many numbers in a clock as Golden
Cove, at 0.75 of its clock, Apple's Icestorm half as many as Firestorm, at 0.65. Expected times and
rates rest on it; how work is divided does not.
"""
CAPACITY_MAX = 1024
"""What Linux calls the capacity of the fastest core."""
SLOW_KINDS = ("cpu_atom", "cpu_lowpower")
"""What Linux calls the performance counters of Intel's cores for efficiency: their files list the
CPUs that have them."""
SYSCTL_BYTES = 256
"""Bytes that sysctlbyname is given room for: numbers, and names of CPUs."""
CPU_SET_BYTES = 32
"""Bytes of a SYSTEM_CPU_SET_INFORMATION of Windows, as long as it was so far."""
THIS_PROCESS = ctypes.c_void_p(-1)
"""What GetCurrentProcess of Windows returns."""
Core = tuple[object, float]
"""What tells a core from others, and its speed in that of the fastest."""
Sysctl = Callable[[str], bytes]
"""What macOS says of a name, as `sysctl` gives it."""


def usable(root: Path = Path("/")) -> tuple[float, ...]:
    """The speed of each core that this process may keep busy, the fastest first and 1.0: those of
    its affinity mask, and no more than its control group's share of time is worth.

    `root` has the files by which Linux tells.
    """
    if sys.platform == "win32":
        return _windows(_affinity()) or _all_alike()
    if sys.platform == "darwin":
        return _apple() or _all_alike()
    if not hasattr(os, "sched_getaffinity"):
        return _all_alike()
    return _linux(root, frozenset(os.sched_getaffinity(0)))


def ordered(cores: Iterable[Core]) -> tuple[float, ...]:
    """The speeds of different cores, the fastest first; 1.0 for that, whatever it was.

    >>> ordered([("a", 0.2), ("b", 0.8), ("b", 0.8)])
    (1.0, 0.25)
    """
    speeds = sorted(dict(cores).values(), reverse=True)
    return tuple(speed / speeds[0] for speed in speeds)


def _all_alike() -> tuple[float, ...]:
    return (1.0,) * (os.cpu_count() or 1)


# ---------------------------------------------------------------------- Linux


@lru_cache(maxsize=8)
def _linux(root: Path, cpus: frozenset[int]) -> tuple[float, ...]:
    """The cores among `cpus`, as many as the control group lets this process keep busy."""
    slow = {cpu for kind in SLOW_KINDS
            for cpu in listed(_text(root / "sys/devices" / kind / "cpus"))}
    folder = root / "sys/devices/system/cpu"
    found = []
    for cpu in sorted(cpus):
        siblings = _text(folder / f"cpu{cpu}/topology/thread_siblings_list")
        capacity = _text(folder / f"cpu{cpu}/cpu_capacity")
        speed = EFFICIENT if cpu in slow else 1.0
        if capacity.isdigit() and int(capacity):
            speed = int(capacity) / CAPACITY_MAX
        found.append((siblings or str(cpu), speed))
    return ordered(found)[:max(1, _share_of_time(root))]


def listed(text: str) -> set[int]:
    """The numbers in a list of the kernel's.

    >>> sorted(listed("0-2,8"))
    [0, 1, 2, 8]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _share_of_time(root: Path) -> int:
    """CPUs whose whole time the control group of this process may use, rounded up."""
    shares = [CORES_MAX]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        folder = root / "sys/fs/cgroup" / controllers
        for place in (folder / path.strip("/"), folder):
            if not controllers:
                quota, _, period = _text(place / "cpu.max").partition(" ")
            elif "cpu" in controllers.split(","):
                quota = _text(place / "cpu.cfs_quota_us")
                period = _text(place / "cpu.cfs_period_us")
            else:
                break
            if quota.isdigit() and period.isdigit() and int(period):
                shares.append(-(-int(quota) // int(period)))
    return min(shares)


def _text(path: Path) -> str:
    """What a small file of the system says; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


# ---------------------------------------------------------------------- macOS


def apple(ask: Sysctl) -> tuple[float, ...]:
    """The cores by what macOS says: level 0 of performance is the fastest. Empty if it is silent.

    >>> told = {"hw.nperflevels": 2, "hw.perflevel0.physicalcpu": 2, "hw.perflevel1.physicalcpu": 1}
    >>> apple(lambda name: told.get(name, 0).to_bytes(4, "little"))
    (1.0, 1.0, 0.4)
    """
    levels = number(ask("hw.nperflevels"))
    if not levels:
        return (1.0,) * number(ask("hw.physicalcpu"))
    counts = [number(ask(f"hw.perflevel{level}.physicalcpu")) for level in range(levels)]
    return tuple(1.0 if level == 0 else EFFICIENT
                 for level, count in enumerate(counts) for _ in range(count))


@lru_cache(maxsize=1)
def _apple() -> tuple[float, ...]:
    """The cores of this computer: macOS has no affinity masks, so they stay what they are."""
    return apple(sysctl)


def sysctl(name: str) -> bytes:
    """What sysctlbyname of macOS's C library gives; b"" for what it does not know."""
    buffer, size = ctypes.create_string_buffer(SYSCTL_BYTES), ctypes.c_size_t(SYSCTL_BYTES)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), buffer, ctypes.byref(size), None,
                                            ctypes.c_size_t(0))
    return b"" if failed else buffer.raw[:size.value]


def number(value: bytes) -> int:
    """The whole number that sysctlbyname gave, of 4 or 8 bytes; 0 where it gave nothing.

    >>> number(b"\\x02\\0\\0\\0"), number(b"")
    (2, 0)
    """
    return int.from_bytes(value, "little")


# ---------------------------------------------------------------------- Windows


def of_cpu_sets(records: bytes, mask: int) -> tuple[float, ...]:
    """The cores in an array of SYSTEM_CPU_SET_INFORMATION; those of the first group of processors
    only as far as they are in `mask`. The class with the greatest number is the fastest.
    """
    found: list[tuple[tuple[int, int], int]] = []
    start = 0
    while start + CPU_SET_BYTES <= len(records):
        record = records[start:start + CPU_SET_BYTES]
        group, logical, core, efficiency = (int.from_bytes(record[a:b], "little") for a, b in (
            (12, 14), (14, 15), (15, 16), (18, 19)))
        if group or mask >> logical & 1:
            found.append(((group, core), efficiency))
        start += max(CPU_SET_BYTES, int.from_bytes(record[:4], "little"))
    fastest = max((efficiency for _, efficiency in found), default=0)
    return ordered((core, 1.0 if efficiency == fastest else EFFICIENT)
                   for core, efficiency in found) if found else ()


def _affinity() -> int:
    """The affinity mask of this process; all CPUs where Windows does not tell it."""
    if sys.platform != "win32":
        return -1
    own, system = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.WinDLL("kernel32").GetProcessAffinityMask(THIS_PROCESS, ctypes.byref(own),
                                                     ctypes.byref(system))
    return own.value or -1


@lru_cache(maxsize=8)
def _windows(mask: int) -> tuple[float, ...]:
    """The cores by GetSystemCpuSetInformation, and the process's affinity mask."""
    if sys.platform != "win32":
        return ()
    kernel, size = ctypes.WinDLL("kernel32"), ctypes.c_uint32()
    kernel.GetSystemCpuSetInformation(None, 0, ctypes.byref(size), THIS_PROCESS, 0)
    buffer = ctypes.create_string_buffer(size.value)  # it failed, and told how many bytes it needs
    if not kernel.GetSystemCpuSetInformation(buffer, size, ctypes.byref(size), THIS_PROCESS, 0):
        return ()
    return of_cpu_sets(buffer.raw[:size.value], mask)


def described(speeds: tuple[float, ...]) -> str:
    """Cores as a line says them.

    >>> described((1.0, 1.0, 0.4)), described((1.0,) * 4)
    ('2 fast, 1 of 0.40 of the speed', '4, all alike')
    """
    counts: Mapping[float, int] = {speed: speeds.count(speed) for speed in speeds}
    if len(counts) == 1:
        return f"{len(speeds)}, all alike"
    return ", ".join(f"{count} fast" if speed == 1 else f"{count} of {speed:.2f} of the speed"
                     for speed, count in counts.items())
