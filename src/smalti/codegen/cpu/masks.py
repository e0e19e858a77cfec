"""Truth values: a byte in memory, 0 or 1, and the f32 of that number in registers."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register


def load(asm: Assembler, address: Address, lanes: int | None = None) -> Register:
    """A new vector from memory; with `lanes`, only that many, the others zero.

    Below AVX-512, a partial vector reads up to 7 bytes behind its last element.
    """
    partial = lanes is not None and lanes != asm.level.lanes
    value = asm.vector()
    if partial and asm.level.wide:
        asm.op("widen_byte", value, address, mask=asm.tail_mask(lanes), zeroing=True)
    else:
        asm.op("widen_byte", value, address)
        if partial:
            value = asm.result("and", value, asm.tail_vector(lanes))
    return asm.result("from_int", value)


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
    store_bytes(asm, address, asm.result("to_int", value), lanes)


def store_bytes(asm: Assembler, address: Address, whole: Register, lanes: int) -> None:
    """Store the lowest bytes of the first `lanes` lanes; below AVX-512, the others are 0."""
    if asm.level.wide:
        mask = None if lanes == asm.level.lanes else asm.tail_mask(lanes)
        asm.op("store_low_bytes", address, whole, mask=mask)
        return
    words = asm.result("permute_quads", asm.result("pack_words", whole, whole), 0b1000)
    packed = asm.result("pack_bytes", words, words)
    if lanes == asm.level.lanes:
        asm.op("store_quad", address, packed)
        return
    for lane in range(lanes):
        asm.op("store_byte", address.plus(lane), packed, lane)


def store_lowest(asm: Assembler, address: Address, value: Register) -> None:
    """Store the lowest lane."""
    asm.op("store_byte", address, asm.result("to_int", value), 0)
