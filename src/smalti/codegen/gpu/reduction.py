"""Reductions: sums and maxima of an expression over axes, and what is made of them.

`share` invocations of a work-group make one result together. Where what is reduced lies side by
side they are neighbours, each reading `lanes` points at once; else neighbours make neighbouring
results, `lanes` each:

    along rows (share 4)    result 0: 0 1 2 3 0 1 2 3 …      across rows      0 1 2 3 4 5 6 7
                            result 1: 4 5 6 7 4 5 6 7 …      (share 2 of 16)  8 9 … 15
                                                                              0 1 2 3 4 5 6 7

In `parts`, several work-groups share a result: each writes its total, and a second step adds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_all, both, unravel, work_groups
from smalti.codegen.gpu.form import Binding, Expr, GroupProgram, number, op
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.totals import COMBINE, Totals, over_lanes, place, start
from smalti.codegen.gpu.types import vector_type
from smalti.codegen.target import WORKSPACE
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, loads
from smalti.schedule.group import GroupLimits, GroupReduction
from smalti.schedule.merge import access, reduction_axes, store


def lower_reduction(kernel: Kernel, schedule: GroupReduction, limits: GroupLimits) -> GroupSteps:
    """A reduction in one step, or in two through the workspace.

    Raises IllegalSchedule where the axis of the lanes is no multiple of them.
    """
    return _Reduction(kernel, schedule, limits).lower()


@dataclass(frozen=True)
class _Layout:
    """Which invocation makes which results: `count` results (or vectors of them) of `points`."""

    share: int
    apart: int
    lanes: int
    count: int
    points: int


class _Reduction:
    def __init__(self, kernel: Kernel, schedule: GroupReduction, limits: GroupLimits) -> None:
        self.kernel, self.schedule, self.limits = kernel, schedule, limits
        self.total, self.out = kernel.stages
        self.axes = reduction_axes(kernel)
        self.results = math.prod(n for _, n in self.axes.kept)
        self.points = math.prod(n for _, n in self.axes.reduced)
        self.reducer = self.total.reducer
        self.lane_axis = self.axes.lanes if schedule.lanes > 1 else ""
        self.kept, self.reduced = (self._in_lanes(axes) for axes in (
            self.axes.kept, self.axes.reduced))

    def _in_lanes(self, axes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        """The axes in steps of `lanes` along theirs."""
        lanes, found = self.schedule.lanes, []
        for name, extent in axes:
            if name == self.lane_axis:
                if extent % lanes:
                    raise IllegalSchedule(f"{lanes} lanes along an axis of {extent}")
                extent //= lanes
            found.append((name, extent))
        return tuple(found)

    def lower(self) -> GroupSteps:
        s, across = self.schedule, self.axes.across
        if s.lanes > 1 and not self.axes.lanes:
            raise IllegalSchedule(f"{s.lanes} lanes of one element")
        lanes = 1 if across else s.lanes
        layout = _Layout(s.share, 1 if across else s.size // s.share, lanes, self.results // lanes,
                         math.prod(n for _, n in self.reduced))
        if s.parts == 1:
            return GroupSteps((self._step("reduction", layout, self._points, self._write),))
        behind = _Layout(1, s.size, 1, self.results, s.parts)
        steps = (self._step("reduction_parts", layout, self._points, self._write_part, s.parts),
                 self._step("reduction_whole", behind, self._part, self._write))
        return GroupSteps(steps, 4 * s.parts * self.results)

    def _step(self, name: str, layout: _Layout, read: Callable[..., Expr],
              write: Callable[..., None], parts: int = 1) -> GroupProgram:
        """Each result is the total of what `read` gives for its points, in `parts` parts."""
        b = Builder(name, self.schedule.size, self.schedule.subgroup)
        self.b = b
        self.bindings = self._bindings(read == self._points, write == self._write)
        at = place(b)
        totals = Totals(b, at, layout.share, layout.apart, layout.lanes)
        each = self.schedule.size // layout.share
        groups = -(-layout.count // each)
        group, grid = work_groups(b, groups * parts, self.limits)
        part, block = (b.let(group // groups), b.let(group % groups)) if parts > 1 else (
            number(0, group.type), group)
        own = at // layout.share if layout.apart == 1 else at % layout.apart
        result = b.let(block * each + own)
        exact = layout.count % each == 0 and math.prod(grid) == groups * parts
        inside = None if exact else b.let(both(result < layout.count, None if (
            math.prod(grid) == groups * parts) else group < groups * parts))
        kept = self._kept(result, layout.lanes)
        width = self.schedule.lanes if self.axes.across and read == self._points else layout.lanes
        held = b.variable(start(self.reducer, width))
        chunk = -(-layout.points // parts)
        first = part * chunk
        stop = b.let(op("min", first + chunk, layout.points)) if parts > 1 else layout.points
        with b.loop(stop, b.let(first + totals.part), layout.share) as point:
            b.set(held, COMBINE[self.reducer](b, held, b.let(read(point, kept, result, inside))))
        total = b.let(totals.total(over_lanes(b, held, self.reducer) if width != layout.lanes
                                   else held, self.reducer))
        where = both(inside, totals.part.equals(0) if layout.share > 1 else None)
        write(total, kept, result, part, where)
        return b.finish(grid)

    def _bindings(self, reads: bool, writes: bool) -> dict[str, Binding]:
        """Bindings of the points, of the results, and of the workspace where one is missing."""
        found = []
        if reads:
            found += [access(self.kernel, load) for load in loads(self.total.value)]
        if writes:
            found += [access(self.kernel, load) for load in loads(self.out.value)
                      if load.buffer != self.total.result]
            found.append(store(self.kernel, self.out.axes, "out"))
        lanes = self.schedule.lanes if reads else 1
        bindings = bind_all(self.b, self.kernel, found, self.lane_axis, lanes)
        if not (reads and writes):
            size = self.schedule.parts * self.results
            bindings[WORKSPACE] = self.b.binding(
                WORKSPACE, "f32", size, "write" if reads else "read",
                1 if self.axes.across or not reads else lanes)
        return bindings

    def _kept(self, result: Expr, lanes: int) -> dict[str, Expr]:
        """Where a result stands along the kept axes."""
        at = unravel(self.b, result, self.kept if lanes > 1 else self.axes.kept)
        if lanes > 1:
            at[self.lane_axis] = self.b.let(at[self.lane_axis] * lanes)
        return at

    def _points(self, point: Expr, kept: Mapping[str, Expr], result: Expr,
                where: Expr | None) -> Expr:
        """The value of a point, or of some side by side."""
        at = unravel(self.b, point, self.reduced)
        if self.axes.across and self.lane_axis:
            at[self.lane_axis] = self.b.let(at[self.lane_axis] * self.schedule.lanes)
        return Values(self.b, self.kernel, self.bindings, {**kept, **at}, self.lane_axis,
                      self.schedule.lanes, where).value(self.total.value)

    def _part(self, part: Expr, kept: Mapping[str, Expr], result: Expr,
              where: Expr | None) -> Expr:
        """The total of a part."""
        return self.b.load(self.bindings[WORKSPACE], part * self.results + result, where=where)

    def _write(self, total: Expr, kept: Mapping[str, Expr], result: Expr, part: Expr,
               where: Expr | None) -> None:
        """A result, epilogue applied."""
        lanes = vector_type(total.type).lanes
        values = Values(self.b, self.kernel, self.bindings, kept, self.lane_axis if lanes > 1
                        else "", lanes, where, given={self.total.result: total})
        values.store(store(self.kernel, self.out.axes, "out"), values.value(self.out.value), where)

    def _write_part(self, total: Expr, kept: Mapping[str, Expr], result: Expr, part: Expr,
                    where: Expr | None) -> None:
        """The total of a part, for the second step."""
        index = part * self.results + result * vector_type(total.type).lanes
        self.b.store(self.bindings[WORKSPACE], index, total, where=where)
