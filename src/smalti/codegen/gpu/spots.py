"""Who of a work-group brings which vector of a factor to shared memory."""

from __future__ import annotations

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import U32, Expr, number, op, select
from smalti.dataclass import dataclass


@dataclass(frozen=True)
class Spot:
    """A vector of a shared array that an invocation brings; `where` it does, None always. `put`
    says where it goes if that is elsewhere. `least` are the smallest places that anybody has."""

    outer: Expr
    inner: Expr
    where: Expr | None = None
    put: tuple[Expr, Expr] | None = None
    least: tuple[int, int] = (0, 0)

    @property
    def place(self) -> tuple[Expr, Expr]:
        """Where the vector goes."""
        return self.put or (self.outer, self.inner)

    def turned(self) -> Spot:
        """The spot with its places the other way round."""
        return Spot(self.inner, self.outer, self.where, self.put and (self.put[1], self.put[0]),
                    (self.least[1], self.least[0]))


def spots(b: Builder, size: int, outer: int, inner: int, pads: str = "",
          once: bool = False) -> list[Spot]:
    """What one of `size` invocations takes of [outer, inner], neighbours along inner.

    In the last turn some may be left over. They bring nothing; or, where there is a pad behind
    each of the lines along `pads`, "outer" or "inner", they bring the last vector once more and put
    it into a pad of their own: that takes no branch. What is brought only `once` is in no loop,
    where a branch costs little: those beyond whole rows are left out of all turns, so that each
    invocation keeps its column, and goes a constant further in each turn; nobody takes addresses
    out of a loop then.
    """
    total, rest = outer * inner, size % inner if once and size > inner else 0
    at, places = _walk(b, size - rest, outer, inner)
    if rest:
        whole = b.let(at < size - rest)
        return [Spot(b.let(op("min", row, outer - 1) if i + size - rest > total else row), column,
                     b.let(whole & (row < outer)) if i + size - rest > total else whole,
                     (row, column), (i // inner, 0))
                for i, (row, column) in zip(range(0, total, size - rest), places)]
    lines = {"outer": outer, "inner": inner}.get(pads, 0)
    found = []
    for i, (place, column) in zip(range(0, total, size), places):
        row = b.let(place)
        last, beyond = i + size > total, i + size - total
        inside = None
        if last:
            inside = row < outer if size % inner == 0 else b.let(at + i) < total
        if inside is None or beyond > lines:
            found.append(Spot(row, column, inside, (place, column) if once else None,
                              (i // inner, 0)))
            continue
        inside = b.let(inside)
        spare = b.let((at + i) - total)
        pad = (spare, number(inner, U32)) if pads == "outer" else (number(outer, U32), spare)
        put = b.let(select(inside, row, pad[0])), b.let(select(inside, column, pad[1]))
        found.append(Spot(b.let(op("min", row, outer - 1)), column, None, put))
    return found


def _walk(b: Builder, size: int, outer: int, inner: int) -> tuple[Expr, list[tuple[Expr, Expr]]]:
    """The number of an invocation, and its places in [outer, inner], turn by turn.

    It keeps its column, or its row, where turns are whole rows, or rows whole turns. If a row is of
    whole subgroups, whose size the program knows, it is the same for all of a subgroup: compilers
    work it out once. Invocations are then counted by subgroups, which need not be how the device
    counts them.
    """
    at: Expr = b.invocation
    known, turns = b.subgroup_size, range(0, outer * inner, size)
    if inner % size == 0:
        return at, [(number(i // inner, U32), b.let(at + i % inner)) for i in turns]
    if size % inner:
        every = [b.let(at + i) for i in turns]
        return at, [(b.let(n // inner), b.let(n % inner)) for n in every]
    if known and inner % known == 0:
        each, at = inner // known, b.let(b.subgroup * known + b.lane)
        first, own = b.let(b.subgroup // each), b.let(b.subgroup % each * known + b.lane)
    else:
        first, own = b.let(at // inner), b.let(at % inner)
    return at, [(first + i // inner, own) for i in turns]


def clamped(b: Builder, at: Expr, tile: int, extent: int, lanes: int = 1) -> Expr:
    """`at`, or the last place from which `lanes` lie in the extent; tiles begin at multiples."""
    return at if extent % tile == 0 else b.let(op("min", at, extent - lanes))
