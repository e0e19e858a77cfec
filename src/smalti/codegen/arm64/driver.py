"""The code that speaks AArch64's calling convention: the driver of a run, and small functions that
ask the CPU or maintain its caches.

What the driver does, and why, is in `codegen/cpu/driver.py`. An AArch64 CPU, unlike x86's, does not
promise that other cores see writes in the order of the program, nor that reads do not overtake each
other. So it is said where order matters:

* The counter of tiles is read and taken without order: nothing but the number itself passes between
  threads. What is read may be old, which only makes a thread stay; that the last thread stays
  follows from the additions, which are one after the other.
* `arrivals` is counted with acquire and release: what a thread's kernels wrote comes before it, and
  the last to arrive, having read what all others left there, sees all of it.
* `generation` is moved with release, behind `arrivals = 0`, `stopped` and the time stamp, and read
  with acquire: who sees that it has moved sees these, and what all threads wrote before.
* Between moving `generation` and reading `sleepers` stands a full barrier (`dmb ish`), and one
  between counting oneself as a sleeper and reading `generation`: each of both writes first and
  reads then what the other writes, and a wake-up would be lost if both reads came first.
* At the entry, `isb`: this core may have fetched instructions at the addresses of the kernels when
  other code was there. (Caches were maintained when the code was written: see `maintenance`.)
* A time stamp is read behind an `isb`: the counter is a register, which a core reads early if it
  likes.

Where the CPU has no atomic additions (before Armv8.1), loops of exclusive loads and stores take
their place, of the same order.

AAPCS64, the convention of Linux, macOS and Windows, wants x19 to x30 and the lower halves of v8 to
v15 back; kernels overwrite all of these, so the driver keeps them in its frame, and all that has to
outlive a call. Register x18 is the system's on macOS and Windows, and never touched.
"""

from __future__ import annotations

import struct

from smalti.codegen.arm64.encoder import INSTRUCTION_BYTES, word
from smalti.codegen.arm64.instructions import CONDITIONS
from smalti.codegen.cpu.assembler import Code
from smalti.codegen.cpu.driver import (
    ALL_SLEEPERS,
    FOREVER,
    FUTEX_WAIT_PRIVATE,
    FUTEX_WAKE_PRIVATE,
    NO_TILE,
    SLOTS,
    STAMP_BYTES,
    ULOCK_COMPARE_AND_WAIT,
    ULOCK_WAKE_ALL,
    checked_system,
)
from smalti.codegen.cpu.layout import (
    CONTEXT,
    LAUNCH,
    LEFT_BITS,
    NO_BARRIER,
    PRIOR,
    WINDOW,
    offset,
)
from smalti.codegen.cpu.operands import Label

STACK, LINK, ZERO = 31, 30, 31
"""Numbers of the stack pointer, of the register with the return address, and of that which is
always zero: where an instruction takes the one 31, it does not take the other."""
SAVED = tuple(range(19, 31))
"""General registers that a function gives back."""
SAVED_VECTORS = tuple(range(8, 16))
"""Vector registers whose lower 64 bits a function gives back."""
SLOTS_AT = 8 * (len(SAVED) + len(SAVED_VECTORS))
FRAME_BYTES = SLOTS_AT + 8 * len(SLOTS) + -(SLOTS_AT + 8 * len(SLOTS)) % 16
"""Bytes of the frame: the stack pointer stays a multiple of 16."""
BASE = 9
"""The register with the address of the launch or of the context, between calls."""

FUTEX = 98
"""The number of the system call `futex` of Linux on AArch64."""
CALL_NUMBER = 8
"""The register with the number of a system call."""


class _DriverAssembler:
    """Emits instructions on physical registers, which are numbers here, with a frame of named
    slots."""

    def __init__(self, name: str, system: str, atomics: bool) -> None:
        self.name, self.system, self.atomics = name, checked_system(system), atomics
        self.lines: list[tuple[str, tuple[int | Label, ...]]] = []
        self._places: dict[Label, int] = {}
        self._labels = 0

    def op(self, name: str, *operands: int | Label) -> None:
        """Emit an instruction."""
        self.lines.append((name, operands))

    def label(self) -> Label:
        """A new label, to be placed later."""
        self._labels += 1
        return Label(self._labels)

    def place(self, label: Label) -> None:
        """The label stands here."""
        self._places[label] = len(self.lines)

    def jump(self, condition: str, label: Label) -> None:
        """Jump to `label` if the last comparison says so."""
        self.op("b.condition", CONDITIONS.index(condition), label)

    def give(self, register: int, value: int) -> None:
        """register = value, of up to 64 bits."""
        self.op("movz.x", register, value & 0xFFFF, 0)
        for place in range(1, 4):
            if part := value >> 16 * place & 0xFFFF:
                self.op("movk.x", register, part, place * 16)

    def get(self, register: int, slot: str) -> None:
        """register = a slot of the frame."""
        self.op("ldr.x", register, STACK, SLOTS_AT + 8 * SLOTS.index(slot))

    def keep(self, slot: str, register: int) -> None:
        """A slot of the frame = register."""
        self.op("str.x", register, STACK, SLOTS_AT + 8 * SLOTS.index(slot))

    def context(self, register: int, field: str) -> None:
        """register = a field of the context, which is at `BASE`."""
        self.op("ldr.x", register, BASE, offset(CONTEXT, field))

    def launch(self, register: int, field: str) -> None:
        """register = a field of the current launch, which is at `BASE`."""
        self.op("ldr.x", register, BASE, offset(LAUNCH, field))

    def address(self, register: int, field: str) -> None:
        """register = the address of a field of the context, which is at `BASE`."""
        self.op("add.x.immediate", register, BASE, offset(CONTEXT, field))

    def fetch_add(self, before: int, address: int, amount: int, ordered: bool = True) -> None:
        """before = [address], [address] += amount, at once; with acquire and release if `ordered`.

        x16 and x17 are overwritten where the CPU has no atomic additions.
        """
        if self.atomics:
            self.op("ldaddal.x" if ordered else "ldadd.x", amount, before, address)
            return
        again = self.label()
        self.place(again)
        self.op("ldaxr.x" if ordered else "ldxr.x", before, address)
        self.op("add.x", 16, before, amount)
        self.op("stlxr.x" if ordered else "stxr.x", 17, 16, address)
        self.op("cbnz.w", 17, again)

    def enter(self) -> None:
        """Save what the caller wants back."""
        self.op("sub.x.immediate", STACK, STACK, FRAME_BYTES)
        for place in range(0, len(SAVED), 2):
            self.op("stp.x", SAVED[place], SAVED[place + 1], STACK, 8 * place)
        for place in range(0, len(SAVED_VECTORS), 2):
            self.op("stp.d", SAVED_VECTORS[place], SAVED_VECTORS[place + 1], STACK,
                    8 * (len(SAVED) + place))

    def leave(self) -> None:
        """Give the caller's registers back."""
        for place in range(0, len(SAVED), 2):
            self.op("ldp.x", SAVED[place], SAVED[place + 1], STACK, 8 * place)
        for place in range(0, len(SAVED_VECTORS), 2):
            self.op("ldp.d", SAVED_VECTORS[place], SAVED_VECTORS[place + 1], STACK,
                    8 * (len(SAVED) + place))
        self.op("add.x.immediate", STACK, STACK, FRAME_BYTES)

    def finish(self) -> Code:
        """Return to the caller; encode what was emitted, as it is."""
        self.op("ret", LINK)
        words = [word(name, *(INSTRUCTION_BYTES * (self._places[operand] - at)
                              if isinstance(operand, Label) else operand for operand in operands))
                 for at, (name, operands) in enumerate(self.lines)]
        return Code(self.name, struct.pack(f"<{len(words)}I", *words), 0, len(words))


def driver(system: str, atomics: bool) -> Code:
    """The driver of a run for `system` ("linux", "darwin" or "win32"); `atomics` says that the CPU
    has atomic additions.

    A C function `void driver(context, thread)`; see `codegen/cpu/layout.py` for what the context
    holds. Raises DeviceError for a system without one.
    """
    asm = _DriverAssembler("driver", system, atomics)
    asm.enter()
    _prepare(asm)
    launch, tile, done = asm.label(), asm.label(), asm.label()
    barrier, following, leave = asm.label(), asm.label(), asm.label()
    asm.get(10, "left")
    asm.op("cbz.x", 10, leave)

    asm.place(launch)
    asm.op("movn.x", 10, ~NO_TILE, 0)
    asm.keep("tile", 10)
    asm.place(tile)
    asm.get(BASE, "launch")
    asm.launch(10, "counter")
    _leave_if_slow(asm, done)
    asm.give(11, 1)
    asm.fetch_add(1, 10, 11, ordered=False)
    asm.op("ubfm.x", 1, 1, 0, LEFT_BITS - 1)
    asm.launch(12, "tiles")
    asm.op("cmp.x", 1, 12)
    asm.jump("hs", done)
    asm.keep("tile", 1)
    asm.launch(0, "pointers")
    asm.get(2, "scratch")
    asm.get(3, "thread")
    asm.launch(12, "function")
    asm.op("blr", 12)
    asm.op("b", tile)

    asm.place(done)
    asm.launch(10, "flags")
    asm.op("tst.x.immediate", 10, NO_BARRIER)
    asm.jump("eq", barrier)
    _stamp_of_first(asm)
    asm.op("b", following)
    asm.place(barrier)
    _barrier(asm, leave)

    asm.place(following)
    for slot, step in (("stamp", STAMP_BYTES), ("launch", LAUNCH.itemsize)):
        asm.get(10, slot)
        asm.op("add.x.immediate", 10, 10, step)
        asm.keep(slot, 10)
    asm.get(10, "left")
    asm.op("sub.x.immediate", 10, 10, 1)
    asm.keep("left", 10)
    asm.op("cbnz.x", 10, launch)

    asm.place(leave)
    asm.leave()
    return asm.finish()


def _leave_if_slow(asm: _DriverAssembler, done: Label) -> None:
    """Jump to `done` if no tiles are left, or if others are done with them sooner; the launch is at
    `BASE`, its counter at x10, which both stay. A thread that has done no tile of the launch has -1
    for one."""
    taken, left, mine, every, threads, number = 1, 2, 3, 4, 5, 6
    some, counts, counted, decide, alone = (asm.label() for _ in range(5))
    asm.get(threads, "context")
    asm.op("ldr.x", threads, threads, offset(CONTEXT, "threads"))
    asm.op("cmp.x.immediate", threads, 1)
    asm.jump("eq", alone)
    asm.op("ldr.x", taken, 10, 0)
    asm.op("ubfm.x", taken, taken, 0, LEFT_BITS - 1)
    asm.launch(left, "tiles")
    asm.op("cmp.x", taken, left)
    asm.jump("lo", some)
    asm.op("mov.x", taken, left)
    asm.place(some)
    asm.op("sub.x", left, left, taken)

    asm.get(mine, "mine")
    asm.get(every, "all")
    asm.get(number, "tile")
    asm.op("cmp.x.immediate", number, 0)
    asm.jump("lt", decide)
    asm.op("sub.x", taken, taken, number)
    asm.op("cbnz.x", left, counts)
    asm.op("mul.x", number, taken, mine)
    asm.op("cmp.x", number, every)
    asm.jump("ls", decide)
    asm.place(counts)
    asm.op("add.x", every, every, taken)
    asm.op("add.x.immediate", mine, mine, 1)
    asm.op("cmp.x.immediate", mine, WINDOW)
    asm.jump("lo", counted)
    asm.op("lsr.x.immediate", mine, mine, 1)
    asm.op("lsr.x.immediate", every, every, 1)
    asm.place(counted)
    asm.keep("mine", mine)
    asm.keep("all", every)

    asm.place(decide)
    asm.op("cbz.x", left, done)
    asm.op("add.x", left, left, threads)
    asm.op("add.x.immediate", left, left, 1)
    asm.op("mul.x", left, left, mine)
    asm.op("cmp.x", left, every)
    asm.jump("hs", alone)
    asm.give(11, 1 << LEFT_BITS)
    asm.fetch_add(number, 10, 11, ordered=False)
    asm.op("lsr.x.immediate", number, number, LEFT_BITS)
    asm.op("add.x.immediate", number, number, 1)
    asm.op("cmp.x", number, threads)
    asm.jump("lo", done)
    asm.place(alone)


def _prepare(asm: _DriverAssembler) -> None:
    """Fill the frame from the context, which is in x0, and the number of the thread, in x1; thread
    0 notes the time."""
    asm.op("isb")
    asm.op("mov.x", BASE, 0)
    asm.keep("context", BASE)
    asm.keep("thread", 1)
    asm.context(10, "scratch")
    asm.context(11, "scratch_bytes")
    asm.op("madd.x", 10, 1, 11, 10)
    asm.keep("scratch", 10)
    asm.context(10, "first")
    asm.context(11, "last")
    asm.op("sub.x", 11, 11, 10)
    asm.keep("left", 11)
    asm.context(11, "launches")
    asm.give(12, LAUNCH.itemsize)
    asm.op("madd.x", 10, 10, 12, 11)
    asm.keep("launch", 10)
    asm.give(10, PRIOR)
    asm.keep("mine", 10)
    asm.context(11, "threads")
    asm.op("mul.x", 10, 10, 11)
    asm.keep("all", 10)
    asm.context(10, "stamps")
    asm.keep("stamp", 10)
    _stamp_of_first(asm)
    asm.get(10, "stamp")
    asm.op("add.x.immediate", 10, 10, STAMP_BYTES)
    asm.keep("stamp", 10)


def _stamp_of_first(asm: _DriverAssembler) -> None:
    """Let thread 0 note the time."""
    other = asm.label()
    asm.get(10, "thread")
    asm.op("cbnz.x", 10, other)
    _stamp(asm)
    asm.place(other)


def _stamp(asm: _DriverAssembler) -> None:
    """Note the system's counter of time, when a place for it was given. Overwrites x10, x11."""
    none = asm.label()
    asm.get(10, "context")
    asm.op("ldr.x", 10, 10, offset(CONTEXT, "stamps"))
    asm.op("cbz.x", 10, none)
    asm.get(10, "stamp")
    asm.op("isb")
    asm.op("mrs.cntvct_el0", 11)
    asm.op("str.x", 11, 10, 0)
    asm.place(none)


def _barrier(asm: _DriverAssembler, leave: Label) -> None:
    """Emit a barrier: all threads wait for each other; those that find `stopped` set jump to
    `leave`."""
    one, threads, count, address, seen = 12, 13, 14, 15, 7
    shared, wait, opened = asm.label(), asm.label(), asm.label()
    asm.get(BASE, "context")
    asm.context(threads, "threads")
    asm.op("cmp.x.immediate", threads, 1)
    asm.jump("ne", shared)
    _copy_cancel(asm)
    _stamp(asm)
    asm.op("b", opened)

    asm.place(shared)
    asm.context(seen, "generation")
    asm.keep("seen", seen)
    asm.give(one, 1)
    asm.address(address, "arrivals")
    asm.fetch_add(count, address, one)
    asm.op("add.x.immediate", count, count, 1)
    asm.op("cmp.x", count, threads)
    asm.jump("ne", wait)
    asm.op("str.x", ZERO, BASE, offset(CONTEXT, "arrivals"))
    _copy_cancel(asm)
    _stamp(asm)
    asm.address(address, "generation")
    asm.op("add.x.immediate", seen, seen, 1)
    asm.op("stlr.x", seen, address)
    asm.op("dmb.ish")
    asm.context(count, "sleepers")
    asm.op("cbz.x", count, opened)
    SLEEP[asm.system][1](asm)
    asm.op("b", opened)

    asm.place(wait)
    _wait(asm, seen, one, address)

    asm.place(opened)
    asm.get(BASE, "context")
    asm.context(10, "stopped")
    asm.op("cbnz.x", 10, leave)


def _wait(asm: _DriverAssembler, seen: int, one: int, address: int) -> None:
    """Look whether the generation has moved from `seen`, a while, then sleep until it has.

    Between two looks stands `isb`: `yield` takes no time on most cores, `isb` some 20 to 50 clocks,
    like x86's `pause`.
    """
    spins, now = 13, 14
    spin, sleep, awake, opened = (asm.label() for _ in range(4))
    asm.context(spins, "spins")
    asm.op("add.x.immediate", spins, spins, 1)
    asm.address(address, "generation")
    asm.place(spin)
    asm.op("ldar.x", now, address)
    asm.op("cmp.x", now, seen)
    asm.jump("ne", opened)
    asm.op("isb")
    asm.op("sub.x.immediate", spins, spins, 1)
    asm.op("cbnz.x", spins, spin)
    asm.address(address, "sleepers")
    asm.fetch_add(now, address, one)
    asm.op("dmb.ish")
    asm.place(sleep)
    asm.get(BASE, "context")
    asm.get(seen, "seen")
    asm.address(address, "generation")
    asm.op("ldar.x", now, address)
    asm.op("cmp.x", now, seen)
    asm.jump("ne", awake)
    SLEEP[asm.system][0](asm)
    asm.op("b", sleep)
    asm.place(awake)
    asm.address(address, "sleepers")
    asm.op("movn.x", one, 0, 0)
    asm.fetch_add(now, address, one)
    asm.place(opened)


def _copy_cancel(asm: _DriverAssembler) -> None:
    """Emit stopped = cancel."""
    asm.context(10, "cancel")
    asm.op("str.x", 10, BASE, offset(CONTEXT, "stopped"))


# ---------------------------------------------------------------------- sleeping, by system


def _call(asm: _DriverAssembler, field: str) -> None:
    """Call the function whose address is in a field of the context."""
    asm.context(12, field)
    asm.op("blr", 12)


def _futex_wait(asm: _DriverAssembler) -> None:
    """futex(&generation, FUTEX_WAIT_PRIVATE, seen, no time limit): man 2 futex."""
    asm.address(0, "generation")
    asm.give(1, FUTEX_WAIT_PRIVATE)
    asm.get(2, "seen")
    asm.give(3, 0)
    asm.give(CALL_NUMBER, FUTEX)
    asm.op("svc", 0)


def _futex_wake(asm: _DriverAssembler) -> None:
    """futex(&generation, FUTEX_WAKE_PRIVATE, all)."""
    asm.address(0, "generation")
    asm.give(1, FUTEX_WAKE_PRIVATE)
    asm.give(2, ALL_SLEEPERS)
    asm.give(CALL_NUMBER, FUTEX)
    asm.op("svc", 0)


def _ulock_wait(asm: _DriverAssembler) -> None:
    """__ulock_wait(UL_COMPARE_AND_WAIT, &generation, seen, no time limit): xnu, sys/ulock.h."""
    asm.give(0, ULOCK_COMPARE_AND_WAIT)
    asm.address(1, "generation")
    asm.get(2, "seen")
    asm.give(3, 0)
    _call(asm, "wait")


def _ulock_wake(asm: _DriverAssembler) -> None:
    """__ulock_wake(UL_COMPARE_AND_WAIT | ULF_WAKE_ALL, &generation, 0)."""
    asm.give(0, ULOCK_COMPARE_AND_WAIT | ULOCK_WAKE_ALL)
    asm.address(1, "generation")
    asm.give(2, 0)
    _call(asm, "wake")


def _address_wait(asm: _DriverAssembler) -> None:
    """WaitOnAddress(&generation, &seen, 8, INFINITE)."""
    asm.address(0, "generation")
    asm.op("add.x.immediate", 1, STACK, SLOTS_AT + 8 * SLOTS.index("seen"))
    asm.give(2, 8)
    asm.give(3, FOREVER)
    _call(asm, "wait")


def _address_wake(asm: _DriverAssembler) -> None:
    """WakeByAddressAll(&generation)."""
    asm.address(0, "generation")
    _call(asm, "wake")


SLEEP = {
    "linux": (_futex_wait, _futex_wake),
    "darwin": (_ulock_wait, _ulock_wake),
    "win32": (_address_wait, _address_wake),
}


# ---------------------------------------------------------------------- the CPU and its caches


def maintenance() -> Code:
    """A C function `void maintain(start, end, data_line, instruction_line)`: instructions from
    `start` to `end` will be fetched as they were written, by every core.

    For each line of the caches: `dc cvau` writes what the data cache holds to where the caches of
    data and instructions meet, then `ic ivau` drops what the caches of instructions hold; `dsb ish`
    waits until all cores have done it, and `isb` drops what this core has fetched already. That is
    the sequence of the Arm Architecture Reference Manual (DDI 0487, B2.7.4.2). `start` is a
    multiple of the lines' bytes.
    """
    start, end, at = 0, 1, 9
    asm = _DriverAssembler("maintain", "linux", False)
    for instruction, line in (("dc.cvau", 2), ("ic.ivau", 3)):
        again = asm.label()
        asm.op("mov.x", at, start)
        asm.place(again)
        asm.op(instruction, at)
        asm.op("add.x", at, at, line)
        asm.op("cmp.x", at, end)
        asm.jump("lo", again)
        asm.op("dsb.ish")
    asm.op("isb")
    return asm.finish()


def reader(name: str) -> Code:
    """A C function `uint64_t read(void)` that gives a register of the CPU: "ctr_el0", which tells
    the lines of the caches, "cntfrq_el0", the rate of time stamps, or "midr_el1", which tells what
    core this is and may be read where the system emulates that."""
    asm = _DriverAssembler(name, "linux", False)
    asm.op(f"mrs.{name}", 0)
    return asm.finish()
