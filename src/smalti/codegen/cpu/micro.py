"""The micro-kernel: a block of sums kept in registers while the reduction runs.

    sums[row][vector] += spread(a[row * row_bytes + k * step_bytes]) * b[k][vector]

`a` holds the operand whose elements are spread over all lanes (pixels, keys), `b` the operand that
lies in whole vectors (packed weights, packed queries). Convolutions, matrix products and both
products of an attention are this loop; they differ in strides only.

How `a` becomes factors is the architecture's choice. With `Spread`, an instruction repeats each of
them in all lanes of a register (x86). With `ByLane`, products take one lane of a vector as their
factor (AArch64): four neighbouring factors are loaded at once, along k or along the rows.

             b: one panel, `vectors` wide
           +--------+--------+
    a: k ->| k = 0  |        |      per k: `vectors` loads of b, `rows` spreads of a,
     r     +--------+--------+             rows * vectors fused multiply-adds
     o     | k = 1  |        |
     w     +--------+--------+
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.unpacking import ask, factors
from smalti.codegen.cpu.weights import SUM_BITS, SUM_FLOAT
from smalti.dataclass import dataclass
from smalti.graph.quantised import Format

HALVES = {"f32": (None,), "f16": (None,), "pairs": (None,), "blocks": (None,), "widened": (0, 1),
          "quads": (None,), "blocks of quads": (None,), "words": (None,)}
"""What each vector of `b` is taken apart into, for each of `Micro.factors`."""
LINE_BYTES = 64
"""Bytes of a cache line, on every x86 CPU so far; where lines are longer, some are asked for
twice."""
FACTOR_BYTES = 4
"""Bytes of a factor of `a`: an f32, a pair of bf16 or of words, or four bytes."""
PRODUCTS = {"pairs": "dot_pairs", "quads": "dot_quads", "words": "dot_words"}
"""The instruction of a product, by `Micro.factors`; else a multiply-add of f32."""
BLOCKS = {"blocks": "dot_blocks", "blocks of quads": "dot_byte_blocks"}
"""The instruction that multiplies two rows by two columns, by `Micro.factors`."""
QUAD = 4
"""Bytes that a product of quads takes."""
FLIPS = -0x7F7F7F80
"""The highest bit of each byte of 32 bits: by `xor`, bytes without a sign become those less 128."""
LANE_FACTORS = 4
"""Factors of a vector that products take by lane, of 128 bits."""


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
    which count as one k; "blocks", the same where an instruction multiplies two rows by two columns
    of two pairs; "widened", `b` holds pairs of bf16 and `a` two f32 for each; "quads", `a` holds
    four bytes without a sign for a k and `b` four with one; "blocks of quads", the same for blocks;
    "words", both hold two integers of 16 bits. Sums of the last three are integers. With `flipped`
    products want bytes with a sign and `a` holds such without, from which 128 is subtracted as they
    are loaded. `ahead`: how many bytes of what is needed next each turn asks for. With a
    `form`, `b` holds words of quantised weights, which are made factors in registers, or codes that
    are multiplied by "quads", whose zero point is `zero`, with sums of f32.
    """

    rows: int
    vectors: int
    row_bytes: int
    step_bytes: int
    panel_bytes: int
    unroll: int
    factors: str = "f32"
    ahead: int = 0
    form: Format | None = None
    zero: int = 0
    flipped: bool = False


def multiply(asm: Assembler, shape: Micro, a: Register, b: Register, loops: Sequence[Reduction],
             sums: Sequence[Sequence[Register]], ahead: Register | None = None) -> None:
    """Add the products of `a` and `b` to `sums`; `b` is advanced behind what was read, `ahead`
    behind what was asked for.

    The last of `loops` is innermost and advances `unroll` steps a turn.
    """
    held = _blocks(asm, sums) if shape.factors in BLOCKS else sums
    with ExitStack() as stack:
        for loop in loops[:-1]:
            outer, a = a, asm.copy(a)
            stack.enter_context(_advancing(asm, loop, outer, a, b))
        if shape.form is not None and shape.factors == "quads":
            _code_groups(asm, shape, a, b, loops[-1], held)
        elif shape.form is not None:
            _groups(asm, shape, a, b, loops[-1], held)
        else:
            _innermost(asm, shape, a, b, loops[-1], held, ahead)
    if shape.factors in BLOCKS:
        _rows(asm, held)


def word_ones(asm: Assembler) -> Register | None:
    """The ones by which `add_quads` widens pairs; None where it needs none."""
    if asm.level.integers != "words":
        return None
    return asm.result("load", asm.integers([0x00010001] * asm.level.lanes))


def add_quads(asm: Assembler, total: Register, a: Register, b: Register | Address,
              ones: Register | None) -> None:
    """Add the products of four bytes of each lane to `total`: those of `a` without a sign by those
    of `b`. With `ones`, pairs of them are first added in 16 bits, which have to hold them."""
    if ones is None:
        asm.op("dot_quads", total, a, b)
        return
    product = asm.result("mul_bytes", a, b)
    asm.op("mul_words", product, product, ones)
    asm.op("add_int", total, total, product)


class Spread:
    """Factors of `a`, each of them spread over all lanes of a register when it is wanted."""

    def __init__(self, asm: Assembler, shape: Micro, a: Register, steps: int) -> None:
        self.asm, self.shape, self.here = asm, shape, asm.copy(a)
        self.product = PRODUCTS.get(shape.factors, "fma")
        self.spread = "spread" if shape.factors in PRODUCTS else "broadcast"
        self.apart = shape.factors in ("words", "quads") and asm.level.integers == "words"
        self.ones = word_ones(asm) if self.apart and shape.factors == "quads" else None

    def add(self, k: int, panel: Iterable[Register | Address],
            sums: Sequence[Sequence[Register]]) -> None:
        """Add the products of step `k` of a turn to the sums; `panel` is that of `b`."""
        shape, panel = self.shape, list(panel)
        for row in range(shape.rows):
            at = Address(self.here, row * shape.row_bytes + k * shape.step_bytes)
            factor = self.asm.result(self.spread, at)
            for sum_, vector in zip(sums[row], panel, strict=True):
                if self.ones is not None:
                    add_quads(self.asm, sum_, factor, vector, self.ones)
                elif self.apart:
                    product = self.asm.result("mul_words", factor, vector)
                    self.asm.op("add_int", sum_, sum_, product)
                else:
                    self.asm.op(self.product, sum_, factor, vector)

    def advance(self, amount: int) -> None:
        """Go on to the next turn, so many bytes further."""
        self.asm.advance(self.here, amount)


class ByLane:
    """Factors of `a`, loaded four at a time and taken lane by lane; a turn has `steps` of them.

    They are neighbours along the rows where these lie side by side, else along k where that does;
    else each is loaded by itself. A row has a pointer of its own where no instruction's offset
    reaches from the first row to it.
    """

    def __init__(self, asm: Assembler, shape: Micro, a: Register, steps: int) -> None:
        self.asm, self.shape, self.steps = asm, shape, steps
        self.product = PRODUCTS.get(shape.factors, "fma") + "_lane"
        self.flips = (asm.result("load", asm.integers([FLIPS] * asm.level.lanes))
                      if shape.flipped else None)
        self.by_row = shape.row_bytes == FACTOR_BYTES and shape.rows >= LANE_FACTORS
        self.by_step = not self.by_row and shape.step_bytes == FACTOR_BYTES
        self.here = asm.copy(a)
        self.pointers, self.offsets = [self.here], [0] * shape.rows
        self.places = [self.here] * shape.rows
        self.held: list[Register] = []
        for row in range(1, 1 if self.by_row else shape.rows):
            self._point(row)

    def _point(self, row: int) -> None:
        """Choose the pointer of a row."""
        asm, shape = self.asm, self.shape
        size = LANE_FACTORS * FACTOR_BYTES if self.by_step else FACTOR_BYTES
        offset = row * shape.row_bytes
        reached = range(offset, offset + self.steps * shape.step_bytes,
                        size if self.by_step else shape.step_bytes)
        if all(asm.reachable(each, size) for each in reached):
            self.offsets[row] = offset
            return
        self.places[row] = asm.copy(self.here)
        asm.advance(self.places[row], offset)
        self.pointers.append(self.places[row])

    def add(self, k: int, panel: Iterable[Register | Address],
            sums: Sequence[Sequence[Register]]) -> None:
        """Add the products of step `k` of a turn to the sums; `panel` is that of `b`. Each vector
        of it is asked for when the one before is done with, so that few are there at a time."""
        asm = self.asm
        self._load(k)
        for v, vector in enumerate(panel):
            for row, of_row in enumerate(sums):
                factor, lane = ((self.held[row // LANE_FACTORS], row % LANE_FACTORS) if self.by_row
                                else (self.held[row], k % LANE_FACTORS if self.by_step else 0))
                asm.op(self.product, of_row[v], vector, factor, lane)

    def _load(self, k: int) -> None:
        """Load what step `k` needs and none before it has loaded."""
        shape, at = self.shape, k * self.shape.step_bytes
        if self.by_row:
            self.held = [self._taken(Address(self.here, at + FACTOR_BYTES * row),
                                     min(LANE_FACTORS, shape.rows - row))
                         for row in range(0, shape.rows, LANE_FACTORS)]
        elif not self.by_step or k % LANE_FACTORS == 0:
            count = min(LANE_FACTORS, self.steps - k) if self.by_step else 1
            self.held = [self._taken(Address(self.places[row], self.offsets[row] + at), count)
                         for row in range(shape.rows)]

    def _taken(self, address: Address, count: int) -> Register:
        """Factors side by side, as products take them."""
        value = self.asm.load(address, count)
        return value if self.flips is None else self.asm.result("xor", value, self.flips)

    def advance(self, amount: int) -> None:
        """Go on to the next turn, so many bytes further."""
        for pointer in self.pointers:
            self.asm.advance(pointer, amount)


class ByBlock(ByLane):
    """Factors of two rows and two steps in a register, for products of blocks. Rows beyond an even
    number are taken twice."""

    def turn(self, b: Register, sums: Sequence[Sequence[Register]]) -> None:
        """Add the products of all steps of a turn to the sums, which are blocks."""
        asm, shape, size = self.asm, self.shape, self.asm.level.bytes
        assert self.by_step and not shape.flipped, shape
        for k in range(0, self.steps, 2):
            if k % LANE_FACTORS == 0:
                made = [self._made(row, k) for row in range(0, shape.rows, 2)]
            for v, column in itertools.product(range(shape.vectors), range(2)):
                panel = asm.load(Address(b, (k + column) * shape.panel_bytes + v * size))
                for factor, row in zip((pair[k % LANE_FACTORS // 2] for pair in made), sums):
                    asm.op(BLOCKS[shape.factors], row[2 * v + column], factor, panel)

    def _made(self, row: int, k: int) -> list[Register]:
        """The factors of a row and the next one for steps k and k + 1, and the two behind."""
        asm, count = self.asm, min(LANE_FACTORS, self.steps - k)
        at = k * self.shape.step_bytes
        rows = [asm.load(Address(self.places[n], self.offsets[n] + at), count)
                for n in (row, min(row + 1, self.shape.rows - 1))]
        names = ("unpack_low_pairs", "unpack_high_pairs")[:count // 2]
        return [asm.result(name, *rows) for name in names]


def _blocks(asm: Assembler, sums: Sequence[Sequence[Register]]) -> list[list[Register]]:
    """Sums of rows become blocks of two rows and two columns, in the same registers: of each two
    rows, two a vector. A last row by itself is there twice."""
    found = []
    for row in range(0, len(sums), 2):
        others = sums[row + 1] if row + 1 < len(sums) else [
            asm.result("copy", register) for register in sums[row]]
        for low, high in zip(sums[row], others):
            _cross(asm, low, high)
        found.append([register for pair in zip(sums[row], others) for register in pair])
    return found


def _rows(asm: Assembler, blocks: Sequence[Sequence[Register]]) -> None:
    """The opposite: blocks become sums of rows."""
    for held in blocks:
        for low, high in zip(held[::2], held[1::2]):
            _cross(asm, low, high)


def _cross(asm: Assembler, low: Register, high: Register) -> None:
    """Let the upper half of one register and the lower half of the other change places."""
    upper = asm.result("unpack_high_pairs", low, high)
    asm.op("unpack_low_pairs", low, low, high)
    asm.op("copy", high, upper)


def _factors(asm: Assembler, shape: Micro, a: Register, steps: int) -> Spread | ByLane:
    """The factors of `a` as the architecture takes them, `steps` of each row a turn."""
    if shape.factors in BLOCKS:
        return ByBlock(asm, shape, a, steps)
    return (ByLane if asm.level.by_lane else Spread)(asm, shape, a, steps)


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
    line, steps = shape.panel_bytes, form.codes // (2 if pairs else 1)
    here = _factors(asm, shape, a, steps)
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
            for k in range(steps):
                here.add(k, (next(factor) for factor in made), sums)
            asm.advance(b, line)
            here.advance(steps * shape.step_bytes)


def _code_groups(asm: Assembler, shape: Micro, a: Register, b: Register, loop: Reduction,
                 sums: Sequence[Sequence[Register]]) -> None:
    """The innermost loop where `b` holds groups of codes, by which bytes are multiplied: it lies as
    `weights.CodePanels` says.

    The sum of the integers of a group begins as is laid down there. A minimum is multiplied by the
    sum of the bytes less their zero point; that is the sum of a group whose codes are all 1.
    """
    form, size, line = shape.form, asm.level.bytes, shape.panel_bytes
    assert form is not None and isinstance(loop.count, int), (form, loop)
    here, first = _factors(asm, shape, a, form.group // QUAD), asm.general()
    upper, ones = (_kept(asm, asm.integers([each] * asm.level.lanes))
                   for each in (-0x0F0F0F10, 0x01010101))
    with asm.loop(loop.count * shape.unroll * QUAD // form.group):
        asm.op("mov", first, b)
        asm.advance(first, form.heads * line)
        held = load_sums(asm, shape.rows, shape.vectors, first, 0)
        begin = -shape.zero * form.group + (SUM_BITS if asm.level.by_lane else 0)
        totals = [asm.result("load", asm.integers([begin] * asm.level.lanes))
                  for _ in range(shape.rows if form.minimum else 0)]
        for k in range(form.group // QUAD):
            word, later = divmod(k * QUAD, form.codes)
            at = (form.heads + 1 + word) * line
            panel: list[Register | Address] = [asm.load(Address(b, at + v * size))
                                               for v in range(shape.vectors)]
            for codes in panel if form.bits == 4 else ():
                if not later:
                    asm.op("shift_left_int", codes, codes, 4)
                asm.op("and", codes, codes, upper)
            if totals:
                here.add(k, [*panel, ones], [[*row, total] for row, total in zip(held, totals)])
            else:
                here.add(k, panel, held)
        scales, *minima = ([_kept(asm, Address(b, head * line + v * size))
                            for v in range(shape.vectors)] for head in range(form.heads))
        above = asm.load_constant(SUM_FLOAT) if asm.level.by_lane else None
        for row, each in enumerate(held):
            for v, sum_ in enumerate(each):
                _make_float(asm, sum_, above)
                asm.op("fma", sums[row][v], sum_, scales[v])
        for row, total in enumerate(totals):
            _make_float(asm, total, above)
            for v in range(shape.vectors):
                asm.op("fma", sums[row][v], total, minima[0][v])
        asm.advance(b, (form.words + 1) * line)
        here.advance(form.group // QUAD * shape.step_bytes)


def _make_float(asm: Assembler, total: Register, above: Register | None) -> None:
    """The sum of a group as f32, in the same register; with `above`, which it began with."""
    if above is None:
        asm.op("from_int", total, total)
    else:
        asm.op("sub", total, total, above)


def _kept(asm: Assembler, place: Address) -> Register | Address:
    """What several instructions read last: in a register where each would load it by itself."""
    return asm.load(place) if asm.level.by_lane else place


def _innermost(asm: Assembler, shape: Micro, a: Register, b: Register, loop: Reduction,
               sums: Sequence[Sequence[Register]], ahead: Register | None) -> None:
    halves, vector_bytes = HALVES[shape.factors], vector_bytes_of(asm, shape.factors)
    here = _factors(asm, shape, a, shape.unroll * len(halves))
    with asm.loop(loop.count):
        for byte in range(0, shape.ahead, LINE_BYTES):
            asm.op("prefetch_second", Address(ahead, byte))
        if shape.ahead:
            asm.advance(ahead, shape.ahead)
        if isinstance(here, ByBlock):
            here.turn(b, sums)
        for k, (pair, half) in enumerate(itertools.product(
                () if isinstance(here, ByBlock) else range(shape.unroll), halves)):
            panel = [load_factor(asm, Address(b, pair * shape.panel_bytes + v * vector_bytes),
                                 shape.factors, half)
                     for v in range(shape.vectors)]
            here.add(k, panel, sums)
        asm.advance(b, shape.unroll * shape.panel_bytes)
        here.advance(loop.a_bytes)


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


def widen(asm: Assembler, factors: str, vectors: int, source: Register, target: Register,
          channels: int) -> None:
    """Write `channels` channels (times taps) of a panel of halves ("f16", or "widened" pairs of
    bf16) as f32, for all rows that are to be multiplied with them. Both registers are advanced."""
    halves, size = HALVES[factors], vector_bytes_of(asm, factors)
    with asm.loop(channels // len(halves)):
        for v, (k, half) in itertools.product(range(vectors), enumerate(halves)):
            value = load_factor(asm, Address(source, v * size), factors, half)
            asm.store(Address(target, (k * vectors + v) * asm.level.bytes), value)
        asm.advance(source, vectors * size)
        asm.advance(target, len(halves) * vectors * asm.level.bytes)


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
