"""Depthwise convolutions and pooling: lanes are channels, registers hold the sums of some pixels.

    for each row of pixels, for each run of them, for each vector of channels:
        for each row r of the window, for each column of the input that the run sees there:
            sums[pixel] += input[column] * weight[r, column - pixel]    for those that see it
        write the results of the run, epilogue applied

Weights are packed as [vector][r][s][lane], computed ones by a step in front; pooling has none, and
sums or takes maxima of what it reads. The input is read where it is: rows outside of it are stepped
over, and runs at the left and right border leave out the products that read beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, product

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.lowered import (
    KernelStep,
    NativeKernel,
    count_left,
    load_pointers,
    pointers,
)
from smalti.codegen.cpu.micro import split_rows, zero_sums
from smalti.codegen.cpu.nest import AccessStream, stream_of
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.cpu.results import RegisterResults
from smalti.codegen.cpu.weights import WeightPanels
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Call, Kernel, Load, affine, loads
from smalti.schedule.merge import access, store, weights_bound
from smalti.schedule.schedule import DepthwiseSchedule


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
        self.patch, total, self.result = kernel.stages
        (_, self.b), (_, self.y), (_, self.x), (_, self.o) = total.axes
        (_, self.r), (_, self.s) = total.reduced
        weighted = isinstance(total.value, Call)
        _, row, column, _ = affine(next(loads(total.value)))
        self.stride_y, self.dilation_y = row.coefficient("y"), row.coefficient("r")
        self.stride_x, self.dilation_x = column.coefficient("x"), column.coefficient("s")
        self.guards = {index.terms[0][0]: (index.offset, extent)
                       for index, extent in self.patch.guards}
        read = self.patch.value
        self.packed = WeightPanels("weight", self.o, 1, self.r, self.s, level.lanes, 1,
                                   "f32") if weighted else None
        self.maximum = total.reducer == "max"
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
        source = replace(source, strides={"y": down * self.stride_y, "x": right * self.stride_x})
        self.taps = (down * self.dilation_y, right)
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
        first, extent = self.guards.get("x", (0, 1 << 31))
        with results.walk("y", count_left(asm, y, self.schedule.tile_y, self.y)) as line:
            here = line.own("x")
            for run in runs(self.x, self.schedule.pixels, self.stride_x, self.dilation_x, self.s,
                            first, extent):
                with asm.loop(run.count):
                    self._run(run, here, row, weights, vectors, lanes)
                    here.advance("x", run.size)
            asm.advance(row, self.stride_y)

    def _run(self, run: Run, here: RegisterResults, row: Register, weights: Register | None,
             vectors: int | Register, lanes: int | None) -> None:
        """Emit the sums and results of one run of pixels, vector by vector of channels."""
        asm = self.asm
        at, position = weights and asm.copy(weights), asm.immediate(0)
        with asm.loop(vectors):
            sums = zero_sums(asm, run.size, 1) if not self.maximum else [
                [asm.load_constant(float("-inf"))] for _ in range(run.size)]
            for r in range(self.r):
                beyond = asm.label()
                if "y" in self.guards:
                    reached = asm.copy(row)
                    asm.advance(reached, r * self.dilation_y)
                    asm.op("compare_immediate", reached, self.guards["y"][1])
                    asm.jump("above_equal", beyond)
                self._add_row(run, r, here.sources[self.read], at, position, sums, lanes)
                asm.place(beyond)
            here.write(sums, position, lanes)
            if at is not None:
                asm.advance(at, self.packed.panel_bytes)
            asm.advance(position, self.level.lanes)

    def _add_row(self, run: Run, r: int, source: AccessStream, weights: Register | None,
                 position: Register, sums: list[list[Register]], lanes: int | None) -> None:
        """Add the products with row `r` of the window to the sums of a run, or the row itself.

        Multiply-adds that have addresses read whole vectors of f32 by themselves; others are
        loaded, and widened, once for all pixels that see them.
        """
        asm, down, right = self.asm, *self.taps
        inside = [(s, p) for s, p in product(range(self.s), range(run.size))
                  if (p, s) not in run.outside]
        taps = {s: asm.load(Address(weights, (r * self.s + s) * self.level.bytes))
                for s in sorted({s for s, _ in inside})} if weights is not None else {}
        whole = (lanes is None and source.dtype == "f32" and bool(taps)
                 and not self.level.by_lane)
        held: dict[int, Register] = {}

        def column(s: int, p: int) -> int:
            return p * self.stride_x + s * self.dilation_x

        for s, p in inside if whole else sorted(inside, key=lambda sp: (column(*sp), sp)):
            at = Address(source.base, r * down + column(s, p) * right, position, source.size)
            if not whole and column(s, p) not in held:
                held[column(s, p)] = elements.load(asm, source.dtype, at, lanes)
            if taps:
                asm.op("fma", sums[p][0], taps[s], at if whole else held[column(s, p)])
            elif self.maximum:
                asm.op("copy", sums[p][0], asm.larger(sums[p][0], held[column(s, p)]))
            else:
                asm.op("add", sums[p][0], sums[p][0], held[column(s, p)])
