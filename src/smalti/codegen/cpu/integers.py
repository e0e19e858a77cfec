"""Integers in memory, of 8 and of 32 bits, and the f32 of each in registers.

Those of 8 bits are exact; large ones of 32 bits are rounded when they are loaded. What is stored
is a whole number in the range of its dtype.
"""

from __future__ import annotations

from smalti.codegen.cpu import masks
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register

INTEGERS = ("u8", "i8", "i32")
WIDEN = {"u8": "widen_byte", "i8": "widen_signed_byte"}


def load(asm: Assembler, dtype: str, address: Address, lanes: int | None = None) -> Register:
    """A new vector from memory; with `lanes`, only that many, the others zero.

    Below AVX-512, a partial vector of bytes reads up to 7 bytes behind its last element.
    """
    if dtype == "i32":
        return asm.result("from_int", asm.load(address, lanes))
    partial = lanes is not None and lanes != asm.level.lanes
    value = asm.vector()
    if partial and asm.level.wide:
        asm.op(WIDEN[dtype], value, address, mask=asm.tail_mask(lanes), zeroing=True)
    else:
        asm.op(WIDEN[dtype], value, address)
        if partial:
            value = asm.result("and", value, asm.tail_vector(lanes))
    return asm.result("from_int", value)


def spread(asm: Assembler, dtype: str, address: Address) -> Register:
    """A new vector with one element of memory in all lanes."""
    if dtype == "i32":
        return asm.result("from_int", asm.result("spread", address))
    return asm.result("from_int", asm.result(WIDEN[dtype], asm.result("spread_byte", address)))


def gather(asm: Assembler, dtype: str, base: Register, index: Register,
           lanes: int | None) -> Register:
    """A new vector of what is at base + index (bytes); of bytes, 3 behind each are read too."""
    value = asm.gather(base, index, lanes)
    if dtype != "i32":
        high = asm.result("shift_left_int", value, 24)
        shift = "shift_right_int" if dtype == "u8" else "shift_right_signed_int"
        value = asm.result(shift, high, 24)
    return asm.result("from_int", value)


def store(asm: Assembler, dtype: str, address: Address, value: Register, lanes: int) -> None:
    """Store the first `lanes` lanes."""
    whole = asm.result("to_int", value)
    if dtype == "i32":
        asm.store(address, whole, lanes)
        return
    if not asm.level.wide:  # which packs with saturation
        whole = asm.result("and", whole, asm.integers([0xFF] * asm.level.lanes))
    masks.store_bytes(asm, address, whole, lanes)


def store_lowest(asm: Assembler, dtype: str, address: Address, value: Register) -> None:
    """Store the lowest lane."""
    if dtype == "i32":
        asm.op("store_low", address, asm.result("to_int", value))
    else:
        masks.store_lowest(asm, address, value)
