"""What CPU this machine has and what it can do, by CPUID and the operating system."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from smalti import settings
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import LEVELS, level
from smalti.codegen.x86.driver import enabled_state, identify
from smalti.errors import InputError
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.device import USUAL_CACHE_BYTES, Device
from smalti.schedule.schedule import Limits

X86 = ("x86_64", "amd64")

# Intel's Software Developer's Manual 2A, CPUID; leaf, subleaf, register, bit.
OSXSAVE = (1, 0, "ecx", 27)
FEATURES = {
    "avx2": (7, 0, "ebx", 5), "fma": (1, 0, "ecx", 12), "f16c": (1, 0, "ecx", 29),
    "avx512f": (7, 0, "ebx", 16), "avx512dq": (7, 0, "ebx", 17), "avx512bw": (7, 0, "ebx", 30),
    "avx512vl": (7, 0, "ebx", 31), "avx512_vnni": (7, 0, "ecx", 11),
    "avx512_fp16": (7, 0, "edx", 23), "avx_vnni": (7, 1, "eax", 4),
    "avx512_bf16": (7, 1, "eax", 5),
}
YMM_STATE = 0x06   # XCR0: xmm, ymm
ZMM_STATE = 0xE6   # also masks and both halves of the zmm registers

CACHE_LEAVES = (0x8000001D, 4)  # AMD's, which Intel does not have, then Intel's
DATA, UNIFIED = 1, 3  # kinds of caches in these leaves; 2 has instructions
Registers = dict[str, int]


@lru_cache(maxsize=1)
def cpu() -> Device:
    """The CPU of this machine."""
    cores, memory_bytes = settings.usable_cores(), _memory_bytes()
    if not is_x86():
        return Device("cpu", platform.processor() or platform.machine(), "cpu", memory_bytes, (),
                      cores)
    block, places = joined([identify(sys.platform), enabled_state(sys.platform)])
    code = Executable(block)
    cpuid = _cpuid(code.address + places[0])
    name, features = _brand(cpuid), _features(cpuid, _state_reader(code.address + places[1]))
    caches = {**USUAL_CACHE_BYTES, **_caches_of_system(), **dict(_caches(cpuid))}
    name = _brand(cpuid)
    code.close()
    return Device("cpu", name, "cpu", memory_bytes, features, cores, caches[1],
                  caches[2], caches[3])


def is_x86() -> bool:
    """True if this process runs on a 64-bit x86 CPU."""
    return platform.machine().lower() in X86 and sys.maxsize > 2**32


def best_level() -> str | None:
    """The x86 feature level to compile for: `SMALTI_TARGET`, else the best one that this CPU has.

    None if the CPU is not x86-64 or has no AVX2. Raises InputError if the level asked for is
    unknown or this CPU lacks a part of it.
    """
    features = set(cpu().features)
    asked = settings.target()
    if asked is not None:
        missing = level(asked).needs - features
        if missing:
            raise InputError(f"SMALTI_TARGET is {asked}, but {cpu().name} lacks "
                             f"{', '.join(sorted(missing))}; available: "
                             f"{', '.join(available_levels()) or 'none'}")
        return asked
    return available_levels()[-1] if available_levels() else None


def available_levels() -> list[str]:
    """The x86 feature levels that this CPU has, the best one last."""
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


# ---------------------------------------------------------------------- cpuid

Cpuid = Callable[[int, int], Registers]


def _cpuid(address: int) -> Cpuid:
    function = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)(address)

    def ask(leaf: int, subleaf: int = 0) -> Registers:
        out = np.zeros(4, np.uint32)
        function(leaf, subleaf, out.ctypes.data)
        return dict(zip(("eax", "ebx", "ecx", "edx"), out.tolist()))

    return ask


def _state_reader(address: int) -> Callable[[], int]:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def read() -> int:
        out = np.zeros(2, np.uint32)
        function(out.ctypes.data)
        return int(out[0]) | int(out[1]) << 32

    return read


def _features(cpuid: Cpuid, state: Callable[[], int]) -> tuple[str, ...]:
    """Features that the CPU has and whose registers the operating system saves."""
    highest = cpuid(0, 0)["eax"]

    def has(leaf: int, subleaf: int, register: str, bit: int) -> bool:
        if leaf > highest or subleaf > (cpuid(leaf, 0)["eax"] if leaf == 7 else 0):
            return False
        return bool(cpuid(leaf, subleaf)[register] >> bit & 1)

    saved = state() if has(*OSXSAVE) else 0
    return tuple(name for name, place in FEATURES.items() if has(*place) and (
        saved & ZMM_STATE == ZMM_STATE if name.startswith("avx512")
        else saved & YMM_STATE == YMM_STATE))


def _brand(cpuid: Cpuid) -> str:
    """The name that the CPU gives itself."""
    if cpuid(0x80000000, 0)["eax"] < 0x80000004:
        return platform.processor() or platform.machine()
    words = [value for leaf in (0x80000002, 0x80000003, 0x80000004)
             for value in cpuid(leaf, 0).values()]
    text = np.array(words, np.uint32).tobytes().split(b"\0")[0].decode("ascii", "replace")
    return " ".join(text.split()) or platform.machine()


def _caches(cpuid: Cpuid) -> Iterator[tuple[int, int]]:
    """(level, bytes) of the data caches that one core sees."""
    amd = cpuid(0x80000000, 0)["eax"] >= CACHE_LEAVES[0]
    if not amd and cpuid(0, 0)["eax"] < CACHE_LEAVES[1]:
        return
    for number in range(16):
        found = cpuid(CACHE_LEAVES[0] if amd else CACHE_LEAVES[1], number)
        kind, depth = found["eax"] & 0x1F, found["eax"] >> 5 & 0x7
        if kind == 0:
            return
        if kind in (DATA, UNIFIED):
            ways, parts = (found["ebx"] >> 22) + 1, (found["ebx"] >> 12 & 0x3FF) + 1
            line, sets = (found["ebx"] & 0xFFF) + 1, found["ecx"] + 1
            yield depth, ways * parts * line * sets


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
        status = np.zeros(8, np.uint64)  # MEMORYSTATUSEX: two 32-bit words, then seven of 64 bits
        status.view(np.uint32)[0] = status.nbytes
        kernel = ctypes.WinDLL("kernel32")
        kernel.GlobalMemoryStatusEx(ctypes.c_void_p(status.ctypes.data))
        return int(status[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
