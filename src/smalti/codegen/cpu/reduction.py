"""Reductions: sums and maxima of an expression over axes, and what is made of them.

Lanes run along results where those lie side by side (the mean of an image), and along what is
reduced where that does (the sum of a row), in which case they are combined in the end:

    for each vector of results:                      for each result:
        for each reduced point:                          for each vector of reduced points:
            total[way] += value                              total[way] += value
        combine the ways                                 combine the ways, then the lanes
        write the results, epilogue applied              write the result, epilogue applied
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import reduce

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.functions import evaluate
from smalti.codegen.cpu.lowered import KernelStep, NativeKernel, count_left, load_pointers, pointers
from smalti.codegen.cpu.nest import AccessStream, stream_of
from smalti.codegen.cpu.operands import Register
from smalti.codegen.cpu.results import RegisterResults, load_lanes
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Expr, Kernel, Load, loads
from smalti.schedule.merge import access, reduction_axes, store
from smalti.schedule.schedule import ReductionSchedule

Combine = Callable[[Register, Register], Register]
LEAST = {"sum": 0.0, "max": float("-inf")}


def lower_reduction(kernel: Kernel, schedule: ReductionSchedule,
                    level: FeatureLevel) -> NativeKernel:
    """Machine code of a reduction."""
    return _ReductionLowering(kernel, schedule, level).lower()


class _ReductionLowering:
    def __init__(self, kernel: Kernel, schedule: ReductionSchedule, level: FeatureLevel) -> None:
        self.kernel, self.schedule, self.level = kernel, schedule, level
        self.total, self.out = kernel.stages
        self.axes = reduction_axes(kernel)
        self.asm = asm = level.assembler("reduction")
        self.least = LEAST[self.total.reducer]
        self.combine: Combine = (
            (lambda a, b: asm.result("add", a, b)) if self.total.reducer == "sum"
            else asm.larger)
        if schedule.grain < 1 or schedule.ways < 1:
            raise IllegalSchedule(f"{schedule} does nothing")

    def lower(self) -> NativeKernel:
        """Emit everything: a tile is some vectors of results, or some results."""
        asm, level = self.asm, self.level
        table, index = asm.argument(), asm.argument()
        self.names = pointers(self.kernel)
        self.pointers = load_pointers(asm, table, self.names)
        *outer, (name, extent) = self.axes.kept or (("", 1),)
        step = 1 if self.axes.across else level.lanes
        whole, tail = divmod(extent, step)
        blocks = -(-whole // self.schedule.grain)
        rest, block = asm.divide(asm.copy(index), blocks + bool(tail))
        origins, tiles = {}, blocks + bool(tail)
        for axis, steps in reversed(outer):
            rest, origins[axis] = asm.divide(rest, steps)
            tiles *= steps
        first = asm.offset(asm.immediate(0), block, self.schedule.grain)
        origins[name] = asm.offset(asm.immediate(0), first, step)
        results = self._results(origins, name)
        last, end = asm.label(), asm.label()
        if tail:
            asm.op("compare_immediate", block, blocks)
            asm.jump("equal", last)
        if whole:
            count = count_left(asm, first, self.schedule.grain, whole)
            with results.walk(name, count, step) as here:
                self._one(here, None)
        if tail:
            asm.jump("always", end)
            asm.place(last)
            results.advance(name, (whole - blocks * self.schedule.grain) * step)
            self._one(results, tail)
            asm.place(end)
        return NativeKernel((KernelStep(asm.finish(), tiles),), self.names)

    def _results(self, origins: dict[str, Register], lane: str) -> RegisterResults:
        """Streams at the first result of a tile."""
        asm, kernel = self.asm, self.kernel

        def streams(value: Expr) -> Iterator[tuple[Load, AccessStream]]:
            for load in dict.fromkeys(loads(value)):
                if load.buffer != "total":
                    yield load, stream_of(asm, access(kernel, load), self.pointers, origins)

        out = stream_of(asm, store(kernel, self.out.axes, "out"), self.pointers, origins)
        return RegisterResults(asm, self.out.value, "total", dict(streams(self.out.value)), out, "",
                               "" if self.axes.across else lane, dict(streams(self.total.value)))

    def _one(self, results: RegisterResults, lanes: int | None) -> None:
        """Emit one vector of results of which `lanes` count, or one result."""
        asm, axes = self.asm, self.axes
        reduced = axes.reduced or (("", 1),)
        ways = max(1, min(self.schedule.ways, self._steps(reduced[-1][1])))
        start = [asm.load_constant(self.least) for _ in range(ways)]
        with ExitStack() as stack:
            here = results
            for name, extent in reduced[:-1]:
                here = stack.enter_context(here.walk(name, extent))
            self._innermost(here.own(reduced[-1][0]), *reduced[-1], start, lanes)
        total = reduce(self.combine, start)
        if axes.across:
            total = asm.over_lanes(total, self.combine)
        results.write([[total]], lanes=None if axes.across else lanes)

    def _steps(self, extent: int) -> int:
        """Steps along the innermost reduced axis: points, or whole vectors."""
        return extent // self.level.lanes if self.axes.across else extent

    def _innermost(self, here: RegisterResults, name: str, extent: int, totals: list[Register],
                   lanes: int | None) -> None:
        """Add everything along the innermost reduced axis to the totals, in turn."""
        asm, step = self.asm, self.level.lanes if self.axes.across else 1
        turns, left = divmod(self._steps(extent), len(totals))
        if turns:
            with asm.loop(turns):
                for total in totals:
                    self._add(here, total, lanes)
                    here.advance(name, step)
        for total in totals[:left]:
            self._add(here, total, lanes)
            here.advance(name, step)
        tail = extent % step
        if tail:
            self._add(here, totals[0], tail)

    def _add(self, here: RegisterResults, total: Register, lanes: int | None) -> None:
        """Combine one vector with `total`; of its lanes, only `lanes` count."""
        asm, axes = self.asm, self.axes
        along = axes.lanes if axes.across else here.lane

        def load(load: Load) -> Register:
            return load_lanes(asm, here.sources[load], along, lanes=lanes)

        value = evaluate(asm, self.total.value, load, {})
        if axes.across and lanes is not None:
            value = self._padded(value, lanes)
        if self.total.reducer == "sum":
            asm.op("add", total, total, value)
        else:
            asm.op("copy", total, self.combine(total, value))

    def _padded(self, value: Register, lanes: int) -> Register:
        """`value` with what changes no total behind its first `lanes`."""
        asm, width = self.asm, self.level.lanes
        bits = [-1] * lanes + [0] * (width - lanes)
        value = asm.result("and", value, asm.integers(bits))
        if self.least == 0:
            return value
        infinite = [0] * lanes + [-0x800000] * (width - lanes)
        return asm.result("or", value, asm.integers(infinite))
