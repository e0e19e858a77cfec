"""What programs can run on, as the CPU, the operating system and the drivers of GPUs tell."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from smalti import machine, settings
from smalti.codegen.x86.block import joined
from smalti.codegen.x86.driver import enabled_state, identify
from smalti.codegen.x86.instructions import LEVELS, level
from smalti.errors import DeviceError, InputError, UnknownDeviceError
from smalti.machine.cpu import CpuCalibration
from smalti.machine.detection import at_level
from smalti.runtime.cache import code_digest
from smalti.runtime.executable import Executable

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
DATA, UNIFIED = 1, 3
CALIBRATION = "calibration.json"
USUAL_CACHE_BYTES = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}
BRAND = re.compile(r"\((?:R|TM)\)|\(.*|Graphics$|/.*", re.I)
"""What drivers say besides the name of a GPU."""

Registers = dict[str, int]


@dataclass(frozen=True)
class Device:
    """Something that programs run on.

    `id` is "cpu", or names what drives a GPU, and its number there: "vulkan:0", "wgpu:0". `kind` is
    "cpu" (so are drivers that compute on it), "discrete", "integrated", "virtual" or "other".
    `features` are instruction sets, in the words of `/proc/cpuinfo`, or what programs of a GPU may
    use. `cores` are those this process may use. `l1_bytes` and `l2_bytes` are the data caches of
    one core, `l3_bytes` is the last cache, which it shares with others; usual sizes where none is
    told. `driver` is that of a GPU, `matrices` what its matrix unit multiplies.
    """

    id: str
    name: str
    kind: str
    memory_bytes: int
    features: tuple[str, ...]
    cores: int = 1
    l1_bytes: int = field(default=USUAL_CACHE_BYTES[1], repr=False)
    l2_bytes: int = field(default=USUAL_CACHE_BYTES[2], repr=False)
    l3_bytes: int = field(default=USUAL_CACHE_BYTES[3], repr=False)
    driver: str = field(default="", repr=False)
    matrices: tuple[str, ...] = field(default=(), repr=False)


def devices() -> list[Device]:
    """Everything that programs can run on: the CPU, then GPUs through Vulkan and through `wgpu`.

    >>> devices()[0].id
    'cpu'
    """
    return [cpu(), *gpus("vulkan"), *gpus("wgpu")]


def gpus(driver: str) -> list[Device]:
    """The GPUs that "vulkan" or "wgpu" reaches; the other one is not asked."""
    return [found for found in DRIVERS[driver]() if isinstance(found, Device)]


def absences() -> list[str]:
    """Why there are no devices of Vulkan, or of `wgpu`, or why some of them cannot be used."""
    return [found for driver in DRIVERS.values() for found in driver() if isinstance(found, str)]


@lru_cache(maxsize=1)
def _vulkan() -> tuple[Device | str, ...]:
    """GPUs, and texts that say why others are missing."""
    from smalti.runtime import vulkan

    try:
        return tuple(f"vulkan:{number}: {adapter.name} cannot be used: {adapter.unusable}"
                     if adapter.unusable else vulkan.device_of(adapter, number)
                     for number, adapter in enumerate(vulkan.adapters()))
    except DeviceError as error:
        return (f"vulkan: {error}",)


@lru_cache(maxsize=1)
def _webgpu() -> tuple[Device | str, ...]:
    """The same through `wgpu`."""
    from smalti.runtime import webgpu

    try:
        return tuple(webgpu.device_of(adapter, n) for n, adapter in enumerate(webgpu.adapters()))
    except DeviceError as error:
        return (f"wgpu: {error}",)


DRIVERS = {"vulkan": _vulkan, "wgpu": _webgpu}


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
    """Whether this process runs on a 64-bit x86 CPU."""
    return platform.machine().lower() in X86 and sys.maxsize > 2**32


def best_level() -> str | None:
    """The x86 feature level to compile for: `SMALTI_TARGET`, else the best this CPU has.

    None where there is none: not x86-64, or no AVX2. Raises InputError when the level asked for is
    unknown or this CPU lacks something of it.
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
    """The x86 feature levels that this CPU has, the best last."""
    return [name for name, entry in LEVELS.items() if entry.needs <= set(cpu().features)]


# ---------------------------------------------------------------------- the timing model


def modelled(target: str | None = None, calibrated: bool = True) -> machine.Device:
    """This CPU as the timing model knows it: what it says of itself, and, if `calibrated`, what
    `smalti calibrate` has measured of it; as code of the feature level `target` sees it."""
    found, measured = machine.detect(cpu()), calibration() if calibrated else None
    if measured is not None:
        found = measured.applied(found, modelled_code())
    if target is None:
        return found
    chosen = level(target)
    return at_level(found, chosen.lanes, chosen.pairs)


def recorded(found: Device) -> machine.Device | None:
    """A GPU as the library of the timing model knows it, without a matrix unit that its driver does
    not let programs use; None where the library does not, and of drivers that compute on the CPU.

    >>> recorded(Device("vulkan:0", "NVIDIA GeForce RTX 4060", "discrete", 8 << 30, ())).matrix
    {}
    """
    if found.kind == "cpu":
        return None
    try:
        known = machine.device(BRAND.sub("", found.name).strip())
    except UnknownDeviceError:
        return None
    return known if found.matrices else replace(known, matrix={})


def calibration() -> CpuCalibration | None:
    """The last calibration of this CPU, or None."""
    try:
        found = CpuCalibration.of(calibration_path().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InputError):
        return None
    return found if found.device == cpu().name else None


def calibration_path() -> Path:
    """Where the last calibration is kept."""
    return settings.cache_folder() / CALIBRATION


def modelled_code() -> str:
    """The hash of the code that constants of the timing model are fitted to."""
    return code_digest("kernel", "machine", "schedule", "codegen")


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
        return _memory_bytes_windows()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_bytes_windows() -> int:
    status = np.zeros(8, np.uint64)  # MEMORYSTATUSEX: two 32-bit words, then seven of 64 bits
    status.view(np.uint32)[0] = status.nbytes
    kernel = ctypes.WinDLL("kernel32")
    kernel.GlobalMemoryStatusEx(ctypes.c_void_p(status.ctypes.data))
    return int(status[1])
