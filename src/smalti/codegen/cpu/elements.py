"""Elements in memory: f32 as they are, halves widened when they are loaded and rounded when stored.

Halves are bf16 and f16. A bf16 is the upper half of an f32. Rounding is to the nearest, ties to
even; NaN stays NaN. Where the level has no instruction for bf16, integers do it: adding 0x7FFF plus
the lowest bit that stays carries into the upper half exactly when the value is to be rounded up.
"""

from __future__ import annotations

from smalti.codegen.cpu import integers, masks
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.integers import INTEGERS
from smalti.codegen.cpu.operands import Address, Register
from smalti.graph.operation import HALVES

INFINITY = 0x7F800000
"""The bits of an infinite f32; those of a NaN are more."""
QUIET = 0x00400000
"""The bit that makes any NaN one that survives losing its lower half."""


def load(asm: Assembler, dtype: str, address: Address, lanes: int | None = None) -> Register:
    """A new vector of f32 from memory; with `lanes`, only that many, the others zero.

    Without mask registers, a partial vector of halves reads what a whole one does: with 8 lanes up
    to 14 bytes behind its last element.
    """
    if dtype == "bool":
        return masks.load(asm, address, lanes)
    if dtype in INTEGERS:
        return integers.load(asm, dtype, address, lanes)
    if dtype not in HALVES:
        return asm.load(address, lanes)
    if dtype == "f16":
        return asm.widened("widen_f16", address, lanes)
    return asm.result("shift_left_int", asm.widened("widen_half", address, lanes), 16)


def spread(asm: Assembler, dtype: str, address: Address) -> Register:
    """A new vector of f32 with one element of memory in all lanes."""
    if dtype == "bool":
        return masks.spread(asm, address)
    if dtype in INTEGERS:
        return integers.spread(asm, dtype, address)
    if dtype not in HALVES:
        return asm.result("broadcast", address)
    value = asm.result("spread_half", address)
    if dtype == "f16":
        return asm.result("widen_f16", value)
    return asm.result("shift_left_int", value, 16)


def gather(asm: Assembler, dtype: str, base: Register, index: Register,
           lanes: int | None = None) -> Register:
    """A new vector of f32 at base + index (bytes); of halves, 2 bytes behind each are read too."""
    if dtype == "bool":
        return masks.gather(asm, base, index, lanes)
    if dtype in INTEGERS:
        return integers.gather(asm, dtype, base, index, lanes)
    value = asm.gather(base, index, lanes)
    if dtype == "f16":
        return asm.result("widen_f16", asm.low_words(value))
    return value if dtype != "bf16" else asm.result("shift_left_int", value, 16)


def rounded(asm: Assembler, value: Register) -> Register:
    """The bf16 of each f32, in the lower half of its lane; the upper half is 0."""
    if asm.level.pairs:
        return asm.result("widen_half", asm.result("to_bf16", value))
    lanes = asm.level.lanes
    odd = asm.result("and", asm.result("shift_right_int", value, 16), asm.integers([1] * lanes))
    near = asm.result("add_int", asm.result("add_int", value, odd),
                      asm.integers([0x7FFF] * lanes))
    size = asm.result("and", value, asm.integers([0x7FFFFFFF] * lanes))
    quiet = asm.result("or", value, asm.integers([QUIET] * lanes))
    infinity = asm.result("load", asm.integers([INFINITY] * lanes))
    near = asm.where_greater(size, infinity, quiet, near)
    return asm.result("shift_right_int", near, 16)


def store(asm: Assembler, dtype: str, address: Address, value: Register,
          lanes: int | None = None) -> None:
    """Store a vector of f32, or its first `lanes` lanes."""
    lanes = asm.level.lanes if lanes is None else lanes
    if dtype == "bool":
        masks.store(asm, address, value, lanes)
    elif dtype in INTEGERS:
        integers.store(asm, dtype, address, value, lanes)
    elif dtype not in HALVES:
        asm.store(address, value, lanes)
    elif dtype == "f16":
        asm.store_words(address, asm.result("to_f16", value), lanes)
    elif asm.level.pairs:
        asm.store_words(address, asm.result("to_bf16", value), lanes)
    else:
        asm.store_low_words(address, rounded(asm, value), lanes, clear=True)


def copy_bf16(asm: Assembler, source: Address, target: Address, lanes: int, stored: int) -> None:
    """Copy `lanes` elements of bf16 as they are, and zeros up to `stored` (512 bits only)."""
    mask, kept = (None if n == asm.level.lanes else asm.tail_mask(n) for n in (lanes, stored))
    words = asm.vector()
    asm.op("load_words", words, source, mask=mask, zeroing=mask is not None)
    asm.op("store_words", target, words, mask=kept)


def store_lowest(asm: Assembler, dtype: str, address: Address, value: Register) -> None:
    """Store the lowest lane of a vector of f32."""
    if dtype == "bool":
        masks.store_lowest(asm, address, value)
    elif dtype in INTEGERS:
        integers.store_lowest(asm, dtype, address, value)
    elif dtype == "bf16":
        asm.op("store_word", address, rounded(asm, value), 0)
    elif dtype == "f16":
        asm.op("store_word", address, asm.result("to_f16", value), 0)
    else:
        asm.op("store_low", address, value)
