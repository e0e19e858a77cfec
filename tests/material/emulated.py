"""Runs kernels of AArch64 on any Linux by qemu's user mode: a kernel, and the memory that it reads
and writes, are made a program of their own, which calls every tile and prints what memory holds
then. Only the kernel is emulated, so that this takes some milliseconds, where all of Python on an
emulated CPU (`.ci/arm64`) takes half a minute to start.

    run("neon_dot", (step,), [pointer, ...], scratch, [memory, ...])   # memory: arrays of bytes

A kernel runs on each CPU that has its level, or on the one that `QEMU_CPU` names: making it takes
ten times as long as running it. All have to give the same bytes.
With `pytest --emulated neon,neon_dot` all tests of kernels use these levels instead of this CPU's:
those that run regions or steps by `native_regions.py`, but not those that run programs.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import which

import numpy as np

from smalti.codegen.arm64.encoder import word
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.lowered import KernelStep

CPUS = {"neon": ("cortex-a57", "a64fx", "cortex-a76", "neoverse-n1", "neoverse-v1", "max"),
        "neon_dot": ("cortex-a76", "neoverse-n1", "neoverse-v1", "max"),
        "neon_bf16": ("neoverse-v1", "max")}
"""The CPUs of qemu that have a level; "max" has everything that qemu knows."""
asked: list[str] = []
"""The levels that `--emulated` names."""
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
"""What Debian's packages qemu-user and qemu-user-static call it."""
BASE = 1 << 36
"""Where the program lies, which is neither where qemu nor where this process keeps anything."""
PAGE = 4096
ENTRY = 120
"""Where the program begins: behind the headers of an ELF file with one segment."""
ELF, EXECUTABLE, AARCH64, LOADED, ANY_ACCESS = b"\x7fELF\x02\x01\x01", 2, 183, 1, 7
SUPERVISOR_CALL = 0xD4000001
WRITE, EXIT, STANDARD_OUTPUT = 64, 93, 1
"""Linux's numbers of calls, and of what is written to."""
CALL_NUMBER, ENTRY_REGISTER = 8, 16
"""Registers: of the number of a call, and of the kernel's entry."""


def emulator() -> str | None:
    """The program that emulates the CPU; None if it is not installed."""
    return next((found for name in EMULATORS if (found := which(name))), None)


@cache
def known(tool: str, level: str) -> list[str]:
    """The CPUs with a level that an emulator knows: Debian 12's knows no neoverse-v1."""
    told = subprocess.run([tool, "-cpu", "help"], capture_output=True, check=False, text=True)
    found = [cpu for cpu in CPUS[level] if cpu in told.stdout.split()]
    assert "max" in found, f"{tool} knows none of {CPUS[level]}: {told.stdout}"
    return found


def spans(steps: Sequence[KernelStep], entries: Sequence[int],
          parts: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """What is called: the entry of each step, its first tile, and the one behind its last. Of the
    last step tiles from the first to the second number of each of `parts`, where there are some."""
    found = [(entry, 0, step.tiles) for step, entry in zip(steps, entries, strict=True)]
    return [*found[:-1], *((entries[-1], *part) for part in parts)] if parts else found


def run(level: str, steps: Sequence[KernelStep], pointers: Sequence[int], scratch: int,
        memory: Sequence[np.ndarray], parts: Sequence[tuple[int, int]] = ()) -> None:
    """Call every tile of every step, made for `level`, or what `spans` says, with `pointers` to
    places in `memory`, which changes."""
    tool = emulator()
    assert tool is not None, "no emulator: install qemu-user"
    image = _program(steps, pointers, scratch, memory, parts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel"
        path.write_bytes(image)
        path.chmod(0o755)
        named = os.environ.get("QEMU_CPU")
        found = {cpu: _printed(tool, cpu, path)
                 for cpu in ([named] if named else known(tool, level))}
    (first, printed), *others = found.items()
    for cpu, bytes_there in others:
        assert bytes_there == printed, f"a kernel of {level} differs on {cpu} and {first}"
    at = 0
    for array in memory:
        array[:] = np.frombuffer(printed, np.uint8, array.nbytes, at)
        at += array.nbytes


def _printed(tool: str, cpu: str, path: Path) -> bytes:
    """What a program prints on a CPU."""
    done = subprocess.run([tool, "-cpu", cpu, path], capture_output=True, check=False)
    assert done.returncode == 0, \
        f"{tool} as {cpu} ended with {done.returncode}: {done.stderr.decode()}"
    return done.stdout


def _program(steps: Sequence[KernelStep], pointers: Sequence[int], scratch: int,
             memory: Sequence[np.ndarray], parts: Sequence[tuple[int, int]]) -> bytes:
    """The ELF file: its headers, calls, kernels, pointers, and memory, whose parts lie as far from
    a page's beginning as they do here."""
    code, entries = joined([step.code for step in steps])
    called = spans(steps, entries, parts)
    calls = sum(end - first for _, first, end in called)
    code_at = _aligned(ENTRY + 4 * (20 * calls + 16 * len(memory) + 8))
    table_at = _aligned(code_at + len(code))
    end, places = _aligned(table_at + 8 * len(pointers)), []
    for array in memory:
        places.append(end + array.ctypes.data % PAGE)
        end = _aligned(places[-1] + array.nbytes)

    def there(pointer: int) -> int:
        """Where the program has what is at `pointer` here; 0 for none."""
        for array, place in zip(memory, places, strict=True):
            if 0 <= pointer - array.ctypes.data <= array.nbytes:
                return BASE + place + pointer - array.ctypes.data
        assert pointer == 0, hex(pointer)
        return 0

    words: list[int] = []
    for entry, first, end_tile in called:
        for tile in range(first, end_tile):
            words += _set({0: BASE + table_at, 1: tile, 2: there(scratch), 3: 0,
                           ENTRY_REGISTER: BASE + code_at + entry})
            words.append(word("blr", ENTRY_REGISTER))
    for array, place in zip(memory, places, strict=True):
        words += _set({0: STANDARD_OUTPUT, 1: BASE + place, 2: array.nbytes, CALL_NUMBER: WRITE})
        words.append(SUPERVISOR_CALL)
    words += [*_set({0: 0, CALL_NUMBER: EXIT}), SUPERVISOR_CALL]
    image = np.zeros(end, np.uint8)
    segment = struct.pack("<IIQQQQQQ", LOADED, ANY_ACCESS, 0, BASE, BASE, end, end, PAGE)
    header = struct.pack("<16sHHIQQQIHHHHHH", ELF, EXECUTABLE, AARCH64, 1, BASE + ENTRY, 64, 0, 0,
                         64, len(segment), 1, 0, 0, 0)
    pieces = [(0, header + segment), (ENTRY, struct.pack(f"<{len(words)}I", *words)),
              (code_at, code),
              (table_at, struct.pack(f"<{len(pointers)}Q", *map(there, pointers))),
              *((place, array.tobytes()) for array, place in zip(memory, places, strict=True))]
    for place, piece in pieces:
        image[place:place + len(piece)] = np.frombuffer(piece, np.uint8)
    return image.tobytes()


def _set(registers: dict[int, int]) -> list[int]:
    """Instructions that put numbers into general registers."""
    return [word("movk.x" if at else "movz.x", register, value >> at & 0xFFFF, at)
            for register, value in registers.items() for at in range(0, 64, 16)
            if not at or value >> at & 0xFFFF]


def _aligned(place: int) -> int:
    return place + -place % PAGE
