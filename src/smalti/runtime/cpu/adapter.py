"""What CPU this machine has and what it can do, as the CPU and the operating system tell it."""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache
from pathlib import Path

from smalti import cores, settings
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import LEVELS, level
from smalti.errors import InputError
from smalti.runtime.cpu import arm64, x86
from smalti.runtime.cpu.architecture import Identity, architecture
from smalti.runtime.cpu.windows_memory import memory_status
from smalti.runtime.device import USUAL_CACHE_BYTES, Device
from smalti.schedule.schedule import Limits

IDENTITIES = {"x86": x86.identity, "arm64": arm64.identity}
"""What asks a CPU what it is, by architecture."""


@lru_cache(maxsize=1)
def cpu() -> Device:
    """The CPU of this machine."""
    speeds, memory_bytes = cores.usable(), _memory_bytes()
    here = architecture()
    found = (IDENTITIES[here]() if here else
             Identity(platform.processor() or platform.machine(), (), {}))
    caches = {**USUAL_CACHE_BYTES, **_caches_of_system(), **found.caches}
    return Device("cpu", found.name, "cpu", memory_bytes, found.features, len(speeds), caches[1],
                  caches[2], caches[3], speeds=speeds)


def best_level() -> str | None:
    """The feature level to compile for: `SMALTI_TARGET`, else the best one that this CPU has.

    None if Smalti compiles for no level of this CPU. Raises InputError if the level asked for is
    unknown or this CPU lacks a part of it.
    """
    asked = settings.target()
    if asked is not None:
        return checked_level(asked, "SMALTI_TARGET")
    return available_levels()[-1] if available_levels() else None


def checked_level(name: str, origin: str) -> str:
    """The feature level `name` itself, which `origin` asks for. Raises InputError if it is unknown
    or this CPU lacks a part of it."""
    missing = level(name).needs - set(cpu().features)
    if missing:
        raise InputError(f"{origin} is {name}, but {cpu().name} lacks "
                         f"{', '.join(sorted(missing))}; available: "
                         f"{', '.join(available_levels()) or 'none'}")
    return name


def available_levels() -> list[str]:
    """The feature levels that this CPU has, the best one last."""
    return [name for name, entry in LEVELS.items() if entry.needs <= set(cpu().features)]


def feature_level(name: str) -> FeatureLevel:
    """The record of the feature level `name`. Raises InputError listing the known ones."""
    return level(name)


def limits_at(name: str, threads: int) -> Limits:
    """The limits of schedules for a feature level on this CPU; default sizes of caches if it does
    not have the level."""
    chosen = level(name)
    if name not in available_levels():
        return limits(chosen, threads)
    device = cpu()
    return limits(chosen, threads, device.l1_bytes, device.l2_bytes)


# ---------------------------------------------------------------------- the operating system


def _caches_of_system() -> dict[int, int]:
    """Bytes of the data caches by level, as Linux lists them; empty elsewhere."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            depth = int((folder / "level").read_text())
            size = (folder / "size").read_text().strip()
        except OSError:
            continue
        if kind in ("Data", "Unified") and size.endswith("K"):
            found[depth] = int(size[:-1]) << 10
    return found


def _memory_bytes() -> int:
    """Bytes of main memory."""
    if sys.platform == "win32":
        return int(memory_status().total)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
