"""The drivers of all systems: what they are made of, and, on AArch64, how they run. Functions of
systems by which threads sleep are stood in for.

A shim keeps marks in all registers that a function has to give back, calls the driver, and counts
the marks that are gone.
"""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from driver_runs import check_run
from slow_threads import LAUNCHES, SPEEDS, left_by_rule

from smalti.codegen.arm64.driver import (
    CALL_NUMBER,
    FRAME_BYTES,
    FUTEX,
    LINK,
    SAVED,
    SAVED_VECTORS,
    STACK,
    _DriverAssembler,
    driver,
    maintenance,
    reader,
)
from smalti.codegen.arm64.encoder import disassembly
from smalti.codegen.cpu.assembler import Code
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.driver import FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, SYSTEMS
from smalti.codegen.cpu.layout import CONTEXT, LAUNCH, LEFT_BITS, NO_BARRIER, aligned
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.executable import Executable

MARK = 0x5AFE


def lines(code: Code) -> list[str]:
    """The instructions, without their places."""
    return [line.split(maxsplit=1)[1] for line in disassembly(code.bytes, 0).splitlines()]


@pytest.mark.parametrize("atomics", [True, False])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_driver_keeps_to_the_convention(system: str, atomics: bool) -> None:
    found = lines(driver(system, atomics))
    text = "\n".join(found)
    assert not re.search(r"\b[xw]18\b", text)
    saved, restored = ([line[4:] for line in found if line.startswith(name)]
                       for name in ("stp ", "ldp "))
    assert sorted(saved) == sorted(restored) and len(saved) == 10
    assert FRAME_BYTES % 16 == 0
    assert found[0] == f"sub sp, sp, #{FRAME_BYTES}"
    assert found[-2:] == [f"add sp, sp, #{FRAME_BYTES}", "ret x30"]
    assert ("svc #0" in found) == (system == "linux")
    assert text.count("blr") == (1 if system == "linux" else 3)
    assert text.count("ldadd") == (5 if atomics else 0)
    assert text.count("stxr") + text.count("stlxr") == (0 if atomics else 5)


@pytest.mark.parametrize("system", SYSTEMS)
def test_where_order_matters(system: str) -> None:
    found = lines(driver(system, True))
    moved = next(i for i, line in enumerate(found) if line.startswith("stlr"))
    assert found[moved + 1] == "dmb ish"  # before `sleepers` is read
    counted = [i for i, line in enumerate(found) if line.startswith("ldaddal")]
    assert found[counted[1] + 1] == "dmb ish"  # before `generation` is read again
    assert sum(line.startswith("ldar") for line in found) == 2
    assert sum(line.startswith("ldadd x") for line in found) == 2  # the counter of tiles
    stamps = [i for i, line in enumerate(found) if "cntvct_el0" in line]
    assert stamps and all(found[i - 1] == "isb" for i in stamps)


@pytest.mark.parametrize("system, wait, wake", [
    ("linux", ["add x0, x9, #256", "movz x1, #128, lsl #0", "ldr x2, [sp, #208]",
               "movz x3, #0, lsl #0", "movz x8, #98, lsl #0", "svc #0"],
     ["add x0, x9, #256", "movz x1, #129, lsl #0", "movz x2, #65535, lsl #0",
      "movk x2, #32767, lsl #16", "movz x8, #98, lsl #0", "svc #0"]),
    ("darwin", ["movz x0, #1, lsl #0", "add x1, x9, #256", "ldr x2, [sp, #208]",
                "movz x3, #0, lsl #0", "ldr x12, [x9, #64]", "blr x12"],
     ["movz x0, #257, lsl #0", "add x1, x9, #256", "movz x2, #0, lsl #0", "ldr x12, [x9, #72]",
      "blr x12"]),
    ("win32", ["add x0, x9, #256", "add x1, sp, #208", "movz x2, #8, lsl #0",
               "movz x3, #65535, lsl #0", "movk x3, #65535, lsl #16", "ldr x12, [x9, #64]",
               "blr x12"],
     ["add x0, x9, #256", "ldr x12, [x9, #72]", "blr x12"])])
def test_how_each_system_sleeps(system: str, wait: list[str], wake: list[str]) -> None:
    found = lines(driver(system, True))
    for part in (wait, wake):
        assert any(found[i:i + len(part)] == part for i in range(len(found)))


def test_caches_are_maintained_in_the_order_of_the_manual() -> None:
    found = [line for line in lines(maintenance())
             if line.split()[0] in ("dc", "ic", "dsb", "isb")]
    assert found == ["dc cvau, x9", "dsb ish", "ic ivau, x9", "dsb ish", "isb"]
    assert lines(reader("ctr_el0")) == ["mrs x0, ctr_el0", "ret x30"]


# ---------------------------------------------------------------------- run on AArch64


def shim() -> Code:
    """f(driver, context, thread, lost): call the driver; *lost += registers not given back."""
    asm = _DriverAssembler("shim", "linux", False)
    asm.enter()
    asm.op("stp.x.pre", 3, LINK, STACK, -16)
    asm.op("mov.x", 12, 0)
    asm.op("mov.x", 0, 1)
    asm.op("mov.x", 1, 2)
    for number in SAVED:
        asm.give(number, MARK + number)
    for number in SAVED_VECTORS:
        asm.give(13, MARK - number)
        asm.op("fmov.d.x", number, 13)
    asm.op("blr", 12)
    asm.op("ldp.x.post", 3, 12, STACK, 16)
    asm.give(15, 1)
    for number in SAVED:
        if number != LINK:
            expect(asm, number, MARK + number)
    for number in SAVED_VECTORS:
        asm.op("fmov.x.d", 14, number)
        expect(asm, 14, MARK - number)
    asm.leave()
    return asm.finish()


def expect(asm: _DriverAssembler, register: int, value: int) -> None:
    """*x3 += 1 unless `register` holds `value`."""
    kept = asm.label()
    asm.give(13, value)
    asm.op("cmp.x", register, 13)
    asm.jump("eq", kept)
    asm.fetch_add(13, 3, 15)
    asm.place(kept)


def futex(system: str, wait: bool) -> Code:
    """Stands in for the system's function, by Linux's system call, and wastes what it may."""
    asm = _DriverAssembler("wait" if wait else "wake", "linux", False)
    if system == "win32":
        if wait:
            asm.op("ldr.x", 2, 1, 0)
    else:
        asm.op("mov.x", 0, 1)
    if not wait:
        asm.give(2, 1000)
    asm.give(1, FUTEX_WAIT_PRIVATE if wait else FUTEX_WAKE_PRIVATE)
    asm.give(3, 0)
    asm.give(CALL_NUMBER, FUTEX)
    asm.op("svc", 0)
    for number in range(18):
        asm.give(number, 0x0BAD)
    return asm.finish()


def wasteful() -> Code:
    """f(pointers): *pointers[0] += 1; every other register is overwritten."""
    asm = _DriverAssembler("wasteful", "linux", False)
    asm.op("ldr.x", 4, 0, 0)
    asm.give(5, 1)
    asm.fetch_add(6, 4, 5)
    for number in (*range(18), *range(19, 30)):
        asm.op("movn.x", number, 0, 0)
    for number in range(32):
        asm.op("fmov.d.x", number, 0)
    return asm.finish()


@pytest.mark.parametrize("spins", [0, 50])
@pytest.mark.parametrize("atomics", [True, False])
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_driver_runs(system: str, atomics: bool, spins: int) -> None:
    if architecture() != "arm64" or atomics > ("atomics" in cpu().features):
        return
    took = check_run([driver(system, atomics), shim(), futex(system, True), futex(system, False),
                      wasteful()], 500, 3, spins)
    assert (took >= 0).all() and took.sum() > 0


def beside_others(taken: int) -> Code:
    """f(pointers): *pointers[0] += taken: other threads take so many tiles meanwhile."""
    asm = _DriverAssembler("beside_others", "linux", False)
    asm.op("ldr.x", 4, 0, 0)
    asm.give(5, taken)
    asm.fetch_add(6, 4, 5)
    return asm.finish()


@pytest.mark.parametrize("atomics", [True, False])
@pytest.mark.parametrize("threads, taken, tiles", SPEEDS)
def test_a_slow_thread_leaves_the_last_tiles_to_the_others(
        threads: int, taken: int, tiles: int, atomics: bool) -> None:
    if architecture() != "arm64" or atomics > ("atomics" in cpu().features):
        return
    block, places = joined([driver("linux", atomics), beside_others(taken)])
    executable = Executable(block)
    entry, function = (executable.address + place for place in places)
    counters = np.zeros(LAUNCHES, np.uint64)
    pointers = np.array(counters.ctypes.data + 8 * np.arange(LAUNCHES), np.uint64)
    table, state = aligned(LAUNCHES, LAUNCH), aligned(1, CONTEXT)
    table["function"], table["tiles"], table["flags"] = function, tiles, NO_BARRIER
    table["pointers"] = pointers.ctypes.data + 8 * np.arange(LAUNCHES)
    table["counter"] = pointers
    state["launches"], state["last"], state["threads"] = table.ctypes.data, LAUNCHES, threads
    run = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)(entry)
    run(state.ctypes.data, 1)
    assert (counters % 2**LEFT_BITS).tolist() == left_by_rule(threads, taken, tiles)
    counters[:] = threads - 1 << LEFT_BITS
    run(state.ctypes.data, 1)
    assert (counters % 2**LEFT_BITS >= tiles).all()  # nobody else is left
