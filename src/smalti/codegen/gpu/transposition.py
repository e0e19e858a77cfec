"""Maps whose operands lie in another order than their results: through tiles in shared memory.

    read      neighbours along `across`, where elements of the operand lie side by side
    write     neighbours along the last axis, where those of the result do

A tile is `tile` by `tile` elements; its rows in shared memory lie one element further apart than
they are long, so that columns are read from different banks.
"""

from __future__ import annotations

import math

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_all, unravel, work_groups
from smalti.codegen.gpu.form import Expr, Shared
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, Load
from smalti.schedule.group import GroupLimits, GroupTransposition
from smalti.schedule.merge import access, crossed, map_axes, store


def lower_transposition(kernel: Kernel, schedule: GroupTransposition,
                        limits: GroupLimits) -> GroupSteps:
    """A map in tiles. Raises IllegalSchedule where no operand lies side by side along another axis
    than the result."""
    return _Transposition(kernel, schedule, limits).lower()


class _Transposition:
    def __init__(self, kernel: Kernel, schedule: GroupTransposition, limits: GroupLimits) -> None:
        self.kernel, self.schedule, self.limits = kernel, schedule, limits
        (self.stage,) = kernel.stages
        self.axes, self.accesses = map_axes(kernel)
        found = crossed(kernel)
        if found is None:
            raise IllegalSchedule("no operand lies across the result")
        self.across, self.staged = found
        self.last = self.axes[-1][0]
        self.extents = dict(self.axes)

    def lower(self) -> GroupSteps:
        """One program: a work-group for each tile."""
        s, tile = self.schedule, self.schedule.tile
        b = self.b = Builder("transposition", s.size)
        out = store(self.kernel, self.stage.axes, "out")
        self.bindings = bind_all(b, self.kernel, (*self.accesses, out))
        arrays = {load: b.shared(f"tile{i}", "f32", tile * (tile + 1))
                  for i, load in enumerate(self.staged)}
        tiles = [(name, -(-n // tile) if name in (self.across, self.last) else n)
                 for name, n in self.axes]
        group, grid = work_groups(b, math.prod(n for _, n in tiles), self.limits)
        self.origin = unravel(b, group, tiles)
        for name in (self.across, self.last):
            self.origin[name] = b.let(self.origin[name] * tile)
        self._stage(arrays)
        b.barrier()
        with b.loop(tile * tile, b.invocation, s.size) as point:
            column, row = b.let(point % tile), b.let(point // tile)
            values = self._values(row, column)
            values.known.update({load: b.let(b.load(array, column * (tile + 1) + row))
                                 for load, array in arrays.items()})
            with b.branch(values.where):
                values.store(out, values.value(self.stage.value))
        return GroupSteps((b.finish(grid),))

    def _stage(self, arrays: dict[Load, Shared]) -> None:
        """What lies across the result, read along itself."""
        b, tile = self.b, self.schedule.tile
        with b.loop(tile * tile, b.invocation, self.schedule.size) as point:
            row, column = b.let(point % tile), b.let(point // tile)
            values = self._values(row, column)
            for load, array in arrays.items():
                read = values.load(access(self.kernel, load)).to("f32")
                b.store(array, column * (tile + 1) + row, read)

    def _values(self, row: Expr, column: Expr) -> Values:
        """Reads at a row (along `across`) and a column (along the last axis) of the tile."""
        b, at = self.b, dict(self.origin)
        for name, own in ((self.across, row), (self.last, column)):
            at[name] = b.let(at[name] + own)
        inside = (at[self.across] < self.extents[self.across]) & (
            at[self.last] < self.extents[self.last])
        first = self.axes[0][0]
        if first not in (self.across, self.last):
            inside = inside & (at[first] < self.extents[first])
        return Values(b, self.kernel, self.bindings, at, where=b.let(inside))
