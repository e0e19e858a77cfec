"""What an AArch64 CPU says of itself, by way of the operating system: programs may not read most of
its own registers."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smalti.codegen.arm64.driver import reader
from smalti.cores import Sysctl, number, sysctl
from smalti.runtime.cpu.architecture import Identity
from smalti.runtime.cpu.executable import Executable

# Linux's arch/arm64/include/uapi/asm/hwcap.h; the bits of two words that getauxval gives.
AT_HWCAP, AT_HWCAP2 = 16, 26
CAPABILITIES = {
    AT_HWCAP: {"asimd": 1, "atomics": 8, "fphp": 9, "asimdhp": 10, "asimddp": 20, "sve": 22,
               "asimdfhm": 23},
    AT_HWCAP2: {"sve2": 1, "i8mm": 13, "bf16": 14, "sme": 23},
}
READABLE = 11
"""The bit of AT_HWCAP by which Linux says that it emulates reading registers such as MIDR_EL1."""
SYSCTLS = {
    "asimd": ("hw.optional.AdvSIMD", "hw.optional.neon"),
    "atomics": ("hw.optional.arm.FEAT_LSE", "hw.optional.armv8_1_atomics"),
    "fphp": ("hw.optional.arm.FEAT_FP16", "hw.optional.neon_fp16"),
    "asimdhp": ("hw.optional.arm.FEAT_FP16", "hw.optional.neon_fp16"),
    "asimddp": ("hw.optional.arm.FEAT_DotProd",),
    "asimdfhm": ("hw.optional.arm.FEAT_FHM", "hw.optional.armv8_2_fhm"),
    "i8mm": ("hw.optional.arm.FEAT_I8MM",),
    "bf16": ("hw.optional.arm.FEAT_BF16",),
    "sme": ("hw.optional.arm.FEAT_SME",),
}
"""Names for macOS's sysctlbyname, the second those of macOS 11. No Apple CPU has SVE."""
PROCESSOR_FEATURES = {
    "atomics": 34, "fphp": 67, "asimdhp": 67, "asimddp": 43, "sve": 46, "sve2": 47, "i8mm": 66,
    "bf16": 68, "sme": 70,
}
"""Windows' PF_ARM_..., as winnt.h numbers them, for IsProcessorFeaturePresent. Windows itself needs
`asimd`; it says nothing of `asimdfhm`."""

PARTS = {
    (0x41, 0xD03): "Cortex-A53", (0x41, 0xD05): "Cortex-A55", (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72", (0x41, 0xD09): "Cortex-A73", (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse N1", (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse V1", (0x41, 0xD41): "Cortex-A78", (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510", (0x41, 0xD47): "Cortex-A710", (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse N2", (0x41, 0xD4B): "Cortex-A78C", (0x41, 0xD4C): "Cortex-X1C",
    (0x41, 0xD4D): "Cortex-A715", (0x41, 0xD4E): "Cortex-X3", (0x41, 0xD4F): "Neoverse V2",
    (0x41, 0xD80): "Cortex-A520", (0x41, 0xD81): "Cortex-A720", (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD84): "Neoverse V3", (0x41, 0xD85): "Cortex-X925", (0x41, 0xD87): "Cortex-A725",
    (0x46, 0x001): "A64FX", (0x48, 0xD01): "Kunpeng 920",
    (0x61, 0x022): "Apple M1", (0x61, 0x023): "Apple M1", (0x61, 0x024): "Apple M1 Pro",
    (0x61, 0x025): "Apple M1 Pro", (0x61, 0x028): "Apple M1 Max", (0x61, 0x029): "Apple M1 Max",
    (0x61, 0x032): "Apple M2", (0x61, 0x033): "Apple M2", (0x61, 0x034): "Apple M2 Pro",
    (0x61, 0x035): "Apple M2 Pro", (0x61, 0x038): "Apple M2 Max", (0x61, 0x039): "Apple M2 Max",
    (0x6D, 0xD49): "Neoverse N2", (0xC0, 0xAC3): "Ampere-1", (0xC0, 0xAC4): "Ampere-1A",
}
"""Names of cores by implementer and part number of MIDR_EL1, as Linux's asm/cputype.h lists them;
0x41 is Arm, 0x61 Apple. 0x6D is Microsoft, whose core is Arm's."""
UNNAMED = "AArch64"

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
CENTRAL_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
"""Where Windows' registry describes the first core."""
RELATION_CACHE, CACHE_RECORD_BYTES = 2, 32
"""Of SYSTEM_LOGICAL_PROCESSOR_INFORMATION: what its `Relationship` is for a cache, and its size."""
UNIFIED, DATA = 0, 2
"""Kinds of caches, as Windows numbers them; 1 has instructions."""


def identity() -> Identity:
    """Name, features and caches of this CPU; caches that Linux lists are read elsewhere."""
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        return Identity(_registered_name() or platform.processor() or UNNAMED,
                        windows_features(kernel.IsProcessorFeaturePresent),
                        windows_caches(_processor_information(kernel)))
    if sys.platform == "darwin":
        return Identity(_text(sysctl("machdep.cpu.brand_string")) or UNNAMED,
                        apple_features(sysctl), apple_caches(sysctl))
    auxiliary = _auxiliary()
    return Identity(linux_name(CPUS, CPUINFO) or own_name(auxiliary), linux_features(auxiliary), {})


# ---------------------------------------------------------------------- Linux


def linux_features(auxiliary: Callable[[int], int]) -> tuple[str, ...]:
    """The features in the words of the auxiliary vector, which `auxiliary` gives by their type."""
    return tuple(name for kind, bits in CAPABILITIES.items() for name, bit in bits.items()
                 if auxiliary(kind) >> bit & 1)


def linux_name(cpus: Path, cpuinfo: Path) -> str:
    """The kinds of cores as files tell them, or nothing: such as "Cortex-A76 + Cortex-A55", the
    kind of the last CPU first: CPUs of a phone's chip are numbered from the small to the large."""
    words = [_midr(folder / "regs/identification/midr_el1") for folder in sorted(
        cpus.glob("cpu[0-9]*"), key=lambda folder: int(folder.name[3:]))]
    found = [word for word in words if word is not None] or _listed(cpuinfo)
    return " + ".join(dict.fromkeys(core_name(word) for word in reversed(found)))


def own_name(auxiliary: Callable[[int], int]) -> str:
    """The name of the core that this is running on, as it says itself, where Linux lets it: the
    files above are of the host where the CPU is emulated, or hidden from a container."""
    if not auxiliary(AT_HWCAP) >> READABLE & 1:
        return UNNAMED
    code = Executable(reader("midr_el1").bytes)
    midr = ctypes.CFUNCTYPE(ctypes.c_uint64)(code.address)()
    code.close()
    return core_name(midr)


def core_name(midr: int) -> str:
    """The name of a core by its main identification register, MIDR_EL1.

    >>> core_name(0x411FD401)
    'Neoverse V1'
    """
    implementer, part = midr >> 24 & 0xFF, midr >> 4 & 0xFFF
    return PARTS.get((implementer, part),
                     f"{UNNAMED} (implementer {implementer:#x}, part {part:#x})")


def _midr(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return None


def _listed(cpuinfo: Path) -> list[int]:
    """MIDR_EL1, as far as names depend on it, of each CPU that /proc/cpuinfo lists."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    numbers = (re.findall(rf"^CPU {field}\s*:\s*(0x[0-9a-fA-F]+)", text, re.M)
               for field in ("implementer", "part"))
    return [int(implementer, 16) << 24 | int(part, 16) << 4
            for implementer, part in zip(*numbers)]


def _auxiliary() -> Callable[[int], int]:
    """getauxval of the C library."""
    function = ctypes.CDLL(None).getauxval
    function.restype, function.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return function


# ---------------------------------------------------------------------- macOS


def apple_features(ask: Sysctl) -> tuple[str, ...]:
    """The features by what macOS says of them."""
    return tuple(name for name, keys in SYSCTLS.items()
                 if any(number(ask(key)) for key in keys))


def apple_caches(ask: Sysctl) -> dict[int, int]:
    """Bytes of the data caches by level, of a performance core; its second one is that of a
    cluster."""
    found = {level: number(ask(f"hw.perflevel0.{name}")) or number(ask(f"hw.{name}"))
             for level, name in ((1, "l1dcachesize"), (2, "l2cachesize"))}
    cores = max(1, number(ask("hw.perflevel0.cpusperl2")))
    shared = {2: found[2] // cores, 3: found[2]} if found[2] else {}
    return {level: size for level, size in {1: found[1], **shared}.items() if size}


def _text(value: bytes) -> str:
    return value.split(b"\0")[0].decode("utf-8", "replace").strip()


# ---------------------------------------------------------------------- Windows


def windows_features(present: Callable[[int], int]) -> tuple[str, ...]:
    """The features by IsProcessorFeaturePresent."""
    return ("asimd", *(name for name, number in PROCESSOR_FEATURES.items() if present(number)))


def windows_caches(records: bytes) -> dict[int, int]:
    """Bytes of the data caches by level: the largest in an array of
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION."""
    found: dict[int, int] = {}
    for start in range(0, len(records) - CACHE_RECORD_BYTES + 1, CACHE_RECORD_BYTES):
        record = records[start:start + CACHE_RECORD_BYTES]
        relationship, level, size, kind = (int.from_bytes(record[a:b], "little") for a, b in (
            (8, 12), (16, 17), (20, 24), (24, 28)))
        if relationship == RELATION_CACHE and kind in (UNIFIED, DATA):
            found[level] = max(size, found.get(level, 0))
    return found


def _processor_information(kernel: Any) -> bytes:
    """What GetLogicalProcessorInformation says; nothing where it fails."""
    function, size = kernel.GetLogicalProcessorInformation, ctypes.c_uint32()
    function(None, ctypes.byref(size))  # it fails, and tells how many bytes it needs
    buffer = ctypes.create_string_buffer(size.value)
    return buffer.raw if function(buffer, ctypes.byref(size)) else b""


def _registered_name() -> str:
    """The name that Windows' registry has of the CPU; empty where it has none."""
    if sys.platform != "win32":
        return ""
    import winreg
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, CENTRAL_PROCESSOR) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return ""
