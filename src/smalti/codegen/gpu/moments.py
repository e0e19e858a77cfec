"""Statistics of normalisations: scale and shift, so that normalising is one multiply-add.

Sums are taken of differences to one of the elements, and squares of differences to the mean; parts
are combined through their means (Chan, Golub & LeVeque 1983): a large mean costs no precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_all, both, unravel, work_groups
from smalti.codegen.gpu.form import Expr, GroupProgram, op, select, spread
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.totals import Totals, over_lanes, place, start
from smalti.codegen.target import WORKSPACE
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, Load, axis, loads
from smalti.schedule.group import HELD, GroupLimits, GroupMoments
from smalti.schedule.merge import Access, access, store


def largest_share(count: int, size: int) -> int:
    """The largest power of two that divides `size` and is not above `count`.

    >>> largest_share(320, 256), largest_share(20, 192)
    (256, 16)
    """
    return min(size & -size, 1 << (count.bit_length() - 1))


def lower_rows(kernel: Kernel, schedule: GroupMoments, limits: GroupLimits) -> GroupSteps:
    """A layer_scale_shift or rms_scale: `share` invocations for each row, or head of it."""
    return GroupSteps((_Rows(kernel, schedule, limits).program(),))


def lower_group(kernel: Kernel, schedule: GroupMoments, limits: GroupLimits) -> GroupSteps:
    """A group_scale_shift: in one step with `share` invocations for each group; or first channel by
    channel in `parts` of the pixels, then from these for each group."""
    if schedule.parts == 1:
        return GroupSteps((_Groups(kernel, schedule, limits).program(),))
    parts = _Parts(kernel, schedule, limits)
    return GroupSteps((parts.channels(), _Combined(kernel, schedule, limits, parts).program()),
                   4 * parts.elements)


@dataclass(frozen=True)
class Sums:
    """Sums over `count` points, dealt out to the invocations that share a result.

    `read` gives the values of a point by its number, anything where it is not to be read; few of
    them are read once, and kept.
    """

    b: Builder
    totals: Totals
    count: int
    lanes: int
    read: Callable[[Expr, Expr | None], tuple[Expr, ...]]

    @cached_property
    def kept(self) -> list[tuple[tuple[Expr, ...], Expr | None]]:
        """The values of all points of an invocation, and where there is such a point."""
        share, found = self.totals.share, []
        if self.count <= HELD * share:
            for first in range(0, self.count, share):
                at = self.b.let(self.totals.part + first)
                where = None if first + share <= self.count else self.b.let(at < self.count)
                found.append((self.read(at, where), where))
        return found

    def total(self, term: Callable[..., Expr], everywhere: bool = True) -> Expr:
        """The sum of what `term` makes of the values of each point."""
        b, zero = self.b, start("sum", self.lanes)
        if self.kept:
            terms = [b.let(term(*values)) if where is None else
                     b.let(select(where, term(*values), zero)) for values, where in self.kept]
            total = sum(terms[1:], terms[0])
        else:
            total = b.variable(zero)
            with b.loop(self.count, self.totals.part, self.totals.share) as at:
                b.set(total, total + b.let(term(*self.read(at, None))))
        return b.let(self.totals.total(over_lanes(b, b.let(total), "sum"), "sum", everywhere))


class _Rows:
    """Statistics of rows, whose elements lie side by side; `share` invocations for each."""

    def __init__(self, kernel: Kernel, schedule: GroupMoments, limits: GroupLimits) -> None:
        self.kernel, self.schedule, self.limits = kernel, schedule, limits
        first = kernel.stages[0]
        self.x = access(kernel, next(loads(first.value)))
        self.axes, self.reduced = first.axes, first.reduced[::-1]
        self.lane, extent = self.reduced[-1]
        self.elements = math.prod(n for _, n in self.reduced)
        if extent % schedule.lanes:
            raise IllegalSchedule(f"{schedule.lanes} lanes along an axis of {extent}")

    def program(self) -> GroupProgram:
        """One program."""
        s, count = self.schedule, math.prod(n for _, n in self.axes)
        b = self.b = Builder(self.kernel.form, s.size, s.subgroup)
        self.bind()
        at, each = place(b), s.size // s.share
        self.totals = Totals(b, at, s.share, 1)
        group, grid = work_groups(b, -(-count // each), self.limits)
        number = b.let(group * each + at // s.share)
        whole = count % each == 0 and math.prod(grid) * each == count
        self.inside = None if whole else b.let(number < count)
        self.row = unravel(b, number, self.axes)
        self.finish(*self.statistics())
        return b.finish(grid)

    def bind(self) -> None:
        """Bindings of what is read and written."""
        self.bindings = bind_all(self.b, self.kernel, (self.x, *self.others(), *self.outputs()),
                                 self.lane, self.schedule.lanes)

    def others(self) -> Sequence[Access]:
        """What is read besides x."""
        return ()

    def outputs(self) -> list[Access]:
        """Where the statistics go."""
        return [store(self.kernel, stage.axes, stage.result) for stage in self.kernel.stages
                if self.kernel.buffer(stage.result).role == "output"]

    def values(self, at: Mapping[str, Expr], lane: str = "", lanes: int = 1,
               where: Expr | None = None) -> Values:
        """Reads at a place of this row."""
        return Values(self.b, self.kernel, self.bindings, {**self.row, **at}, lane, lanes,
                      both(self.inside, where))

    def read(self, at: Expr, where: Expr | None) -> tuple[Expr, ...]:
        """The elements of a point of the row, side by side."""
        b, lanes = self.b, self.schedule.lanes
        place = unravel(b, at, (*self.reduced[:-1],
                                (self.lane, self.reduced[-1][1] // lanes)))
        place[self.lane] = b.let(place[self.lane] * lanes)
        return (b.let(self.values(place, self.lane, lanes, where).load(self.x).to("f32")),)

    def statistics(self) -> tuple[Expr | None, Expr]:
        """The mean (None where it plays no part) and the inverse deviation."""
        b, lanes = self.b, self.schedule.lanes
        sums = Sums(b, self.totals, self.elements // lanes, lanes, self.read)
        if self.kernel.form == "rms_scale":
            return None, self.inverse(sums.total(lambda x: x * x, everywhere=False))
        first = b.let(self.values({}).load(self.x).to("f32"))
        shift = b.let(spread(first, lanes))
        moved = sums.total(lambda x: x - shift)
        mean = b.let(op("fma", moved, 1 / self.elements, first))
        middle = b.let(spread(mean, lanes))

        def square(x: Expr) -> Expr:
            rest = b.let(x - middle)
            return rest * rest

        return mean, self.inverse(sums.total(square))

    def inverse(self, squares: Expr) -> Expr:
        """1 / sqrt(the mean of `squares` + epsilon)."""
        variance = op("fma", squares, 1 / self.elements, self.kernel.option("epsilon"))
        return self.b.let(1.0 / op("sqrt", variance))

    def finish(self, mean: Expr | None, inverse: Expr) -> None:
        """Write the statistics of a row."""
        results = [inverse] if mean is None else [inverse, -(mean * inverse)]
        where = both(self.inside, self.totals.part.equals(0) if self.totals.share > 1 else None)
        values = self.values({})
        for found, result in zip(self.outputs(), results, strict=True):
            values.store(found, result, where)


class _Groups(_Rows):
    """Statistics of groups of channels; scale and shift for each channel of them."""

    def others(self) -> Sequence[Access]:
        return [access(self.kernel, Load(name, (axis("c"),))) for name in ("gamma", "beta")]

    def finish(self, mean: Expr | None, inverse: Expr) -> None:
        b, each = self.b, self.kernel.buffer("x").shape[1] // int(self.kernel.option("groups"))
        (gamma, beta), (scale, shift) = self.others(), self.outputs()
        with b.loop(each, self.totals.part, self.totals.share) as i:
            at = {"n": self.row["n"], "c": b.let(self.row["g"] * each + i)}
            values = self.values(at)
            factor = b.let(values.load(gamma).to("f32") * inverse)
            values.store(scale, factor, self.inside)
            values.store(shift, values.load(beta).to("f32") - mean * factor, self.inside)


class _Parts:
    """workspace[n][part] = mean [c], then the sum of squared differences to it [c]."""

    def __init__(self, kernel: Kernel, schedule: GroupMoments, limits: GroupLimits) -> None:
        self.kernel, self.schedule, self.limits = kernel, schedule, limits
        self.batch, self.channel_count, self.pixels = kernel.buffer("x").shape
        self.pixels_each = -(-self.pixels // schedule.parts)
        self.parts = -(-self.pixels // self.pixels_each)
        self.elements = 2 * self.batch * self.parts * self.channel_count
        if schedule.parts > self.pixels:
            raise IllegalSchedule(f"{self.pixels} pixels in {schedule.parts} parts")
        if self.channel_count % schedule.lanes:
            raise IllegalSchedule(f"{schedule.lanes} lanes along {self.channel_count} channels")

    def pixels_of(self, b: Builder, part: Expr) -> Expr:
        """How many pixels a part has."""
        left = self.pixels - part * self.pixels_each
        return b.let(op("min", left, self.pixels_each))

    def channels(self) -> GroupProgram:
        """Neighbours take neighbouring channels, `share` of them the pixels in turn."""
        s, x = self.schedule, access(self.kernel, Load("x", tuple(map(axis, "ncp"))))
        b = Builder("group_parts", s.size)
        bindings = bind_all(b, self.kernel, (x,), "c", s.lanes)
        aligned = s.lanes if self.channel_count % s.lanes == 0 else 1
        workspace = b.binding(WORKSPACE, "f32", self.elements, "write", aligned)
        vectors, across = self.channel_count // s.lanes, s.size // s.share
        blocks = -(-vectors // across)
        group, grid = work_groups(b, self.batch * self.parts * blocks, self.limits)
        at = unravel(b, group, (("n", self.batch), ("part", self.parts), ("block", blocks)))
        own = b.let(at["block"] * across + b.invocation % across)
        inside = b.let(both(own < vectors, at["n"] < self.batch))
        place = {"n": at["n"], "c": b.let(own * s.lanes)}
        first, count = b.let(at["part"] * self.pixels_each), self.pixels_of(b, at["part"])
        totals = Totals(b, b.invocation, s.share, across, s.lanes)

        def read(pixel: Expr) -> Expr:
            values = Values(b, self.kernel, bindings, {**place, "p": pixel}, "c", s.lanes, inside)
            return b.let(values.load(x).to("f32"))

        shift = read(first)
        sums, squares = (b.variable(start("sum", s.lanes)) for _ in range(2))
        with b.loop(b.let(first + count), b.let(first + totals.part), s.share) as pixel:
            rest = b.let(read(pixel) - shift)
            b.set(sums, sums + rest)
            b.set(squares, op("fma", rest, rest, squares))
        total, square = b.let(totals.total(sums)), b.let(totals.total(squares))
        rest = b.let(total / spread(count.to("f32"), s.lanes))
        row = (at["n"] * self.parts + at["part"]) * 2
        target = b.let(row * self.channel_count + place["c"])
        where = b.let(both(inside, totals.part.equals(0)))
        b.store(workspace, target, shift + rest, where=where)
        b.store(workspace, target + self.channel_count, square - rest * total, where=where)
        return b.finish(grid)


class _Combined(_Groups):
    """Statistics of groups, from those of parts of their channels."""

    def __init__(self, kernel: Kernel, schedule: GroupMoments, limits: GroupLimits,
                 parts: _Parts) -> None:
        each = parts.channel_count // int(kernel.option("groups"))
        share = largest_share(parts.parts * each, schedule.size)
        super().__init__(kernel, replace(schedule, share=share, lanes=1), limits)
        self.parts = parts

    def bind(self) -> None:
        b = self.b
        self.bindings = bind_all(b, self.kernel, (*self.others(), *self.outputs()))
        self.workspace = b.binding(WORKSPACE, "f32", self.parts.elements, "read")

    def read(self, at: Expr, where: Expr | None) -> tuple[Expr, ...]:
        """The mean, the squares and the number of pixels of a channel in a part."""
        b, (i, each) = self.b, self.reduced[-1]
        parts, channels = self.parts, self.parts.channel_count
        place = unravel(b, at, (("part", parts.parts), (i, each)))
        row = (self.row["n"] * parts.parts + place["part"]) * 2
        index = b.let(row * channels + self.row["g"] * each + place[i])
        mean, squares = (b.let(b.load(self.workspace, index + offset,
                                      where=both(self.inside, where)))
                         for offset in (0, channels))
        return mean, squares, b.let(parts.pixels_of(b, place["part"]).to("f32"))

    def statistics(self) -> tuple[Expr | None, Expr]:
        b, each = self.b, self.reduced[-1][1]
        sums = Sums(b, self.totals, self.parts.parts * each, 1, self.read)
        origin = self.parts.parts * 2 * self.parts.channel_count
        first = b.let(b.load(self.workspace, self.row["n"] * origin + self.row["g"] * each,
                             where=self.inside))
        moved = sums.total(lambda mean, _, count: (mean - first) * count)
        whole = b.let(op("fma", moved, 1 / self.elements, first))

        def spread_of(mean: Expr, squares: Expr, count: Expr) -> Expr:
            rest = b.let(mean - whole)
            return op("fma", rest * rest, count, squares)

        return whole, self.inverse(sums.total(spread_of))
