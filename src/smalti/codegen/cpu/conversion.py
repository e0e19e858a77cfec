"""Arrays of halves as f32, and arrays of f32 as halves."""

from __future__ import annotations

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Code, FeatureLevel
from smalti.codegen.cpu.operands import Address
from smalti.kernel.form import STORED_BYTES

BLOCK = 4096
"""Elements that a tile converts."""
UNROLL = 4
"""Vectors of a turn of its loop: a guess, as it waits for memory anyway."""


def lower_conversion(source: str, target: str, level: FeatureLevel) -> Code:
    """A function that converts a block a tile; its pointers are the source and the target.

    Of `source` and `target`, one is "f32" and the other "f16" or "bf16". Rounding is to the
    nearest, ties to even; what is beyond the range of f16 becomes infinite.
    """
    asm = level.assembler(f"{source}_to_{target}")
    table, tile = asm.argument(), asm.argument()
    sizes = [STORED_BYTES[dtype] for dtype in (source, target)]
    places = []
    for number, size in enumerate(sizes):
        place = asm.general()
        asm.op("mov", place, Address(table, 8 * number))
        places.append(asm.offset(place, tile, BLOCK * size))
    with asm.loop(BLOCK // (UNROLL * level.lanes)):
        for turn in range(UNROLL):
            start, end = (Address(place, turn * level.lanes * size)
                          for place, size in zip(places, sizes, strict=True))
            elements.store(asm, target, end, elements.load(asm, source, start))
        for place, size in zip(places, sizes, strict=True):
            asm.advance(place, UNROLL * level.lanes * size)
    return asm.finish()
