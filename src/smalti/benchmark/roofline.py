"""What this machine can do at most: multiply-adds a second and bytes a second, both measured.

Williams et al. 2009, "Roofline", doi:10.1145/1498765.1498785: a kernel takes at least the longer of
its FLOPs / peak and its bytes / bandwidth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from smalti.runtime.devices import cpu
from smalti.runtime.executable import Executable
from smalti.runtime.threads import context, driver_entry, workers
from smalti.target.x86.assembler import Assembler, Code, Memory
from smalti.target.x86.instructions import Level, level
from smalti.target.x86.layout import LAUNCH, aligned

SUMS = 12
"""Sums that do not depend on one another: more than latency times instructions a cycle."""
STEPS = 100_000
TILES_PER_THREAD = 64
CHUNK_BYTES = 1 << 20
READ_BYTES_MIN = 256 << 20
REPETITIONS = 10


@dataclass(frozen=True)
class Roofline:
    """Peaks of all `threads` together, in FLOP/s and bytes/s; `precision` is that of products."""

    threads: int
    precision: str
    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """The least time of a kernel.

        >>> Roofline(2, "f32", 4e11, 2e10).seconds(flops=8e11, moved_bytes=1e9)
        2.0
        """
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)

    def __str__(self) -> str:
        return (f"peak of {self.threads} threads: {self.flops_per_second / 1e9:.0f} GFLOP/s in "
                f"{self.precision}, {self.bytes_per_second / 1e9:.1f} GB/s read from memory "
                f"(ridge at {self.flops_per_second / self.bytes_per_second:.1f} FLOP/byte)")


def measure(level_name: str, precision: str, threads: int) -> Roofline:
    """Both peaks: the best of some repetitions of a few tens of milliseconds each.

    Where a level has no instruction for bf16, its products are f32, and so is the peak.
    """
    chosen = level(level_name)
    bf16 = precision == "bf16" and "avx512_bf16" in chosen.needs
    flops = SUMS * STEPS * chosen.lanes * (4 if bf16 else 2) * TILES_PER_THREAD * threads
    multiply = _best(_multiplying(chosen, bf16), 0, TILES_PER_THREAD * threads, threads)
    size = max(READ_BYTES_MIN, 4 * cpu().l3_bytes)
    memory = np.ones(size // 4 + 16, np.float32)  # written, so that every page is there
    start = memory.ctypes.data + -memory.ctypes.data % 64
    read = _best(_reading(chosen), start, size // CHUNK_BYTES, threads)
    return Roofline(threads, "bf16" if bf16 else "f32", flops / multiply,
                    size // CHUNK_BYTES * CHUNK_BYTES / read)


def _multiplying(level: Level, bf16: bool) -> Code:
    """Multiply-adds on registers only."""
    asm = Assembler(level, "multiply")
    for _ in range(4):
        asm.argument()
    sums, factor = [asm.zero() for _ in range(SUMS)], asm.load_constant(0.5)
    with asm.loop(STEPS):
        for register in sums:
            asm.op("dot_pairs" if bf16 else "fma", register, factor, factor)
    return asm.finish()


def _reading(level: Level) -> Code:
    """Reads chunk number `tile` of the memory at the first argument."""
    asm = Assembler(level, "read")
    pointers, tile, _, _ = (asm.argument() for _ in range(4))
    base = asm.general()
    asm.op("mov", base, Memory(pointers))
    place = asm.offset(base, tile, CHUNK_BYTES)
    width = 4 * level.lanes
    with asm.loop(CHUNK_BYTES // (8 * width)):
        for number in range(8):
            asm.load(Memory(place, number * width))
        asm.advance(place, 8 * width)
    return asm.finish()


def _best(code: Code, address: int, tiles: int, threads: int) -> float:
    """The shortest time of some runs of all tiles, in seconds."""
    executable = Executable(code.bytes)
    pointers, counter, table = (np.array([address], np.uint64), np.zeros(8, np.uint64),
                                aligned(1, LAUNCH))
    table[0] = (executable.address + code.entry, pointers.ctypes.data, tiles,
                counter.ctypes.data, 0)
    state, taken = context(table, threads), []
    for _ in range(REPETITIONS):
        counter[:] = 0
        started = time.perf_counter()
        workers(threads).run(driver_entry(), state.ctypes.data)
        taken.append(time.perf_counter() - started)
    executable.close()
    return min(taken)
