"""Depthwise convolutions and pooling.

An invocation makes `pixels` results of a row, `lanes` channels of each, and reads a column of the
input once for all of them that see it:

    columns of the input     0 1 2 3 4 5        pixels 4, window 3, stride 1:
    seen by pixel            0 0 0              6 columns instead of 12
                               1 1 1
                                 2 2 2
                                   3 3 3

Neighbours take neighbouring channels. Weights are packed as [r][s][channel]; computed ones are read
where they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_for, both, unravel, work_groups
from smalti.codegen.gpu.form import U32, Expr, Name, Number, number, op, select
from smalti.codegen.gpu.lowered import GroupSteps, stored_dtype
from smalti.codegen.gpu.totals import COMBINE, start
from smalti.codegen.gpu.weight_layout import Packed
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, Load, affine, loads
from smalti.schedule.group import GroupDepthwise, GroupLimits
from smalti.schedule.merge import access, store, weights_bound

TAPS_MAX = 32
"""Taps of a window in straight code."""


def lower_depthwise(kernel: Kernel, schedule: GroupDepthwise, limits: GroupLimits) -> GroupSteps:
    """A depthwise convolution or pooling. Raises IllegalSchedule where the channels are no multiple
    of the lanes."""
    return _Depthwise(kernel, schedule, limits).lower()


def packed_weight(kernel: Kernel) -> Packed:
    """A weight [o, 1, r, s] as [r, s, o]."""
    weight = kernel.buffer("weight")
    o, _, r, s = weight.shape
    return Packed("weight", stored_dtype(weight), 1, o, 1, r * s, r * s, o)


class _Depthwise:
    def __init__(self, kernel: Kernel, schedule: GroupDepthwise, limits: GroupLimits) -> None:
        self.kernel, self.schedule, self.limits = kernel, schedule, limits
        self.patch, self.total, self.result = kernel.stages
        (_, self.batch), (_, self.height), (_, self.width), (_, self.channels) = self.total.axes
        (_, self.rows), (_, self.columns) = self.total.reduced
        read, *weights = loads(self.total.value)
        self.weight = weights[0] if weights else None
        _, row, column, _ = affine(read)
        self.stride = (row.coefficient("y"), column.coefficient("x"))
        self.dilation = (row.coefficient("r"), column.coefficient("s"))
        self.packed = packed_weight(kernel) if weights and weights_bound(kernel) else None
        if self.channels % schedule.lanes:
            raise IllegalSchedule(f"{schedule.lanes} lanes along {self.channels} channels")

    def lower(self) -> GroupSteps:
        """One program."""
        s, b = self.schedule, Builder(self.kernel.form, self.schedule.size)
        self.b = b
        self._bind()
        blocks = -(-self.width // s.pixels)
        axes = (("b", self.batch), ("y", self.height), ("x", blocks),
                ("o", self.channels // s.lanes))
        count = math.prod(n for _, n in axes)
        group, grid = work_groups(b, -(-count // s.size), self.limits)
        index = b.let(group * s.size + b.invocation)
        with b.branch(index < count):
            at = unravel(b, index, axes)
            at["x"], at["o"] = b.let(at["x"] * s.pixels), b.let(at["o"] * s.lanes)
            sums = [b.variable(start(self.total.reducer, s.lanes)) for _ in range(s.pixels)]
            self._window(at, sums)
            for pixel, total in enumerate(sums):
                self._write(at, pixel, total)
        return GroupSteps((b.finish(grid),), packed=self.packed)

    def _bind(self) -> None:
        """Bindings; channels are called "c" where the input is read, else "o"."""
        lanes = self.schedule.lanes
        uses = [(access(self.kernel, load), "c", lanes) for load in loads(self.patch.value)]
        behind = [access(self.kernel, load) for load in loads(self.result.value)
                  if load.buffer != "sum"]
        behind.append(store(self.kernel, self.result.axes, "out"))
        if self.weight is not None and not self.packed:
            behind.append(access(self.kernel, self.weight))
        uses += [(found, "o", lanes) for found in behind]
        self.bindings = bind_for(self.b, self.kernel, uses)
        if self.packed:
            self.bindings["weight"] = self.b.binding(
                "weight", self.packed.dtype, self.packed.elements, "read", lanes)

    def _window(self, at: dict[str, Expr], sums: list[Name]) -> None:
        """Add what each pixel sees: in straight code row by row, or all of it."""
        rows, columns = (n <= TAPS_MAX for n in (self.rows * self.columns, self.columns))
        for r in self._steps(self.rows, rows):
            y = self.b.let(at["y"] * self.stride[0] + r * self.dilation[0])
            seen: dict[int, Expr] = {}
            for s in self._steps(self.columns, columns):
                weight = None if self.weight is None else self._tap(at, r, s)
                for pixel, total in enumerate(sums):
                    self._add(at, y, s, pixel, total, weight, seen if columns else {})

    def _steps(self, count: int, straight: bool) -> Iterator[int | Expr]:
        """The numbers below `count`, or one that a loop counts."""
        if straight:
            yield from range(count)
            return
        with self.b.loop(count) as step:
            yield step

    def _add(self, at: dict[str, Expr], y: Expr, s: int | Expr, pixel: int, total: Name,
             weight: Expr | None, seen: dict[int, Expr]) -> None:
        """Add what one pixel sees in one column."""
        b, column = self.b, s * self.dilation[1] + pixel * self.stride[1]
        if not isinstance(column, int):
            value = self._read(at, y, column)
        else:
            if column not in seen:
                seen[column] = self._read(at, y, column)
            value = seen[column]
        if weight is None:
            b.set(total, COMBINE[self.total.reducer](b, total, value))
        else:
            b.set(total, op("fma", value, weight, total))

    def _read(self, at: dict[str, Expr], y: Expr, column: int | Expr) -> Expr:
        """The patch at a column, as many behind the first pixel's first."""
        b, lanes = self.b, self.schedule.lanes
        place = {"b": at["b"], "y": y, "c": at["o"],
                 "x": b.let(at["x"] * self.stride[1] + column)}
        values = Values(b, self.kernel, self.bindings, place, "c", lanes)
        inside = values.inside(self.patch.guards)
        whole = self.width % self.schedule.pixels == 0
        most = (self.width - 1) * self.stride[1] + (self.columns - 1) * self.dilation[1]
        past = None if whole else place["x"] <= most
        values.where = where = None if (found := both(inside, past)) is None else b.let(found)
        value = values.value(self.patch.value)
        if where is None or isinstance(self.patch.value, Load) and self.patch.outside == 0:
            return value
        return b.let(select(where, value, number(self.patch.outside, value.type)))

    def _tap(self, at: dict[str, Expr], r: int | Expr, s: int | Expr) -> Expr:
        """The weight of the channels at a row and column of the window."""
        b, lanes = self.b, self.schedule.lanes
        if self.packed:
            index = b.let((_expr(r) * self.columns + s) * self.channels + at["o"])
            return b.let(b.load(self.bindings["weight"], index, lanes))
        place = {**at, "r": _expr(r), "s": _expr(s)}
        return Values(b, self.kernel, self.bindings, place, "o", lanes).value(self.weight)

    def _write(self, at: dict[str, Expr], pixel: int, total: Name) -> None:
        """The result of one pixel, epilogue applied."""
        b, lanes = self.b, self.schedule.lanes
        x = b.let(at["x"] + pixel)
        where = None if self.width % self.schedule.pixels == 0 or not pixel else (
            b.let(x < self.width))
        values = Values(b, self.kernel, self.bindings, {**at, "x": x}, "o", lanes, where,
                        given={"sum": total})
        values.store(store(self.kernel, self.result.axes, "out"),
                     values.value(self.result.value), where)


def _expr(step: int | Expr) -> Expr:
    return Number(step, U32) if isinstance(step, int) else step


