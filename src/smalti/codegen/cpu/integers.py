"""Integers in memory, of 8, 16 and 32 bits, and the f32 of each in registers.

Those of 8 and 16 bits are exact; large ones of 32 bits are rounded when they are loaded. What is
stored is a whole number in the range of its dtype.
"""

from __future__ import annotations

from smalti.codegen.cpu import masks
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register
from smalti.kernel.form import Call, Const, Expr

INTEGERS = ("u8", "i8", "i16", "i32")
WIDEN = {"u8": "widen_byte", "i8": "widen_signed_byte"}


def unrounded(value: Expr, dtype: str) -> Expr:
    """`value` without the rounding that storing it as `dtype` repeats: where it is rounded, and
    then bounded by whole numbers at most, it may as well be rounded last.

    >>> from smalti.kernel.form import Load
    >>> x = Call("round", (Load("x", ()),))
    >>> unrounded(Call("max", (x, Const(0.0))), "u8").arguments[0]
    Load(buffer='x', index=())
    """
    if dtype in WIDEN and isinstance(value, Call):
        if value.function == "round":
            return value.arguments[0]
        inner, *bounds = value.arguments
        if value.function in ("min", "max") and all(
                isinstance(bound, Const) and float(bound.value).is_integer() for bound in bounds):
            return Call(value.function, (unrounded(inner, dtype), *bounds))
    return value


def load(asm: Assembler, dtype: str, address: Address, lanes: int | None = None) -> Register:
    """A new vector from memory; with `lanes`, only that many, the others zero.

    Without mask registers, a partial vector of bytes reads what a whole one does.
    """
    if dtype == "i32":
        return asm.result("from_int", asm.load(address, lanes))
    if dtype == "i16":
        return _of_words(asm, asm.widened("widen_half", address, lanes))
    return asm.result("from_int", asm.widened(WIDEN[dtype], address, lanes))


def spread(asm: Assembler, dtype: str, address: Address) -> Register:
    """A new vector with one element of memory in all lanes."""
    if dtype == "i32":
        return asm.result("from_int", asm.result("spread", address))
    if dtype == "i16":
        return _of_words(asm, asm.result("spread_half", address))
    return asm.result("from_int", asm.result(WIDEN[dtype], asm.result("spread_byte", address)))


def _of_words(asm: Assembler, value: Register) -> Register:
    """The f32 of an integer of 16 bits in the lower half of each lane."""
    high = asm.result("shift_left_int", value, 16)
    return asm.result("from_int", asm.result("shift_right_signed_int", high, 16))


def gather(asm: Assembler, dtype: str, base: Register, index: Register,
           lanes: int | None) -> Register:
    """A new vector of what is at base + index (bytes); of bytes, 3 behind each are read too."""
    value = asm.gather(base, index, lanes)
    if dtype == "i16":
        return _of_words(asm, value)
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
    if dtype == "i16":
        asm.store_low_words(address, whole, lanes)
        return
    asm.store_low_bytes(address, whole, lanes)


def store_lowest(asm: Assembler, dtype: str, address: Address, value: Register) -> None:
    """Store the lowest lane."""
    if dtype == "i32":
        asm.op("store_low", address, asm.result("to_int", value))
    elif dtype == "i16":
        asm.op("store_word", address, asm.result("to_int", value), 0)
    else:
        masks.store_lowest(asm, address, value)
