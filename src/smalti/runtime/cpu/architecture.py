"""The architecture of the CPU, by the name of its folder in `codegen/`."""

from __future__ import annotations

import platform
import sys
import sysconfig

from smalti.dataclass import dataclass

ARCHITECTURES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm64", "arm64": "arm64"}
"""By what systems call the machine, in lower-case letters."""


@dataclass(frozen=True)
class Identity:
    """What a CPU says of itself: its name, instruction sets that programs may use, in the words of
    `/proc/cpuinfo`, and bytes of the data caches that one core sees, by level."""

    name: str
    features: tuple[str, ...]
    caches: dict[int, int]


def architecture() -> str | None:
    """The architecture that this process runs on, "x86" or "arm64"; None for others.

    It is that of the process: Python for x86 under Windows on ARM, or under macOS's Rosetta, is on
    an x86 which the system emulates.
    """
    if sys.maxsize <= 2**32:
        return None
    machine = platform.machine()
    if sys.platform == "win32":  # there `machine` is that of the computer, in some versions
        machine = sysconfig.get_platform().removeprefix("win-")
    return ARCHITECTURES.get(machine.lower())
