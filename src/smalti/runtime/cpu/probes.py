"""Measures this CPU by small pieces of machine code: clock, multiply-adds, bandwidth and latency of
the caches and of memory, barriers.

Each probe is the best of a few short repetitions, so all of them together take a second or two.
"""

from __future__ import annotations

import time

import numpy as np

from smalti.codegen.cpu.assembler import Code, FeatureLevel
from smalti.codegen.cpu.layout import LAUNCH, aligned
from smalti.codegen.cpu.operands import Address
from smalti.dataclass import dataclass
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.threads import context, driver_entry, workers

KEPT = 4
"""Vector registers that a probe leaves free of sums: one has the factor."""
STEPS = 20_000
"""Iterations of a probe's loop: some 100,000 cycles, many times what a launch costs."""
CHAINED = 64
"""Additions in an iteration, each of the result of the one before: so many that counting the
iterations beside them takes no time, on cores that run in order, too."""
SECONDS_EACH = 0.02
"""How long one repetition reads memory: far longer than the resolution of the timer."""
REPETITIONS = 5
"""How often a probe is run; the fastest run counts."""
CHASES = 100_000
"""Loads each of which waits for the one before: about 10 ms if each goes to main memory."""
LINE_BYTES = {"x86": 64, "arm64": 128}
"""Bytes of a cache line, or of two: Apple's CPUs have the longest ones of desktops."""
PAGE_BYTES = 4096
"""The smallest page of every system: what touches one in so many bytes touches all."""
BARRIERS = 5000
"""Barriers in a run: so many that the time to start the threads does not matter."""


def sums(level: FeatureLevel) -> int:
    """Independent sums of a probe: as many as there are registers for, and so more than latency
    times instructions a clock, 4 to 5 times 2 on x86 and 4 times 4 on the widest AArch64 cores."""
    return level.vectors - KEPT


def multiplying(level: FeatureLevel, pairs: bool, steps: int = STEPS) -> Code:
    """Code of multiply-adds on registers only, one for each of `sums` in an iteration."""
    asm = level.assembler("multiply")
    for _ in range(4):
        asm.argument()
    totals, factor = [asm.zero() for _ in range(sums(level))], asm.load_constant(0.5)
    with asm.loop(steps):
        for register in totals:
            asm.op("dot_pairs" if pairs else "fma", register, factor, factor)
    return asm.finish()


def chain(level: FeatureLevel) -> Code:
    """Code of `STEPS` additions of integers, each of the result of the one before: every CPU of
    the last ten years takes a clock for one."""
    asm = level.assembler("chain")
    for _ in range(4):
        asm.argument()
    value = asm.immediate(1)
    with asm.loop(STEPS // CHAINED):
        for _ in range(CHAINED):
            asm.op("iadd", value, value)
    return asm.finish()


def reading(level: FeatureLevel, size: int, times: int) -> Code:
    """Code that reads `size` bytes of the thread's scratch memory `times` times."""
    asm = level.assembler("read")
    _, _, scratch, _ = (asm.argument() for _ in range(4))
    width = 4 * level.lanes
    with asm.loop(times):
        place = asm.copy(scratch)
        with asm.loop(size // (8 * width)):
            for number in range(8):
                asm.load(Address(place, number * width))
            asm.advance(place, 8 * width)
    return asm.finish()


def chasing(level: FeatureLevel, steps: int) -> Code:
    """Code that follows a chain of pointers through the thread's scratch memory."""
    asm = level.assembler("chase")
    _, _, scratch, _ = (asm.argument() for _ in range(4))
    at = asm.copy(scratch)
    with asm.loop(steps // 8):
        for _ in range(8):
            asm.op("mov", at, Address(at))
    return asm.finish()


def nothing(level: FeatureLevel) -> Code:
    """Code of a tile that does nothing."""
    asm = level.assembler("nothing")
    for _ in range(4):
        asm.argument()
    return asm.finish()


@dataclass(frozen=True)
class Scratch:
    """Scratch memory of some threads, every page of which has been touched."""

    memory: np.ndarray
    address: int
    bytes: int

    @classmethod
    def of(cls, threads: int, size: int) -> Scratch:
        """Scratch memory of `size` bytes for each thread."""
        memory = anonymous(threads * size + PAGE_BYTES)
        memory[::PAGE_BYTES] = 1
        start = memory.ctypes.data
        return cls(memory, start + -start % PAGE_BYTES, size)


def best(code: Code, tiles: int, threads: int, scratch: Scratch | None = None,
         launches: int = 1, repetitions: int = REPETITIONS) -> float:
    """Seconds of the fastest of some runs; a run has `launches` launches of all tiles, each
    followed by a barrier."""
    executable = Executable(code.bytes)
    counters, table = np.zeros(8 * launches, np.uint64), aligned(launches, LAUNCH)
    pointers = np.zeros(1, np.uint64)
    for number in range(launches):
        table[number] = (executable.address + code.entry, pointers.ctypes.data, tiles,
                         counters.ctypes.data + 64 * number, 0)
    state = context(table, threads, scratch.address if scratch else 0,
                    scratch.bytes if scratch else 0)
    taken = []
    for _ in range(repetitions):
        counters[:] = 0
        started = time.perf_counter()
        workers(threads).run(driver_entry(), state.ctypes.data)
        taken.append(time.perf_counter() - started)
    executable.close()
    return min(taken)


def clock(level: FeatureLevel) -> float:
    """The clock of a busy core, in Hz."""
    tiles = 1000
    return STEPS // CHAINED * CHAINED * tiles / best(chain(level), tiles, 1)


def flops(level: FeatureLevel, pairs: bool, threads: int) -> float:
    """FLOP/s of multiply-adds on registers, of f32 or of pairs of bf16."""
    tiles = 400 * threads
    work = sums(level) * STEPS * level.lanes * (4 if pairs else 2) * tiles
    return work / best(multiplying(level, pairs), tiles, threads)


def bandwidth(level: FeatureLevel, size: int, threads: int, rate: float = 1e10) -> float:
    """Bytes a second that all threads together read, each from `size` bytes of its own.

    `rate` is about what one thread is expected to reach; the length of the run follows from it.
    """
    scratch = Scratch.of(threads, size)
    times = max(1, int(SECONDS_EACH * rate / size))
    taken = best(reading(level, size, times), threads, threads, scratch)
    return threads * times * (size - size % (32 * level.lanes)) / taken


def latency(level: FeatureLevel, size: int) -> float:
    """Seconds of a load at a random place in `size` bytes, each waiting for the one before."""
    scratch, line_bytes = Scratch.of(1, size), LINE_BYTES[architecture() or "x86"]
    lines = size // line_bytes
    order = np.random.default_rng(0).permutation(lines - 1) + 1
    order = np.concatenate([[0], order])
    table = scratch.memory[scratch.address - scratch.memory.ctypes.data:][:size].view(np.uint64)
    table[order * (line_bytes // 8)] = scratch.address + line_bytes * np.roll(order, -1).astype(
        np.uint64)
    few, many = (best(chasing(level, steps), 1, 1, scratch, repetitions=3)
                 for steps in (CHASES, 4 * CHASES))
    return (many - few) / (3 * CHASES)


def barrier(level: FeatureLevel, threads: int) -> float:
    """Seconds of a launch with hardly any work and of the barrier after it."""
    return best(nothing(level), threads, threads, launches=BARRIERS) / BARRIERS
