"""What an x86 CPU says of itself, by CPUID."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator

import numpy as np

from smalti.codegen.cpu.block import joined
from smalti.codegen.x86.driver import enabled_state, identify
from smalti.runtime.cpu.architecture import Identity
from smalti.runtime.cpu.executable import Executable

# Intel's Software Developer's Manual 2A, CPUID; leaf, subleaf, register, bit.
OSXSAVE = (1, 0, "ecx", 27)
FEATURES = {
    "avx2": (7, 0, "ebx", 5), "fma": (1, 0, "ecx", 12), "f16c": (1, 0, "ecx", 29),
    "avx512f": (7, 0, "ebx", 16), "avx512dq": (7, 0, "ebx", 17), "avx512bw": (7, 0, "ebx", 30),
    "avx512vl": (7, 0, "ebx", 31), "avx512_vnni": (7, 0, "ecx", 11),
    "avx512_fp16": (7, 0, "edx", 23), "avx_vnni": (7, 1, "eax", 4),
    "avx512_bf16": (7, 1, "eax", 5), "hybrid": (7, 0, "edx", 15),
}
YMM_STATE = 0x06   # XCR0: xmm, ymm
ZMM_STATE = 0xE6   # also masks and both halves of the zmm registers

CACHE_LEAVES = (0x8000001D, 4)  # AMD's, which Intel does not have, then Intel's
DATA, UNIFIED = 1, 3  # kinds of caches in these leaves; 2 has instructions
Registers = dict[str, int]
Cpuid = Callable[[int, int], Registers]


def identity() -> Identity:
    """Name, features and caches of this CPU."""
    block, places = joined([identify(sys.platform), enabled_state(sys.platform)])
    code = Executable(block)
    cpuid = _cpuid(code.address + places[0])
    features = _features(cpuid, _state_reader(code.address + places[1]))
    found = Identity(_brand(cpuid), features, dict(_caches(cpuid)))
    code.close()
    return found


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
