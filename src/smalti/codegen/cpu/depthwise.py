"""Depthwise convolutions and pooling: lanes are channels, registers hold the sums of some pixels.

    for each row of pixels, or some of them, for each run of them, for each vector of channels:
        for each row of the input that they see, for each of its columns that the run sees:
            sums[pixel] += input[row, column] * weight[row - pixel's, column - pixel's]
        write the results of the run, epilogue applied

Weights are packed as [vector][r][s][lane], computed ones by a step in front; pooling has none, and
sums or takes maxima of what it reads. The input is read where it is: rows outside of it are stepped
over, and runs at the left and right border leave out the products that read beyond.

Rows of pixels that are computed together share what they read: 4 x 5 pixels read 2.1 vectors each
for a window of 3 x 3, 14 of a row 3.4. Where a schedule is `sliding`, the loop over rows is the
innermost: a run goes down the image, each row of the input is read once for all rows of pixels that
see it, and what they hold takes turns: 7 pixels read 1.3 vectors each, and weights are loaded once
for all rows. Where products take factors by lane (AArch64), sums begin
with the product at the first row and column of the window, where that row exists: to make them zero
would take a unit that multiplies. All other sums begin with zero, whatever the schedule is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby, product

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.integers import unrounded
from smalti.codegen.cpu.lowered import (
    KernelStep,
    NativeKernel,
    count_left,
    load_pointers,
    pointers,
)
from smalti.codegen.cpu.micro import split_rows, zero_sums
from smalti.codegen.cpu.nest import AccessStream, stream_of
from smalti.codegen.cpu.operands import Address, Label, Register
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.cpu.results import RegisterResults
from smalti.codegen.cpu.weights import WeightPanels
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Call, Const, Kernel, Load, affine, loads
from smalti.schedule.merge import access, store, weights_bound
from smalti.schedule.schedule import DepthwiseSchedule

Taps = dict[tuple[int, int], Register]
"""Registers with weights, by row and column of the window."""


@dataclass(frozen=True)
class Run:
    """`count` runs of `size` pixels each; `outside` are the (pixel, s) that read nothing."""

    size: int
    count: int
    outside: frozenset[tuple[int, int]]


def runs(width: int, most: int, stride: int, dilation: int, columns: int, first: int,
         extent: int) -> list[Run]:
    """A row of `width` pixels as runs of at most `most`.

    Pixel x reads the columns x * stride + s * dilation + first for s < `columns`; those from 0 to
    `extent` exist.

    >>> [(run.size, run.count, sorted(run.outside)) for run in runs(12, 4, 1, 1, 3, -1, 12)]
    [(4, 1, [(0, 0)]), (4, 1, []), (4, 1, [(3, 2)])]
    """
    found, x = [], 0
    for size, count in split_rows(width, most):
        for _ in range(count):
            found.append(Run(size, 1, frozenset(
                (p, s) for p in range(size) for s in range(columns)
                if not 0 <= (x + p) * stride + s * dilation + first < extent)))
            x += size
    return [Run(run.size, len(list(same)), run.outside) for run, same in groupby(found)]


def lower_depthwise(kernel: Kernel, schedule: DepthwiseSchedule,
                    level: FeatureLevel) -> NativeKernel:
    """Machine code of a depthwise convolution."""
    return _DepthwiseLowering(kernel, schedule, level).lower()


class _DepthwiseLowering:
    def __init__(self, kernel: Kernel, schedule: DepthwiseSchedule, level: FeatureLevel) -> None:
        self.kernel, self.schedule, self.level = kernel, schedule, level
        self.patch, total, out = kernel.stages
        self.result = replace(out, value=unrounded(out.value, kernel.buffer("out").dtype))
        (_, self.b), (_, self.y), (_, self.x), (_, self.o) = total.axes
        (_, self.r), (_, self.s) = total.reduced
        weighted = isinstance(total.value, Call)
        _, row, column, _ = affine(next(loads(total.value)))
        self.stride_y, self.dilation_y = row.coefficient("y"), row.coefficient("r")
        self.stride_x, self.dilation_x = column.coefficient("x"), column.coefficient("s")
        self.guards = {index.terms[0][0]: (index.offset, extent)
                       for index, extent in self.patch.guards}
        read, self.zero = self.patch.value, 0.0
        if isinstance(read, Call) and read.function == "sub" \
                and isinstance(read.arguments[1], Const):  # an integer less its zero point
            self.zero, read = read.arguments[1].value, read.arguments[0]
        self.packed = WeightPanels("weight", self.o, 1, self.r, self.s, level.lanes, 1,
                                   "f32") if weighted else None
        self.maximum = total.reducer == "max"
        self.begins = weighted and level.by_lane
        self.reach = (self.r - 1) * self.dilation_y
        self.open = self.reach // self.stride_y + 1
        """How many rows of pixels see a row of the input, at most."""
        if schedule.sliding and not (self.begins and schedule.rows == self.open
                                     and self.stride_y <= self.reach + 1):
            raise IllegalSchedule(f"windows do not slide over {schedule.rows} rows of pixels: on "
                                  f"AArch64 those with weights and without gaps do, these over "
                                  f"{self.open}")
        self.asm = level.assembler(kernel.form)
        if not isinstance(read, Load) or self.o > 1 and access(kernel, read).stride("c") != 1:
            raise IllegalSchedule(f"the input of a {kernel.form} kernel is stored, its channels "
                                  f"side by side")
        self.read = read

    def lower(self) -> NativeKernel:
        """Emit everything: a tile is rows of one image and vectors of channels."""
        asm, s = self.asm, self.schedule
        whole, tail = divmod(self.o, self.level.lanes)
        rows, blocks = -(-self.y // s.tile_y), -(-whole // s.vectors)
        table, index = asm.argument(), asm.argument()
        names = pointers(self.kernel)
        self.pointers = load_pointers(asm, table, names)
        computed = self.packed is not None and not weights_bound(self.kernel)
        if computed:
            asm.op("mov", self.pointers["weight"], Address(table, 8 * len(names)))
        rest, block = asm.divide(asm.copy(index), blocks + bool(tail))
        b, y_tile = asm.divide(rest, rows)
        zero = asm.immediate(0)
        y = asm.offset(zero, y_tile, s.tile_y)
        vector = asm.offset(zero, block, s.vectors)
        last, end = asm.label(), asm.label()
        if tail:
            asm.op("compare_immediate", block, blocks)
            asm.jump("equal", last)
        if whole:
            self._tile(b, y, vector, count_left(asm, vector, s.vectors, whole), None)
        if tail:
            asm.jump("always", end)
            asm.place(last)
            self._tile(b, y, asm.immediate(whole), 1, tail)
            asm.place(end)
        step = KernelStep(asm.finish(), self.b * rows * (blocks + bool(tail)))
        if not computed:
            return NativeKernel((step,), names, packed=self.packed)
        weight = self.kernel.buffer("weight")
        packing = lower_packing(self.packed, weight.strides, self.level, weight.dtype,
                                (names.index("weight"), len(names)))
        return NativeKernel((packing, step), names, workspace_bytes=self.packed.bytes)

    def _tile(self, b: Register, y: Register, vector: Register, vectors: int | Register,
              lanes: int | None) -> None:
        """Emit the rows of a tile from `y` on, of `vectors` vectors of channels."""
        asm, kernel, zero = self.asm, self.kernel, self.asm.immediate(0)
        channel = asm.offset(zero, vector, self.level.lanes)
        row = asm.offset(zero, y, self.stride_y)
        source = stream_of(asm, access(kernel, self.read), self.pointers,
                           {"b": b, "y": row, "c": channel})
        down, right = source.stride("y"), source.stride("x")
        source = replace(source, strides={"y": down * self.stride_y, "x": right * self.stride_x,
                                          "o": source.stride("c")})
        self.down, self.right = down, right
        origins = {"b": b, "y": y, "o": channel}
        behind = {load: stream_of(asm, access(kernel, load), self.pointers, origins)
                  for load in dict.fromkeys(loads(self.result.value)) if load.buffer != "sum"}
        out = stream_of(asm, store(kernel, self.result.axes, "out"), self.pointers, origins)
        results = RegisterResults(asm, self.result.value, "sum", behind, out, "x", "o",
                                  {self.read: source})
        weights = None
        if self.packed:
            weights = asm.offset(self.pointers["weight"], vector, self.packed.panel_bytes)
        asm.advance(row, self.guards.get("y", (0, 0))[0])
        count = count_left(asm, y, self.schedule.tile_y, self.y)
        if self.schedule.sliding:
            assert weights is not None, kernel
            self._slide(count, results, row, weights, vectors, lanes)
        elif self.schedule.rows == 1:
            with results.walk("y", count) as line:
                self._rows(1, line, row, weights, vectors, lanes)
                asm.advance(row, self.stride_y)
        else:
            self._groups(count, results.own("y"), row, weights, vectors, lanes)

    def _groups(self, count: int | Register, here: RegisterResults, row: Register,
                weights: Register | None, vectors: int | Register, lanes: int | None) -> None:
        """Emit the rows of a tile, several at a time; what is left at the end of the image is one
        more group."""
        asm, rows = self.asm, self.schedule.rows
        if isinstance(count, int):
            whole: int | Register = count // rows
        else:
            whole, rest = asm.divide(count, rows)
        few, end = asm.label(), asm.label()
        if isinstance(whole, Register):
            asm.op("compare_immediate", whole, 0)
            asm.jump("equal", few)
        if whole != 0:
            with asm.loop(whole):
                self._rows(rows, here, row, weights, vectors, lanes)
                here.advance("y", rows)
                asm.advance(row, rows * self.stride_y)
        asm.place(few)
        if left := (count if isinstance(count, int) else self.y) % rows:
            if isinstance(count, Register):
                asm.op("compare_immediate", rest, 0)
                asm.jump("equal", end)
            self._rows(left, here, row, weights, vectors, lanes)
        asm.place(end)

    def _slide(self, count: int | Register, results: RegisterResults, row: Register,
               weights: Register, vectors: int | Register, lanes: int | None) -> None:
        """Emit the rows of a tile, run by run of pixels and vector by vector of channels, each of
        which goes down all rows."""
        asm, here = self.asm, results.own("x")
        for run in self._runs():
            with asm.loop(run.count):
                at, channels = asm.copy(weights), here.own("o")
                with asm.loop(vectors):
                    _Slide(self, run, channels.own("y"), asm.copy(row), at, lanes).emit(count)
                    asm.advance(at, self.packed.panel_bytes)
                    channels.advance("o", self.level.lanes)
                here.advance("x", run.size)

    def _runs(self) -> list[Run]:
        """The runs of pixels of a row."""
        first, extent = self.guards.get("x", (0, 1 << 31))
        return runs(self.x, self.schedule.pixels, self.stride_x, self.dilation_x, self.s, first,
                    extent)

    def _rows(self, rows: int, line: RegisterResults, row: Register, weights: Register | None,
              vectors: int | Register, lanes: int | None) -> None:
        """Emit `rows` rows of pixels, run by run."""
        here = line.own("x")
        for run in self._runs():
            with self.asm.loop(run.count):
                self._run(rows, run, here, row, weights, vectors, lanes)
                here.advance("x", run.size)

    def _run(self, rows: int, run: Run, here: RegisterResults, row: Register,
             weights: Register | None, vectors: int | Register, lanes: int | None) -> None:
        """Emit the sums and results of a run of pixels of `rows` rows, vector by vector of
        channels."""
        asm = self.asm
        at, position = weights and asm.copy(weights), asm.immediate(0)
        with asm.loop(vectors):
            sums = [self.start(run.size) for _ in range(rows)]
            taps: Taps = {}
            if at is not None and rows > 1:
                taps = self.taps(at, product(range(self.r), range(self.s)))
            reads: dict[int, list[tuple[int, int]]] = {}
            for r, i in product(range(self.r), range(rows)):
                reads.setdefault(i * self.stride_y + r * self.dilation_y, []).append((i, r))
            for down in sorted(reads):
                beyond = self._missing(down, row, self.y - rows)
                self.row_read(run, down, reads[down], here.sources[self.read], at, taps, position,
                               sums, lanes)
                if beyond is not None:
                    self.skipped(beyond, [sums[i] for i, r in reads[down] if r == 0])
            for i in range(rows):
                here.write(sums[i], position, lanes, ("y", i))
            if at is not None:
                asm.advance(at, self.packed.panel_bytes)
            asm.advance(position, self.level.lanes)

    def start(self, size: int) -> list[list[Register]]:
        """New sums of `size` pixels: zero, or the least number for a maximum. Where sums begin with
        their first product, no instruction is needed to make them zero."""
        asm = self.asm
        if self.maximum:
            return [[asm.load_constant(float("-inf"))] for _ in range(size)]
        return [asm.vectors(1) for _ in range(size)] if self.begins else zero_sums(asm, size, 1)

    def taps(self, weights: Register, places: Iterable[tuple[int, int]]) -> Taps:
        """The weights at these places of the window."""
        return {(r, s): self.asm.load(Address(weights, (r * self.s + s) * self.level.bytes))
                for r, s in places}

    def _missing(self, down: int, row: Register, last: int) -> Label | None:
        """Emit a jump to a new label if the row of the input `down` rows behind `row` does not
        exist; None if it does for every first row of pixels up to `last`."""
        asm, (first, extent) = self.asm, self.guards.get("y", (0, 1 << 31))
        if down + first >= 0 and last * self.stride_y + down + first < extent:
            return None
        beyond, reached = asm.label(), asm.copy(row)
        asm.advance(reached, down)
        asm.op("compare_immediate", reached, extent)
        asm.jump("above_equal", beyond)
        return beyond

    def skipped(self, beyond: Label, starts: list[list[list[Register]]]) -> None:
        """Place the label of a row that does not exist; sums that would begin there are zero."""
        asm, end = self.asm, self.asm.label()
        if not starts or not self.begins:
            asm.place(beyond)
            return
        asm.jump("always", end)
        asm.place(beyond)
        for (register,) in (pixel for pixels in starts for pixel in pixels):
            asm.clear(register)
        asm.place(end)

    def row_read(self, run: Run, down: int, uses: list[tuple[int, int]], source: AccessStream,
                  weights: Register | None, taps: Taps, position: Register | None,
                  sums: list[list[list[Register]]], lanes: int | None) -> None:
        """Add the products with a row of the input to all sums that see it.

        `down` is how far it lies behind the first one that is read, `uses` are rows of pixels, and
        which row of the window it is to them.
        """
        inside = [(s, p) for s, p in product(range(self.s), range(run.size))
                  if (p, s) not in run.outside]
        if weights is not None and not taps:
            seen = sorted({s for s, _ in inside})
            taps = self.taps(weights, [(r, s) for _, r in uses for s in seen])
        self._add_row(inside, down, uses, source, taps, position, sums, lanes)

    def _add_row(self, inside: list[tuple[int, int]], down: int, uses: list[tuple[int, int]],
                 source: AccessStream, taps: Taps, position: Register | None,
                 sums: list[list[list[Register]]], lanes: int | None) -> None:
        """Add the products of the pairs (s, pixel) in `inside`, or what is read itself.

        Multiply-adds that have addresses read whole vectors of f32 by themselves; others are
        loaded, and widened, once for all pixels that see them.
        """
        asm, right = self.asm, self.right
        whole = (lanes is None and source.dtype == "f32" and bool(taps) and len(uses) == 1
                 and not self.level.by_lane)
        held: dict[int, Register] = {}
        begun = {register for i, r in uses if r or not self.begins for (register,) in sums[i]}

        def column(s: int, p: int) -> int:
            return p * self.stride_x + s * self.dilation_x

        for s, p in inside if whole else sorted(inside, key=lambda sp: (column(*sp), sp)):
            at = Address(source.base, down * self.down + column(s, p) * right, position,
                         source.size)
            if not whole and column(s, p) not in held:
                held[column(s, p)] = elements.load(asm, source.dtype, at, lanes)
                if self.zero:
                    asm.op("sub", held[column(s, p)], held[column(s, p)],
                           asm.constant(self.zero))
            for i, r in uses:
                (total,) = sums[i][p]
                if taps:
                    factor = at if whole else held[column(s, p)]
                    if total in begun:
                        asm.op("fma", total, taps[r, s], factor)
                    else:
                        asm.op("mul", total, taps[r, s], factor)
                        begun.add(total)
                elif self.maximum:
                    asm.op("copy", total, asm.larger(total, held[column(s, p)]))
                else:
                    asm.op("add", total, total, held[column(s, p)])
        for (total,) in (pixel for i, _ in uses for pixel in sums[i]):
            if total not in begun:
                asm.clear(total)


class _Slide:
    """Emits a run of pixels of one vector of channels, from the first row of a tile down.

    Row t of the input, counted from the first that the tile sees, is row r of the window of the row
    of pixels o where t = o * stride + r * dilation. The rows of pixels that are open at a time have
    sums; when one is written, its sums are those of the next that begins.
    """

    def __init__(self, lowering: _DepthwiseLowering, run: Run, line: RegisterResults, row: Register,
                 weights: Register, lanes: int | None) -> None:
        self.of, self.run, self.row, self.lanes = lowering, run, row, lanes
        self.asm = asm = lowering.asm
        self.source, self.line = line.sources[lowering.read], replace(line, sources={})
        self.taps = lowering.taps(weights, product(range(lowering.r), range(lowering.s)))
        self.sums = [lowering.start(run.size) for _ in range(lowering.open)]
        self.steps = [(stream.base, stream.stride("y") - run.size * stream.stride("x"))
                      for stream in (*self.line.loads.values(), self.line.out)]
        self.held = {amount: asm.immediate(amount)
                     for amount in (lowering.down, *(amount for _, amount in self.steps))}
        self.behind = 0
        """How many rows `row` is behind the one that is read next."""

    def emit(self, count: int | Register) -> None:
        """Emit `count` rows of pixels. Those whose windows may end below the image come last, by
        themselves, so that the loop asks for none."""
        asm, of = self.asm, self.of
        first, extent = of.guards.get("y", (0, 1 << 31))
        above = of.reach - of.stride_y + 1
        for t in range(above):
            self._read(t, not 0 <= t + first < extent - (of.y - 1) * of.stride_y)
        below = sum(y * of.stride_y + of.reach + first >= extent for y in range(of.y))
        checked = below > 1 or above + first < 0
        last = 0 if checked else below
        self._counted()
        if isinstance(count, int):
            turns, left = divmod(count - last, of.open)
            self._turns(turns, checked)
            for o in range(left + last):
                self._pixels(o, True)
            return
        most = asm.copy(count)
        asm.advance(most, -last)
        whole, rest = asm.divide(most, of.open)
        few, end = asm.label(), asm.label()
        asm.op("compare_immediate", whole, 0)
        asm.jump("equal", few)
        self._turns(whole, checked)
        asm.place(few)
        for o in range(of.open - 1 + last):
            if o >= last:
                asm.op("compare_immediate", rest, o - last)
                asm.jump("equal", end)
            self._pixels(o, True)
        asm.place(end)

    def _turns(self, turns: int | Register, checked: bool) -> None:
        """Emit a loop whose turns are as many rows of pixels as are open at a time."""
        if turns == 0:
            return
        with self.asm.loop(turns):
            for o in range(self.of.open):
                self._pixels(o, checked)
            self._counted()

    def _pixels(self, o: int, checked: bool) -> None:
        """Emit what row of pixels `o` reads and none before it has read, and write it."""
        asm, of = self.asm, self.of
        last = o * of.stride_y + of.reach
        for t in range(last - of.stride_y + 1, last + 1):
            self._read(t, checked)
        self.line.write(self.sums[o % of.open], None, self.lanes, stepping=True)
        for base, amount in self.steps:
            asm.op("iadd", base, self.held[amount])

    def _read(self, t: int, checked: bool) -> None:
        """Emit the products with row t of the input; where `checked`, only if it exists."""
        asm, of = self.asm, self.of
        places = [(t - r * of.dilation_y, r) for r in range(of.r)]
        uses = [(at // of.stride_y % of.open, r) for at, r in places
                if at >= 0 and at % of.stride_y == 0]
        if uses:
            beyond = self._beyond() if checked else None
            of.row_read(self.run, 0, uses, self.source, None, self.taps, None, self.sums,
                        self.lanes)
            if beyond is not None:
                of.skipped(beyond, [self.sums[i] for i, r in uses if r == 0])
        asm.op("iadd", self.source.base, self.held[of.down])
        self.behind += 1

    def _beyond(self) -> Label:
        """Emit a jump to a new label if the next row of the input does not exist."""
        asm, beyond = self.asm, self.asm.label()
        self._counted()
        asm.op("compare_immediate", self.row, self.of.guards.get("y", (0, 1 << 31))[1])
        asm.jump("above_equal", beyond)
        return beyond

    def _counted(self) -> None:
        """Let `row` be the one that is read next."""
        self.asm.advance(self.row, self.behind)
        self.behind = 0
