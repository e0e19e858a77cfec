"""The drivers of all systems, run on this one: the system's sleeping functions are stood in for.

A shim in this system's convention keeps marks in all registers that a function has to give back,
calls the driver in the convention it is made for, and counts the marks that are gone.
"""

from __future__ import annotations

import sys

import pytest
from driver_runs import check_run

from smalti.codegen.cpu.assembler import Code
from smalti.codegen.cpu.driver import FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, SYSTEMS
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.levels import level
from smalti.codegen.x86.driver import (
    FUTEX,
    SYSTEM_V,
    _DriverAssembler,
    convention,
    driver,
)
from smalti.codegen.x86.encoder import disassembly

MARK = 0x5AFE00


def shim(system: str) -> Code:
    """f(driver, context, thread, lost): call the driver; *lost += registers not given back."""
    asm = _DriverAssembler("shim", sys.platform)
    saved = convention(system)
    asm.enter()
    entry, context, thread, lost = (asm[name] for name in SYSTEM_V.arguments)
    asm.op("push", lost)
    asm.op("iadd_immediate", asm.stack, -40)  # home space, and 16-byte alignment at the call
    asm.op("mov", asm["RAX"], entry)
    asm.op("mov", asm["R10"], context)
    asm.op("mov", asm["R11"], thread)
    for place, number in enumerate(saved.saved_vectors):
        asm.set(asm["RBX"], MARK + place)
        asm.op("mov_store", Address(asm.stack), asm["RBX"])
        asm.op("mov_store", Address(asm.stack, 8), asm["RBX"])
        asm.op("load_low_128", Register("v", number), Address(asm.stack))
    for place, name in enumerate(saved.saved):
        asm.set(asm[name], MARK - place)
    asm.op("mov", asm[saved.arguments[0]], asm["R10"])
    asm.op("mov", asm[saved.arguments[1]], asm["R11"])
    asm.op("call", asm["RAX"])
    asm.op("mov", asm["R11"], Address(asm.stack, 40))
    for place, name in enumerate(saved.saved):
        expect(asm, asm[name], MARK - place)
    for place, number in enumerate(saved.saved_vectors):
        asm.op("store_low_128", Address(asm.stack), Register("v", number))
        for half in (0, 8):
            asm.op("mov", asm["RBX"], Address(asm.stack, half))
            expect(asm, asm["RBX"], MARK + place)
    asm.op("iadd_immediate", asm.stack, 48)
    asm.leave()
    return asm.finish()


def expect(asm: _DriverAssembler, register: Register, value: int) -> None:
    """*r11 += 1 unless `register` holds `value`."""
    kept = asm.label()
    asm.op("compare_immediate", register, value)
    asm.jump("equal", kept)
    asm.set(asm["R10"], 1)
    asm.op("exchange_add", Address(asm["R11"]), asm["R10"])
    asm.place(kept)


def futex(system: str, wait: bool) -> Code:
    """Stands in for the system's function, in its convention, and wastes what it may."""
    asm = _DriverAssembler("wait" if wait else "wake", system)
    asm.op("push", asm["RDI"])
    asm.op("push", asm["RSI"])
    if system == "win32":
        asm.op("mov", asm["RDI"], asm["RCX"])
        if wait:
            asm.op("mov", asm["RDX"], Address(asm["RDX"]))
        for home in range(4):  # the callee owns the caller's home space
            asm.op("mov_store", Address(asm.stack, 24 + 8 * home), asm["RCX"])
    else:
        asm.op("mov", asm["RDI"], asm["RSI"])
    if not wait:
        asm.set(asm["RDX"], 1000)
    asm.set(asm["RSI"], FUTEX_WAIT_PRIVATE if wait else FUTEX_WAKE_PRIVATE)
    asm.set(asm["R10"], 0)
    asm.set(asm["RAX"], FUTEX)
    asm.op("syscall")
    asm.op("pop", asm["RSI"])
    asm.op("pop", asm["RDI"])
    for name in ("RAX", "RCX", "RDX", "R8", "R9", "R10", "R11"):
        asm.set(asm[name], 0x0BAD)
    return asm.finish()


def wasteful() -> Code:
    """f(pointers): *pointers[0] += 1; every other register is overwritten."""
    asm = level("avx2").assembler("wasteful")
    pointers = asm.argument()
    total, one = asm.general(), asm.immediate(1)
    asm.op("mov", total, Address(pointers))
    asm.op("exchange_add", Address(total), one)
    waste = [asm.general() for _ in range(14)]
    vectors = [asm.load_constant(1.5) for _ in range(14)]
    for register in waste:
        asm.set(register, -1)
    for register in waste[1:]:
        asm.op("iadd", waste[0], register)
    for register in vectors[1:]:
        asm.op("add", vectors[0], vectors[0], register)
    return asm.finish()


@pytest.mark.parametrize("spins", [0, 50])
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_driver_keeps_the_convention_and_its_barriers(system: str, spins: int) -> None:
    took = check_run([driver(system), shim(system), futex(system, True), futex(system, False),
                      wasteful()], 2000, 2, spins)
    # The processor may read its counter ahead of the barrier, and two cores of a virtual machine
    # may have counters that are a little apart, so that few of them may seem to go backwards.
    assert (took > 0).mean() > 0.99 and took.sum() > 0


@pytest.mark.parametrize("system, call", [
    ("linux", "syscall"), ("darwin", "call qword ptr [rbx+40h]"),
    ("win32", "call qword ptr [rbx+40h]")])
def test_how_each_system_sleeps(system: str, call: str) -> None:
    text = disassembly(driver(system).bytes, 0)
    assert call in text
    assert text.count("lock xadd") == 6
    assert text.count("push") == text.count("pop")
    assert ("syscall" in text) == (system == "linux")


def test_arguments_of_the_windows_functions() -> None:
    text = disassembly(driver("win32").bytes, 0)
    lines = [line.strip().split("  ", 1)[1] for line in text.splitlines()]
    wait, wake = lines.index("call qword ptr [rbx+40h]"), lines.index("call qword ptr [rbx+48h]")
    assert lines[wait - 4:wait] == ["lea rcx,[rbx+100h]", "lea rdx,[rsp+50h]", "mov r8,8",
                                    "mov r9,0FFFFFFFFh"]
    assert lines[wake - 1] == "lea rcx,[rbx+100h]"


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_stack_is_aligned_where_the_system_is_called(system: str) -> None:
    asm = _DriverAssembler("any", system)
    returned_and_pushed = 8 * (1 + len(asm.convention.saved))
    assert (returned_and_pushed + asm.frame_bytes) % 16 == 0
    if system == "win32":
        assert asm.slot("context").offset >= 32  # room for the arguments of what is called
