"""The micro-kernel: a block of sums kept in registers while the reduction runs.

    sums[row][vector] += spread(a[row * row_bytes + k * step_bytes]) * b[k][vector]

`a` holds the operand whose elements are spread over all lanes (pixels, keys), `b` the operand that
lies in whole vectors (packed weights, packed queries). Convolutions, matrix products and both
products of an attention are this loop; they differ in strides only.

             b: one panel, `vectors` wide
           +--------+--------+
    a: k ->| k = 0  |        |      per k: `vectors` loads of b, `rows` spreads of a,
     r     +--------+--------+             rows * vectors fused multiply-adds
     o     | k = 1  |        |
     w     +--------+--------+
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.unpacking import ask, factors
from smalti.graph.quantised import Format

HALVES = {"f32": (None,), "f16": (None,), "pairs": (None,), "widened": (0, 1)}
"""What each vector of `b` is taken apart into, for each of `Micro.factors`."""
LINE_BYTES = 64
"""Bytes of a cache line, on every x86 CPU so far."""


@dataclass(frozen=True)
class Reduction:
    """A loop of the reduction, outermost first: its count, the bytes `a` moves a step, and those
    `b` moves besides what it read."""

    count: int | Register
    a_bytes: int
    b_bytes: int = 0


@dataclass(frozen=True)
class Micro:
    """The shape of a micro-kernel.

    `row_bytes`: from one row of `a` to the next; `step_bytes`: from one k to the next in `a`;
    `panel_bytes`: the same in `b`; `unroll`: how many k a turn of the innermost loop does.
    `factors`: "f32"; "f16", `b` holds f16 and `a` f32; "pairs", both operands hold pairs of bf16,
    which count as one k; "widened", `b` holds pairs of bf16 and `a` two f32 for each. `lines`: how
    many cache lines of what is needed next each turn asks for. With a `form`, `b` holds words of
    quantised weights, which are made factors in registers.
    """

    rows: int
    vectors: int
    row_bytes: int
    step_bytes: int
    panel_bytes: int
    unroll: int
    factors: str = "f32"
    lines: int = 0
    form: Format | None = None


def multiply(asm: Assembler, shape: Micro, a: Register, b: Register, loops: Sequence[Reduction],
             sums: Sequence[Sequence[Register]], ahead: Register | None = None) -> None:
    """Add the products of `a` and `b` to `sums`; `b` is advanced behind what was read, `ahead`
    behind the lines that were asked for.

    The last of `loops` is innermost and advances `unroll` steps a turn.
    """
    with ExitStack() as stack:
        for loop in loops[:-1]:
            outer, a = a, asm.copy(a)
            stack.enter_context(_advancing(asm, loop, outer, a, b))
        if shape.form is not None:
            _groups(asm, shape, a, b, loops[-1], sums)
        else:
            _innermost(asm, shape, a, b, loops[-1], sums, ahead)


class _advancing:
    """A loop whose body starts with a copy of `outer`, which then moves on."""

    def __init__(self, asm: Assembler, loop: Reduction, outer: Register, inner: Register,
                 b: Register) -> None:
        self.asm, self.loop, self.b = asm, loop, b
        self.outer, self.inner = asm.copy(outer), inner
        self.body = asm.loop(loop.count)

    def __enter__(self) -> None:
        self.body.__enter__()
        self.asm.op("mov", self.inner, self.outer)
        self.asm.advance(self.outer, self.loop.a_bytes)

    def __exit__(self, *error) -> None:
        self.asm.advance(self.b, self.loop.b_bytes)
        self.body.__exit__(*error)


def _groups(asm: Assembler, shape: Micro, a: Register, b: Register, loop: Reduction,
            sums: Sequence[Sequence[Register]]) -> None:
    """The innermost loop where `b` holds groups of words."""
    form, size, pairs = shape.form, asm.level.bytes, shape.factors == "pairs"
    line, here = shape.panel_bytes, asm.copy(a)
    assert isinstance(loop.count, int), loop
    groups = loop.count * shape.unroll * (2 if pairs else 1) // form.group
    with asm.loop(groups):
        heads = [[asm.load(Address(b, head * line + v * size)) for head in range(form.heads)]
                 for v in range(shape.vectors)]
        asm.advance(b, form.heads * line)
        with asm.loop(form.group // form.codes):
            made = [factors(asm, form, asm.load(Address(b, v * size)), heads[v], pairs=pairs)
                    for v in range(shape.vectors)]
            ask(asm, b, line)
            for k, panel in enumerate(zip(*made)):
                _add(asm, shape, here, k * shape.step_bytes, panel, sums)
            asm.advance(b, line)
            asm.advance(here, form.codes // (2 if pairs else 1) * shape.step_bytes)


def _add(asm: Assembler, shape: Micro, a: Register, offset: int, panel: Sequence[Register],
         sums: Sequence[Sequence[Register]]) -> None:
    """Add the products of one k: `panel` of `b`, and `a` at `offset` of each row."""
    product = "dot_pairs" if shape.factors == "pairs" else "fma"
    spread = "spread" if shape.factors == "pairs" else "broadcast"
    for row in range(shape.rows):
        factor = asm.result(spread, Address(a, row * shape.row_bytes + offset))
        for v in range(shape.vectors):
            asm.op(product, sums[row][v], factor, panel[v])


def _innermost(asm: Assembler, shape: Micro, a: Register, b: Register, loop: Reduction,
               sums: Sequence[Sequence[Register]], ahead: Register | None) -> None:
    halves, vector_bytes = HALVES[shape.factors], vector_bytes_of(asm, shape.factors)
    here = asm.copy(a)
    with asm.loop(loop.count):
        for line in range(shape.lines):
            asm.op("prefetch_second", Address(ahead, LINE_BYTES * line))
        if shape.lines:
            asm.advance(ahead, LINE_BYTES * shape.lines)
        for k, (pair, half) in enumerate(itertools.product(range(shape.unroll), halves)):
            panel = [load_factor(asm, Address(b, pair * shape.panel_bytes + v * vector_bytes),
                                 shape.factors, half)
                     for v in range(shape.vectors)]
            _add(asm, shape, here, k * shape.step_bytes, panel, sums)
        asm.advance(b, shape.unroll * shape.panel_bytes)
        asm.advance(here, loop.a_bytes)


def vector_bytes_of(asm: Assembler, factors: str) -> int:
    """Bytes of what fills a vector register in `b`."""
    return asm.level.bytes // 2 if factors == "f16" else asm.level.bytes


def load_factor(asm: Assembler, address: Address, factors: str, half: int | None) -> Register:
    """A vector of `b`: as it is, f16 as f32, or one half of its pairs of bf16 as f32."""
    value = elements.load(asm, "f16" if factors == "f16" else "f32", address)
    if half is None:
        return value
    if half:
        return asm.result("and", value, asm.integers([-1 << 16] * asm.level.lanes))
    return asm.result("shift_left_int", value, 16)


def zero_sums(asm: Assembler, rows: int, vectors: int) -> list[list[Register]]:
    """New sums, all zero."""
    sums = [asm.vectors(vectors) for _ in range(rows)]
    for register in (r for row in sums for r in row):
        asm.clear(register)
    return sums


def load_sums(asm: Assembler, rows: int, vectors: int, at: Register,
              row_bytes: int) -> list[list[Register]]:
    """New sums, from memory."""
    return [[asm.load(Address(at, row * row_bytes + v * asm.level.bytes)) for v in range(vectors)]
            for row in range(rows)]


def store_sums(asm: Assembler, sums: Sequence[Sequence[Register]], at: Register,
               row_bytes: int) -> None:
    """Write the sums to memory."""
    for row, registers in enumerate(sums):
        for v, register in enumerate(registers):
            asm.store(Address(at, row * row_bytes + v * asm.level.bytes), register)


def split_rows(extent: int, most: int) -> list[tuple[int, int]]:
    """`extent` rows as (size, how many) of at most `most`, sizes differing by one at most.

    >>> split_rows(64, 14), split_rows(40, 14), split_rows(8, 14)
    ([(13, 4), (12, 1)], [(14, 1), (13, 2)], [(8, 1)])
    """
    count = -(-extent // most)
    size, larger = divmod(extent, count)
    return [(n, k) for n, k in ((size + 1, larger), (size, count - larger)) if k]
