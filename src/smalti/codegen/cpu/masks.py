"""Truth values: a byte in memory, 0 or 1, and the f32 of that number in registers."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register


def load(asm: Assembler, address: Address, lanes: int | None = None) -> Register:
    """A new vector from memory; with `lanes`, only that many, the others zero.

    Without mask registers, a partial vector reads what a whole one does.
    """
    return asm.result("from_int", asm.widened("widen_byte", address, lanes))


def spread(asm: Assembler, address: Address) -> Register:
    """A new vector with one element of memory in all lanes."""
    return _lowest(asm, asm.result("spread_byte", address))


def gather(asm: Assembler, base: Register, index: Register, lanes: int | None) -> Register:
    """A new vector of what is at base + index (bytes); 3 bytes behind each are read too."""
    return _lowest(asm, asm.gather(base, index, lanes))


def _lowest(asm: Assembler, value: Register) -> Register:
    """The f32 of the lowest bit of each lane."""
    bits = asm.result("and", value, asm.integers([1] * asm.level.lanes))
    return asm.result("from_int", bits)


def store(asm: Assembler, address: Address, value: Register, lanes: int) -> None:
    """Store the first `lanes` lanes."""
    asm.store_low_bytes(address, asm.result("to_int", value), lanes, clear=True)


def store_lowest(asm: Assembler, address: Address, value: Register) -> None:
    """Store the lowest lane."""
    asm.op("store_byte", address, asm.result("to_int", value), 0)
