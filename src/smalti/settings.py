"""The only reader of the environment. A variable that is empty counts as one that is not set.

| variable         | meaning                                                                      |
| ---------------- | ---------------------------------------------------------------------------- |
| `SMALTI_THREADS` | worker threads of the CPU target; default: cores that it may keep busy       |
| `SMALTI_DEVICE`  | device when `device="auto"`; default: the fastest                            |
| `SMALTI_CACHE`   | folder of the compile cache; default: the platform's own cache folder        |
| `SMALTI_SHOW`    | comma-separated stages to print: passes, graph, fused, kernel, schedule, asm |
| `SMALTI_TARGET`  | feature level: avx2, avx512, avx512_bf16, neon; default: the best of this CPU|
| `SMALTI_DOCTOR`  | off: GPUs are not checked when they are first used; default: on              |
| `SMALTI_TOKEN`   | what clients of `smalti serve` have to send; default: nothing                |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import platformdirs

from smalti.errors import InputError

THREADS_MAX = 256
"""More than the cores of any desktop; a greater number is taken for a slip of the keyboard."""
STAGES = ("passes", "graph", "fused", "kernel", "schedule", "asm")


def _variable(name: str) -> str | None:
    """The text of a variable of the environment; None where it is not set, or empty."""
    return os.environ.get(name) or None


def token() -> str | None:
    """What clients of the server have to send: `SMALTI_TOKEN`."""
    return _variable("SMALTI_TOKEN")


def expanded(path: str) -> str:
    """A path with `~` and variables of the environment in it, as shells and ComfyUI read it."""
    return os.path.expandvars(os.path.expanduser(path))


def threads() -> int:
    """Number of worker threads: `SMALTI_THREADS`, else the cores this process may run on."""
    text = _variable("SMALTI_THREADS")
    if text is None:
        return usable_cores()
    if not re.fullmatch("[0-9]{1,3}", text):
        raise InputError(f"SMALTI_THREADS is {text!r}; expected a whole number from 1 to "
                         f"{THREADS_MAX}")
    return checked_threads(int(text), "SMALTI_THREADS")


def checked_threads(count: object, name: str = "threads") -> int:
    """`count` itself. Raises InputError when it is no whole number from 1 to `THREADS_MAX`."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= THREADS_MAX:
        raise InputError(f"{name} is {count!r}; expected a whole number from 1 to {THREADS_MAX}")
    return count


def usable_cores(root: Path = Path("/")) -> int:
    """Physical cores that this process may keep busy: those of its affinity mask, two threads of
    one core counted once, and no more than its control group's share of time is worth.

    `root` has the files by which Linux tells; elsewhere every logical CPU counts.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return _cores(root, frozenset(os.sched_getaffinity(0)))


@lru_cache(maxsize=8)
def _cores(root: Path, cpus: frozenset[int]) -> int:
    """Physical cores among `cpus` that the control group lets this process keep busy."""
    return max(1, min(len({_siblings(root, cpu) for cpu in cpus}), _share_of_time(root)))


def _siblings(root: Path, cpu: int) -> str:
    """What tells the core of a logical CPU from others; the CPU itself where nothing is told."""
    topology = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology/thread_siblings_list"
    return _text(topology) or str(cpu)


def _share_of_time(root: Path) -> int:
    """CPUs whose whole time the control group of this process may use, rounded up."""
    shares = [THREADS_MAX]
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


def device() -> str | None:
    """The device that `device="auto"` means, or None for the fastest."""
    return _variable("SMALTI_DEVICE")


def target() -> str | None:
    """The feature level asked for, or None for the best this CPU has."""
    return _variable("SMALTI_TARGET")


def doctor() -> bool:
    """Whether GPUs are checked when they are first used."""
    text = _variable("SMALTI_DOCTOR") or "on"
    if text not in ("on", "off"):
        raise InputError(f"SMALTI_DOCTOR is {text!r}; expected on or off")
    return text == "on"


def cache_folder() -> Path:
    """Folder of the compile cache; it need not exist yet."""
    text = _variable("SMALTI_CACHE")
    return Path(text) if text else Path(platformdirs.user_cache_dir("smalti", appauthor=False))


def give(variables: Mapping[str, str]) -> None:
    """Set variables of this process's environment, for libraries that are loaded afterwards."""
    os.environ.update(variables)


def show(stage: str) -> bool:
    """Whether `stage` (one of `STAGES`) is to be printed while compiling."""
    asked = [part.strip() for part in (_variable("SMALTI_SHOW") or "").split(",") if part.strip()]
    for part in asked:
        if part not in STAGES:
            raise InputError(f"SMALTI_SHOW names {part!r}; known stages: {', '.join(STAGES)}")
    return stage in asked
