"""Arrays of halves as f32, arrays of f32 as halves, and floats as codes of 8 bits with scales."""

from __future__ import annotations

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler, Code, FeatureLevel
from smalti.codegen.cpu.functions import absolute
from smalti.codegen.cpu.operands import Address, Register
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import STORED_BYTES

BLOCK = 4096
"""Elements that a tile converts."""
UNROLL = 4
"""Vectors of a turn of its loop: a guess, as it waits for memory anyway."""
CODED = "q8"
"""The quantised format that floats are converted to."""


def lower_conversion(source: str, target: str, level: FeatureLevel) -> Code:
    """A function that converts a block a tile; its pointers are the source and the target.

    Of `source` and `target`, one is "f32" and the other "f16" or "bf16". Rounding is to the
    nearest, ties to even; what is beyond the range of f16 becomes infinite.
    """
    asm = level.assembler(f"{source}_to_{target}")
    sizes = [STORED_BYTES[dtype] for dtype in (source, target)]
    places = _places(asm, [BLOCK * size for size in sizes])
    with asm.loop(BLOCK // (UNROLL * level.lanes)):
        for turn in range(UNROLL):
            start, end = (Address(place, turn * level.lanes * size)
                          for place, size in zip(places, sizes, strict=True))
            elements.store(asm, target, end, elements.load(asm, source, start))
        for place, size in zip(places, sizes, strict=True):
            asm.advance(place, UNROLL * level.lanes * size)
    return asm.finish()


def lower_coding(source: str, level: FeatureLevel) -> Code:
    """A function that rounds a block of "f32", "f16" or "bf16" a tile to words of `CODED`; its
    pointers are the source and the target.

    Of each group the scale is its largest magnitude over the largest code; numbers over that are
    rounded to the nearest, ties to even. Where all are 0, these are NaN, whose lowest byte is 0 as
    an integer.
    """
    form, size = FORMATS[CODED], STORED_BYTES[source]
    most = float((1 << form.bits - 1) - 1)
    asm = level.assembler(f"{source}_to_{CODED}")
    start, end = _places(asm, [BLOCK * size, 4 * form.words_of(BLOCK)])
    with asm.loop(BLOCK // form.group):
        held = [elements.load(asm, source, Address(start, at * size))
                for at in range(0, form.group, level.lanes)]
        top = absolute(asm, held[0])
        for value in held[1:]:
            top = asm.result("max", top, absolute(asm, value))
        top = asm.over_lanes(top, lambda a, b: asm.result("max", a, b))
        scale = asm.result("div", top, asm.load_constant(most))
        elements.store_lowest(asm, "f32", Address(end), scale)
        for number, value in enumerate(held):
            code = asm.result("div", value, scale)
            code = asm.result("max", asm.load_constant(-most), code)
            code = asm.result("min", asm.load_constant(most), code)
            at = Address(end, 4 * form.heads + number * level.lanes)
            asm.store_low_bytes(at, asm.result("to_int", code), level.lanes)
        asm.advance(start, form.group * size)
        asm.advance(end, 4 * form.words)
    return asm.finish()


def _places(asm: Assembler, strides: list[int]) -> list[Register]:
    """Where the tile begins in what each pointer shows, of so many bytes a tile."""
    table, tile = asm.argument(), asm.argument()
    found = []
    for number, stride in enumerate(strides):
        place = asm.general()
        asm.op("mov", place, Address(table, 8 * number))
        found.append(asm.offset(place, tile, stride))
    return found
