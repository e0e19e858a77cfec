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

NEAREST = 0
"""The rounding of `vcvtps2ph`: ties to even."""
INFINITY = 0x7F800000
"""The bits of an infinite f32; those of a NaN are more."""
QUIET = 0x00400000
"""The bit that makes any NaN one that survives losing its lower half."""


def load(asm: Assembler, dtype: str, address: Address, lanes: int | None = None) -> Register:
    """A new vector of f32 from memory; with `lanes`, only that many, the others zero.

    Below AVX-512, a partial vector of halves reads up to 14 bytes behind its last element.
    """
    if dtype == "bool":
        return masks.load(asm, address, lanes)
    if dtype in INTEGERS:
        return integers.load(asm, dtype, address, lanes)
    if dtype not in HALVES:
        return asm.load(address, lanes)
    partial = lanes is not None and lanes != asm.level.lanes
    value, widen = asm.vector(), "widen_f16" if dtype == "f16" else "widen_half"
    if partial and asm.level.wide:
        asm.op(widen, value, address, mask=asm.tail_mask(lanes), zeroing=True)
    else:
        asm.op(widen, value, address)
        if partial:
            value = asm.result("and", value, asm.tail_vector(lanes))
    return value if dtype == "f16" else asm.result("shift_left_int", value, 16)


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
        return asm.result("widen_f16", _low_words(asm, value))
    return value if dtype != "bf16" else asm.result("shift_left_int", value, 16)


def _low_words(asm: Assembler, value: Register) -> Register:
    """The lower halves of all lanes, side by side in the lower half of a vector."""
    if asm.level.wide:
        return asm.result("low_words", value)
    return _packed(asm, asm.result("and", value, asm.integers([0xFFFF] * asm.level.lanes)))


def _packed(asm: Assembler, words: Register) -> Register:
    """Lanes of at most 16 bits, of 256 bits of them, side by side."""
    return asm.result("permute_quads", asm.result("pack_words", words, words), 0b1000)


def store_low_words(asm: Assembler, address: Address, value: Register) -> None:
    """Store the lower halves of all lanes of a vector, side by side."""
    if asm.level.wide:
        asm.op("store_low_words", address, value)
    else:
        asm.op("store_half", address, _low_words(asm, value))


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
        _store_half(asm, address, asm.result("to_f16", value, NEAREST), lanes)
    elif asm.level.wide:
        mask = None if lanes == asm.level.lanes else asm.tail_mask(lanes)
        if asm.level.pairs:
            asm.op("store_words", address, asm.result("to_bf16", value), mask=mask)
        else:
            asm.op("store_low_words", address, rounded(asm, value), mask=mask)
    else:
        _store_half(asm, address, _packed(asm, rounded(asm, value)), lanes)


def _store_half(asm: Assembler, address: Address, words: Register, lanes: int) -> None:
    """Store the first `lanes` 16-bit integers of the lower half of a vector."""
    if asm.level.wide:
        mask = None if lanes == asm.level.lanes else asm.tail_mask(lanes)
        asm.op("store_words", address, words, mask=mask)
        return
    if lanes == asm.level.lanes:
        asm.op("store_half", address, words)
        return
    if lanes > 1:
        asm.op("store_half_masked", address, asm.result("load", asm.tail_vector(lanes // 2)), words)
    if lanes % 2:
        asm.op("store_word", address.plus(2 * (lanes - 1)), words, lanes - 1)


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
        asm.op("store_word", address, asm.result("to_f16", value, NEAREST), 0)
    else:
        asm.op("store_low", address, value)
