"""The code that speaks the platform's calling convention: the driver of a run, and `cpuid`.

What a driver does, and why, is in `codegen/cpu/driver.py`.

Physical registers are named here, since kernels clobber all of them but the stack pointer: what
has to outlive a call lies in the frame.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from smalti.codegen.cpu.operands import Address, Label, Register
from smalti.codegen.x86.assembler import X86Assembler
from smalti.codegen.x86.encoding import encode
from smalti.codegen.x86.instructions import GENERAL_REGISTERS
from smalti.codegen.x86.levels import LEVELS
from smalti.dataclass import dataclass

HOME_BYTES = 32  # Win64: room that a caller leaves for the four register arguments
XMM_BYTES = 16
"""Bytes of each vector register that the Win64 convention wants kept."""

FUTEX = 202
"""The number of the system call `futex` of Linux on x86-64."""


@dataclass(frozen=True)
class Convention:
    """A calling convention: argument registers, and those a function gives back unchanged."""

    arguments: tuple[str, ...]
    saved: tuple[str, ...]
    saved_vectors: tuple[int, ...] = ()


SYSTEM_V = Convention(("RDI", "RSI", "RDX", "RCX"), ("RBX", "RBP", "R12", "R13", "R14", "R15"))
WIN64 = Convention(("RCX", "RDX", "R8", "R9"),
                   ("RBX", "RBP", "RDI", "RSI", "R12", "R13", "R14", "R15"), tuple(range(6, 16)))
CONVENTIONS = {"linux": SYSTEM_V, "darwin": SYSTEM_V, "win32": WIN64}


def convention(system: str) -> Convention:
    """The calling convention of `system` (a value of `sys.platform`). Raises DeviceError."""
    return CONVENTIONS[checked_system(system)]


class _DriverAssembler(X86Assembler):
    """An assembler whose registers are physical, with a frame of named slots."""

    def __init__(self, name: str, system: str) -> None:
        super().__init__(LEVELS["avx2"], name)
        self.system, self.convention = system, convention(system)
        self.stack = Register("g", -1)
        vectors = HOME_BYTES + 8 * len(SLOTS)
        self.vectors_at = vectors + -vectors % XMM_BYTES
        size = self.vectors_at + XMM_BYTES * len(self.convention.saved_vectors)
        pushed = 8 * (1 + len(self.convention.saved))
        self.frame_bytes = size + -(size + pushed) % 16

    def __getitem__(self, name: str) -> Register:
        return Register("g", GENERAL_REGISTERS.index(name))

    def slot(self, name: str) -> Address:
        """The place of a slot in the frame."""
        return Address(self.stack, HOME_BYTES + 8 * SLOTS.index(name))

    def give(self, register: Register, value: Register | Address | int) -> None:
        """register = value."""
        self.op("mov_immediate" if isinstance(value, int) else "mov", register, value)

    def enter(self) -> None:
        """Save what the caller wants back."""
        for name in self.convention.saved:
            self.op("push", self[name])
        self.op("iadd_immediate", self.stack, -self.frame_bytes)
        for place, number in enumerate(self.convention.saved_vectors):
            self.op("store_low_128", Address(self.stack, self.vectors_at + XMM_BYTES * place),
                    Register("v", number))

    def leave(self) -> None:
        """Give the caller's registers back, and return."""
        self.op("clear_upper")
        for place, number in enumerate(self.convention.saved_vectors):
            self.op("load_low_128", Register("v", number),
                    Address(self.stack, self.vectors_at + XMM_BYTES * place))
        self.op("iadd_immediate", self.stack, self.frame_bytes)
        for name in reversed(self.convention.saved):
            self.op("pop", self[name])

    def finish(self) -> Code:
        """Encode what was emitted, as it is."""
        self.op("return")
        return Code(self.name, encode(self.lines, self.level, 0, 0), 0, len(self.lines))


def driver(system: str) -> Code:
    """The driver of a run for `system` ("linux", "darwin" or "win32").

    A C function `void driver(context, thread)`; see layout.py for what the context holds.
    Raises DeviceError for a system without one.
    """
    asm = _DriverAssembler("driver", system)
    asm.enter()
    _prepare(asm)
    launch, tile, done = asm.label(), asm.label(), asm.label()
    barrier, following, leave = asm.label(), asm.label(), asm.label()
    asm.op("mov", asm["RAX"], asm.slot("left"))
    asm.op("compare_immediate", asm["RAX"], 0)
    asm.jump("equal", leave)

    asm.place(launch)
    asm.give(asm["RAX"], NO_TILE)
    asm.op("mov_store", asm.slot("tile"), asm["RAX"])
    asm.place(tile)
    asm.op("mov", asm["RBX"], asm.slot("launch"))
    asm.op("mov", asm["RCX"], _launch(asm, "counter"))
    _leave_if_slow(asm, done)
    asm.give(asm["RSI"], 1)
    asm.op("exchange_add", Address(asm["RCX"]), asm["RSI"])
    asm.op("mov32", asm["RSI"], asm["RSI"])
    asm.op("compare", asm["RSI"], _launch(asm, "tiles"))
    asm.jump("above_equal", done)
    asm.op("mov_store", asm.slot("tile"), asm["RSI"])
    asm.op("mov", asm["RDI"], _launch(asm, "pointers"))
    asm.op("mov", asm["RDX"], asm.slot("scratch"))
    asm.op("mov", asm["RCX"], asm.slot("thread"))
    asm.op("call", _launch(asm, "function"))
    asm.jump("always", tile)

    asm.place(done)
    asm.op("mov", asm["RAX"], _launch(asm, "flags"))
    asm.op("test_immediate", asm["RAX"], NO_BARRIER)
    asm.jump("equal", barrier)
    _stamp_of_first(asm)
    asm.jump("always", following)
    asm.place(barrier)
    _barrier(asm, leave)

    asm.place(following)
    asm.op("mov", asm["RAX"], asm.slot("stamp"))
    asm.op("iadd_immediate", asm["RAX"], STAMP_BYTES)
    asm.op("mov_store", asm.slot("stamp"), asm["RAX"])
    asm.op("mov", asm["RAX"], asm.slot("launch"))
    asm.op("iadd_immediate", asm["RAX"], LAUNCH.itemsize)
    asm.op("mov_store", asm.slot("launch"), asm["RAX"])
    asm.op("mov", asm["RAX"], asm.slot("left"))
    asm.op("iadd_immediate", asm["RAX"], -1)
    asm.op("mov_store", asm.slot("left"), asm["RAX"])
    asm.jump("not_equal", launch)

    asm.place(leave)
    asm.leave()
    return asm.finish()


def _leave_if_slow(asm: _DriverAssembler, done: Label) -> None:
    """Jump to `done` if no tiles are left, or if others are done with them sooner; the launch is at
    rbx, its counter at rcx."""
    taken, left, threads = asm["RSI"], asm["RDI"], asm["R8"]
    mine, every = asm["RDX"], asm["R9"]
    some, counts, counted, decide, alone = (asm.label() for _ in range(5))
    asm.op("mov", threads, asm.slot("context"))
    asm.op("mov", threads, Address(threads, offset(CONTEXT, "threads")))
    asm.op("compare_immediate", threads, 1)
    asm.jump("equal", alone)
    asm.op("mov32", taken, Address(asm["RCX"]))
    asm.op("mov", left, _launch(asm, "tiles"))
    asm.op("compare", taken, left)
    asm.jump("below", some)
    asm.op("mov", taken, left)
    asm.place(some)
    asm.op("isub", left, taken)

    asm.op("mov", mine, asm.slot("mine"))
    asm.op("mov", every, asm.slot("all"))
    asm.op("mov", asm["RAX"], asm.slot("tile"))
    asm.op("compare_immediate", asm["RAX"], NO_TILE)
    asm.jump("equal", decide)
    asm.op("isub", taken, asm["RAX"])
    asm.op("compare_immediate", left, 0)
    asm.jump("not_equal", counts)
    asm.op("mov", asm["RAX"], taken)
    asm.op("imul", asm["RAX"], mine)
    asm.op("compare", every, asm["RAX"])
    asm.jump("above_equal", decide)
    asm.place(counts)
    asm.op("iadd", every, taken)
    asm.op("iadd_immediate", mine, 1)
    asm.op("compare_immediate", mine, WINDOW)
    asm.jump("below", counted)
    asm.op("shift_right", mine, 1)
    asm.op("shift_right", every, 1)
    asm.place(counted)
    asm.op("mov_store", asm.slot("mine"), mine)
    asm.op("mov_store", asm.slot("all"), every)

    asm.place(decide)
    asm.op("compare_immediate", left, 0)
    asm.jump("equal", done)
    asm.op("iadd", left, threads)
    asm.op("iadd_immediate", left, 1)
    asm.op("imul", left, mine)
    asm.op("compare", left, every)
    asm.jump("above_equal", alone)
    asm.give(asm["RAX"], 1 << LEFT_BITS)
    asm.op("exchange_add", Address(asm["RCX"]), asm["RAX"])
    asm.op("shift_right", asm["RAX"], LEFT_BITS)
    asm.op("iadd_immediate", asm["RAX"], 1)
    asm.op("compare", asm["RAX"], threads)
    asm.jump("below", done)
    asm.place(alone)


def _launch(asm: _DriverAssembler, field: str) -> Address:
    """A field of the current launch; its record is at rbx."""
    return Address(asm["RBX"], offset(LAUNCH, field))


def _context(asm: _DriverAssembler, field: str) -> Address:
    """A field of the context, which is at rbx."""
    return Address(asm["RBX"], offset(CONTEXT, field))


def _prepare(asm: _DriverAssembler) -> None:
    """Fill the frame from the context; thread 0 notes the time."""
    context, thread = (asm[name] for name in asm.convention.arguments[:2])
    rax, rbx = asm["RAX"], asm["RBX"]
    asm.op("mov", rbx, context)
    asm.op("mov_store", asm.slot("context"), rbx)
    asm.op("mov_store", asm.slot("thread"), thread)
    asm.op("imul", thread, _context(asm, "scratch_bytes"))
    asm.op("iadd", thread, _context(asm, "scratch"))
    asm.op("mov_store", asm.slot("scratch"), thread)
    asm.op("mov", rax, _context(asm, "last"))
    asm.op("isub", rax, _context(asm, "first"))
    asm.op("mov_store", asm.slot("left"), rax)
    asm.op("mov", rax, _context(asm, "first"))
    asm.op("imul_immediate", rax, rax, LAUNCH.itemsize)
    asm.op("iadd", rax, _context(asm, "launches"))
    asm.op("mov_store", asm.slot("launch"), rax)
    asm.give(rax, PRIOR)
    asm.op("mov_store", asm.slot("mine"), rax)
    asm.op("imul", rax, _context(asm, "threads"))
    asm.op("mov_store", asm.slot("all"), rax)
    asm.op("mov", rax, _context(asm, "stamps"))
    asm.op("mov_store", asm.slot("stamp"), rax)
    _stamp_of_first(asm)
    asm.op("mov", rax, asm.slot("stamp"))
    asm.op("iadd_immediate", rax, STAMP_BYTES)
    asm.op("mov_store", asm.slot("stamp"), rax)


def _stamp_of_first(asm: _DriverAssembler) -> None:
    """Let thread 0 note the time."""
    other = asm.label()
    asm.op("mov", asm["RAX"], asm.slot("thread"))
    asm.op("compare_immediate", asm["RAX"], 0)
    asm.jump("not_equal", other)
    _stamp(asm)
    asm.place(other)


def _stamp(asm: _DriverAssembler) -> None:
    """Note the time stamp counter, when a place for it was given.

    It is read between fences: a core reads it early or late if it may, and that of one core then
    came up to 150 clocks before the one that another had read before it.
    """
    rax, rcx, rdx = asm["RAX"], asm["RCX"], asm["RDX"]
    none = asm.label()
    asm.op("mov", rax, asm.slot("context"))
    asm.op("mov", rax, Address(rax, offset(CONTEXT, "stamps")))
    asm.op("compare_immediate", rax, 0)
    asm.jump("equal", none)
    asm.op("mov", rcx, asm.slot("stamp"))
    asm.op("in_order")
    asm.op("time_stamp")
    asm.op("in_order")
    asm.op("shift_left", rdx, 32)
    asm.op("bit_or", rax, rdx)
    asm.op("mov_store", Address(rcx), rax)
    asm.place(none)


def _barrier(asm: _DriverAssembler, leave: Label) -> None:
    """Emit a barrier: all threads wait for each other; those that find `stopped` set jump to
    `leave`."""
    rax, rbx, rcx, seen = asm["RAX"], asm["RBX"], asm["RCX"], asm["R12"]
    shared, wait, spin, sleep = (asm.label() for _ in range(4))
    awake, opened = asm.label(), asm.label()
    asm.op("mov", rbx, asm.slot("context"))
    asm.op("mov", rax, _context(asm, "threads"))
    asm.op("compare_immediate", rax, 1)
    asm.jump("not_equal", shared)
    _copy_cancel(asm)
    _stamp(asm)
    asm.jump("always", opened)

    asm.place(shared)
    asm.op("mov", seen, _context(asm, "generation"))
    asm.op("mov_store", asm.slot("seen"), seen)
    asm.give(rcx, 1)
    asm.op("exchange_add", _context(asm, "arrivals"), rcx)
    asm.op("iadd_immediate", rcx, 1)
    asm.op("compare", rcx, rax)
    asm.jump("not_equal", wait)
    asm.give(rax, 0)
    asm.op("mov_store", _context(asm, "arrivals"), rax)
    _copy_cancel(asm)
    _stamp(asm)
    asm.give(rcx, 1)
    asm.op("exchange_add", _context(asm, "generation"), rcx)
    asm.op("mov", rax, _context(asm, "sleepers"))
    asm.op("compare_immediate", rax, 0)
    asm.jump("equal", opened)
    SLEEP[asm.system][1](asm)
    asm.jump("always", opened)

    asm.place(wait)
    asm.op("mov", rcx, _context(asm, "spins"))
    asm.op("iadd_immediate", rcx, 1)
    asm.place(spin)
    asm.op("compare", seen, _context(asm, "generation"))
    asm.jump("not_equal", opened)
    asm.op("pause")
    asm.op("iadd_immediate", rcx, -1)
    asm.jump("not_equal", spin)
    asm.give(rax, 1)
    asm.op("exchange_add", _context(asm, "sleepers"), rax)
    asm.place(sleep)
    asm.op("compare", seen, _context(asm, "generation"))
    asm.jump("not_equal", awake)
    SLEEP[asm.system][0](asm)
    asm.jump("always", sleep)
    asm.place(awake)
    asm.give(rax, -1)
    asm.op("exchange_add", _context(asm, "sleepers"), rax)

    asm.place(opened)
    asm.op("mov", rax, _context(asm, "stopped"))
    asm.op("compare_immediate", rax, 0)
    asm.jump("not_equal", leave)


def _copy_cancel(asm: _DriverAssembler) -> None:
    """Emit stopped = cancel."""
    asm.op("mov", asm["RAX"], _context(asm, "cancel"))
    asm.op("mov_store", _context(asm, "stopped"), asm["RAX"])


# ---------------------------------------------------------------------- sleeping, by system


def _generation(asm: _DriverAssembler, register: str) -> Register:
    """`register`, holding the address that sleepers watch."""
    asm.op("lea", asm[register], _context(asm, "generation"))
    return asm[register]


def _futex_wait(asm: _DriverAssembler) -> None:
    """futex(&generation, FUTEX_WAIT_PRIVATE, seen, no time limit): man 2 futex."""
    _generation(asm, "RDI")
    asm.give(asm["RSI"], FUTEX_WAIT_PRIVATE)
    asm.op("mov", asm["RDX"], asm.slot("seen"))
    asm.give(asm["R10"], 0)
    asm.give(asm["RAX"], FUTEX)
    asm.op("syscall")


def _futex_wake(asm: _DriverAssembler) -> None:
    """futex(&generation, FUTEX_WAKE_PRIVATE, all)."""
    _generation(asm, "RDI")
    asm.give(asm["RSI"], FUTEX_WAKE_PRIVATE)
    asm.give(asm["RDX"], ALL_SLEEPERS)
    asm.give(asm["RAX"], FUTEX)
    asm.op("syscall")


def _ulock_wait(asm: _DriverAssembler) -> None:
    """__ulock_wait(UL_COMPARE_AND_WAIT, &generation, seen, no time limit): xnu, sys/ulock.h."""
    _generation(asm, "RSI")
    asm.give(asm["RDI"], ULOCK_COMPARE_AND_WAIT)
    asm.op("mov", asm["RDX"], asm.slot("seen"))
    asm.give(asm["RCX"], 0)
    asm.op("call", _context(asm, "wait"))


def _ulock_wake(asm: _DriverAssembler) -> None:
    """__ulock_wake(UL_COMPARE_AND_WAIT | ULF_WAKE_ALL, &generation, 0)."""
    _generation(asm, "RSI")
    asm.give(asm["RDI"], ULOCK_COMPARE_AND_WAIT | ULOCK_WAKE_ALL)
    asm.give(asm["RDX"], 0)
    asm.op("call", _context(asm, "wake"))


def _address_wait(asm: _DriverAssembler) -> None:
    """WaitOnAddress(&generation, &seen, 8, INFINITE)."""
    _generation(asm, "RCX")
    asm.op("lea", asm["RDX"], asm.slot("seen"))
    asm.give(asm["R8"], 8)
    asm.give(asm["R9"], FOREVER)
    asm.op("call", _context(asm, "wait"))


def _address_wake(asm: _DriverAssembler) -> None:
    """WakeByAddressAll(&generation)."""
    _generation(asm, "RCX")
    asm.op("call", _context(asm, "wake"))


SLEEP = {
    "linux": (_futex_wait, _futex_wake),
    "darwin": (_ulock_wait, _ulock_wake),
    "win32": (_address_wait, _address_wake),
}


# ---------------------------------------------------------------------- asking the CPU


def identify(system: str) -> Code:
    """A C function `void identify(leaf, subleaf, uint32_t out[4])`: cpuid's eax, ebx, ecx, edx."""
    asm = _DriverAssembler("identify", system)
    leaf, subleaf, out = (asm[name] for name in asm.convention.arguments[:3])
    asm.op("push", asm["RBX"])
    asm.op("mov", asm["R10"], out)
    asm.op("mov", asm["RAX"], leaf)
    asm.op("mov", asm["RCX"], subleaf)
    asm.op("cpuid")
    _store(asm, asm["R10"], ("RAX", "RBX", "RCX", "RDX"))
    asm.op("pop", asm["RBX"])
    return asm.finish()


def enabled_state(system: str) -> Code:
    """A C function `void enabled_state(uint32_t out[2])`: the registers that the system saves.

    Bits as in XCR0; to be called only where cpuid says OSXSAVE.
    """
    asm = _DriverAssembler("enabled_state", system)
    asm.op("mov", asm["R10"], asm[asm.convention.arguments[0]])
    asm.give(asm["RCX"], 0)
    asm.op("xgetbv")
    _store(asm, asm["R10"], ("RAX", "RDX"))
    return asm.finish()


def _store(asm: _DriverAssembler, base: Register, names: Sequence[str]) -> None:
    """Store the low halves of registers one behind the other."""
    for place, name in enumerate(names):
        asm.op("mov_store32", Address(base, 4 * place), asm[name])
