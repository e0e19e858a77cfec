"""Totals over invocations of a work-group: through subgroups where their size is known, and through
shared memory by halves.

    share 8, apart 2    invocations 0 2 4 6 8 10 12 14 hold parts of one result, 1 3 5 … of the next
    in a subgroup of 4  lanes exchange what they hold: 1, then 2 lanes apart
    by halves           those 8 apart are added, then those 4 and 2 apart
"""

from __future__ import annotations

from collections.abc import Callable

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import both
from smalti.codegen.gpu.form import U32, Expr, Number, Shared, number, op
from smalti.codegen.gpu.functions import larger
from smalti.codegen.gpu.types import VectorType, vector_type

Combine = Callable[[Builder, Expr, Expr], Expr]
COMBINE: dict[str, Combine] = {"sum": lambda b, x, y: x + y, "max": larger}
LEAST = {"sum": 0.0, "max": float("-inf")}


def place(b: Builder) -> Expr:
    """The number of an invocation in its group, so that those of a subgroup are neighbours."""
    if not b.subgroup_size:
        return b.invocation
    return b.let(b.subgroup * b.subgroup_size + b.lane)


class Totals:
    """Combines what `share` invocations hold, `apart` of each other, in groups of `b.size`.

    `share` is a power of two. Values may be vectors of `lanes`. With `subgroup_size` of the builder
    and neighbours (`apart` 1), subgroups exchange values without shared memory.
    """

    def __init__(self, b: Builder, at: Expr, share: int, apart: int, lanes: int = 1) -> None:
        self.b, self.at, self.share, self.apart, self.lanes = b, at, share, apart, lanes
        self.part = b.let(at % share if apart == 1 else at // apart)
        self.exchanged = min(share, b.subgroup_size) if apart == 1 and b.subgroup_size else 1
        self.left = share // self.exchanged
        self.arrays: list[Shared] = []
        self._used = 0

    def total(self, value: Expr, reducer: str = "sum", everywhere: bool = False) -> Expr:
        """The total of `value`, known to part 0 of those who share a result, or `everywhere`.

        All invocations of the group have to be here.
        """
        b, combine = self.b, COMBINE[reducer]
        value, distance = b.let(value), 1
        while distance < self.exchanged:
            other = op("subgroup_shuffle_xor", value, Number(distance, U32))
            value = b.let(combine(b, value, other))
            distance *= 2
        if self.left == 1:
            return value
        array, step, half = self._array(), self.lanes * self.apart, self.left // 2
        held, slot = (b.let(x) for x in (self.part // self.exchanged,
                                           self.at // self.exchanged * self.lanes))
        first = None if self.exchanged == 1 else b.let((self.part % self.exchanged).equals(0))
        b.store(array, slot, value, where=first)
        b.barrier()
        while half:
            with b.branch(both(held < half, first)):
                near, far = (b.let(b.load(array, slot + d, self.lanes)) for d in (0, half * step))
                b.store(array, slot, combine(b, near, far))
            if half > 1 or everywhere:
                b.barrier()
            half //= 2
        if not everywhere:
            return b.load(array, slot, self.lanes, where=self.part.equals(0))
        return b.let(b.load(array, slot - held * step, self.lanes))

    def _array(self) -> Shared:
        """A shared array that nobody may still be reading: two take turns."""
        if len(self.arrays) < 2:
            self.arrays.append(self.b.shared(f"totals{len(self.arrays)}", "f32",
                                             self.b.size // self.exchanged * self.lanes,
                                             self.lanes))
        self._used += 1
        return self.arrays[(self._used - 1) % 2]


def start(reducer: str, lanes: int) -> Number:
    """What changes no total."""
    return number(LEAST[reducer], VectorType("f32", lanes))


def over_lanes(b: Builder, value: Expr, reducer: str) -> Expr:
    """The total of the lanes of a vector, in pairs."""
    many = vector_type(value.type).lanes
    lanes = [b.let(value.lane(i)) for i in range(many)] if many > 1 else [value]
    while len(lanes) > 1:
        lanes = [b.let(COMBINE[reducer](b, x, y)) for x, y in zip(lanes[::2], lanes[1::2])]
    return lanes[0]
