"""A square of f32 in vector registers, turned.

    rows of 2       rows of 4, by       columns, by 128-bit
    interleaved     64-bit elements     parts of all rows

Three steps: neighbouring rows are interleaved by elements, then by pairs of elements, so that each
128-bit part of a register holds four rows of one column; at last the parts change places.
"""

from __future__ import annotations

from collections.abc import Sequence

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Register

EVEN, ODD = 0x88, 0xDD
"""Parts 0 and 2, or 1 and 3, of both operands of a shuffle of 128-bit parts."""


def transpose(asm: Assembler, rows: Sequence[Register]) -> list[Register]:
    """New vectors, `level.lanes` of them as of the rows: lane i of result j is lane j of row i."""
    fours = [_four_rows(asm, rows[i:i + 4]) for i in range(0, len(rows), 4)]
    columns: dict[int, Register] = {}
    for k in range(4):
        parts = [four[k] for four in fours]
        if not asm.level.wide:
            columns[k] = asm.result("swap_halves", *parts, 0x20)
            columns[k + 4] = asm.result("swap_halves", *parts, 0x31)
            continue
        for first, control in ((0, EVEN), (4, ODD)):
            low = asm.result("swap_halves", parts[0], parts[1], control)
            high = asm.result("swap_halves", parts[2], parts[3], control)
            columns[k + first] = asm.result("swap_halves", low, high, EVEN)
            columns[k + first + 8] = asm.result("swap_halves", low, high, ODD)
    return [columns[i] for i in range(len(rows))]


def _four_rows(asm: Assembler, rows: Sequence[Register]) -> list[Register]:
    """Four rows so that register k holds column k + 4 p of all of them in its 128-bit part p."""
    a, b, c, d = rows
    low = [asm.result("unpack_low", *pair) for pair in ((a, b), (c, d))]
    high = [asm.result("unpack_high", *pair) for pair in ((a, b), (c, d))]
    return [asm.result(name, *pair) for pair in (low, high)
            for name in ("unpack_low_pairs", "unpack_high_pairs")]
