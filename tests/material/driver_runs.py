"""Runs of a driver, of any architecture: many launches of few tiles, by threads that wait for each
other at each; and what kernels of such tests do that others do not."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np

from smalti.codegen.cpu.assembler import Assembler, Code
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.layout import CONTEXT, LAUNCH, aligned
from smalti.codegen.cpu.operands import Address, Register
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.executable import Executable

TILES = 3
"""Tiles of each launch."""


def add_at_once(asm: Assembler, place: Register, amount: Register) -> None:
    """[place] += amount, whatever other threads add there meanwhile; `amount` is overwritten."""
    if architecture() == "x86":
        asm.op("exchange_add", Address(place), amount)
    elif "atomics" in cpu().features:
        asm.emit("ldaddal.x", amount, amount, place)
    else:
        again, value, failed = asm.label(), asm.immediate(0), asm.immediate(0)
        asm.place(again)
        asm.emit("ldaxr.x", value, place)
        asm.emit("add.x", value, value, amount)
        asm.emit("stlxr.x", failed, value, place)
        asm.emit("cbnz.w", failed, target=again)
        asm.op("mov", amount, place)  # both, and no other, had to stay where they are until here


def rest(asm: Assembler) -> None:
    """Let some time pass."""
    if architecture() == "x86":
        asm.op("pause")
    else:
        asm.emit("isb")


def check_run(codes: Sequence[Code], launches: int, threads: int, spins: int) -> np.ndarray:
    """Every tile is computed once, the barriers open once a launch, and all registers come back.

    `codes` are the driver; a shim f(driver, context, thread, lost), which adds to `lost` how many
    registers the driver did not give back; what stands in for the system's functions by which
    threads wait and wake others; and the kernel, f(pointers), which adds 1 where the first points.
    Returns the ticks that the launches took.
    """
    block, places = joined(codes)
    executable = Executable(block)
    entry, call, wait, wake, function = (executable.address + place for place in places)
    total, lost = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    pointers = np.array([total.ctypes.data], np.uint64)
    counters, stamps = np.zeros(launches, np.uint64), np.zeros(launches + 1, np.uint64)
    table, state = aligned(launches, LAUNCH), aligned(1, CONTEXT)
    table["function"], table["pointers"], table["tiles"] = function, pointers.ctypes.data, TILES
    table["counter"] = counters.ctypes.data + 8 * np.arange(launches)
    for field, value in {"launches": table.ctypes.data, "last": launches, "threads": threads,
                         "spins": spins, "stamps": stamps.ctypes.data, "wait": wait,
                         "wake": wake}.items():
        state[field] = value
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * 4)(call)
    callers = [threading.Thread(target=native, args=(
        entry, state.ctypes.data, number, lost.ctypes.data)) for number in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert total[0] == launches * TILES
    assert lost[0] == 0, f"{lost[0]} registers were not given back"
    assert state["generation"][0] == launches and state["sleepers"][0] == 0
    return np.diff(stamps.astype(np.int64))
