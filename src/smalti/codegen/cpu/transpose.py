"""A square of f32 in vector registers, turned.

    rows of 2       rows of 4, by       columns, by 128-bit
    interleaved     64-bit elements     parts of all rows

Three steps: neighbouring rows are interleaved by elements, then by pairs of elements, so that each
128-bit part of a register holds four rows of one column; at last the parts, where a register has
several, change places.
"""

from __future__ import annotations

from collections.abc import Sequence

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Register


def transpose(asm: Assembler, rows: Sequence[Register]) -> list[Register]:
    """New vectors, `level.lanes` of them as of the rows: lane i of result j is lane j of row i."""
    fours = [_four_rows(asm, rows[i:i + 4]) for i in range(0, len(rows), 4)]
    columns: dict[int, Register] = {}
    for k in range(4):
        parts = [four[k] for four in fours]
        if len(parts) == 1:
            columns[k] = parts[0]
        elif len(parts) == 2:
            columns[k] = asm.result("low_parts", *parts)
            columns[k + 4] = asm.result("high_parts", *parts)
        else:
            for first, name in ((0, "even_parts"), (4, "odd_parts")):
                low = asm.result(name, parts[0], parts[1])
                high = asm.result(name, parts[2], parts[3])
                columns[k + first] = asm.result("even_parts", low, high)
                columns[k + first + 8] = asm.result("odd_parts", low, high)
    return [columns[i] for i in range(len(rows))]


def _four_rows(asm: Assembler, rows: Sequence[Register]) -> list[Register]:
    """Four rows so that register k holds column k + 4 p of all of them in its 128-bit part p."""
    a, b, c, d = rows
    low = [asm.result("unpack_low", *pair) for pair in ((a, b), (c, d))]
    high = [asm.result("unpack_high", *pair) for pair in ((a, b), (c, d))]
    return [asm.result(name, *pair) for pair in (low, high)
            for name in ("unpack_low_pairs", "unpack_high_pairs")]
