"""Who of a work-group brings which vector of a factor to shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import U32, Expr, number, op, select


@dataclass(frozen=True)
class Spot:
    """A vector of a shared array that an invocation brings; `where` it does, None always. `put`
    says where it goes if that is elsewhere."""

    outer: Expr
    inner: Expr
    where: Expr | None = None
    put: tuple[Expr, Expr] | None = None

    @property
    def place(self) -> tuple[Expr, Expr]:
        """Where the vector goes."""
        return self.put or (self.outer, self.inner)

    def turned(self) -> Spot:
        """The spot with its places the other way round."""
        return Spot(self.inner, self.outer, self.where, self.put and (self.put[1], self.put[0]))


def spots(b: Builder, size: int, outer: int, inner: int, pads: str = "") -> list[Spot]:
    """What one of `size` invocations takes of [outer, inner], neighbours along inner.

    In the last turn some may be left over. They bring nothing; or, where there is a pad behind
    each of the lines along `pads`, "outer" or "inner", they bring the last vector once more and put
    it into a pad of their own: that takes no branch.
    """
    at, total = b.invocation, outer * inner
    lines = {"outer": outer, "inner": inner}.get(pads, 0)
    found = []
    for i, (row, column) in zip(range(0, total, size), _walk(b, size, outer, inner)):
        last, beyond = i + size > total, i + size - total
        inside = None
        if last:
            inside = row < outer if size % inner == 0 else b.let(at + i) < total
        if inside is None or beyond > lines:
            found.append(Spot(row, column, inside))
            continue
        inside = b.let(inside)
        spare = b.let((at + i) - total)
        put = (spare, number(inner, U32)) if pads == "outer" else (number(outer, U32), spare)
        place = (b.let(select(inside, row, put[0])), b.let(select(inside, column, put[1])))
        found.append(Spot(b.let(op("min", row, outer - 1)), column, None, place))
    return found


def _walk(b: Builder, size: int, outer: int, inner: int) -> Iterator[tuple[Expr, Expr]]:
    """The places of an invocation in [outer, inner], turn by turn. It keeps its column, or its row,
    where turns are whole rows, or rows whole turns; then a row of whole subgroups is the same for
    all of a subgroup, whose size the program knows: compilers work it out once."""
    at, known = b.invocation, b.subgroup_size
    turns = range(0, outer * inner, size)
    if inner % size == 0:
        for i in turns:
            yield number(i // inner, U32), b.let(at + i % inner)
    elif size % inner == 0:
        if known and inner % known == 0 and inner > known:
            each = inner // known
            first, own = b.subgroup // each, b.subgroup % each * known + b.lane
        elif known == inner:
            first, own = b.subgroup, b.lane
        else:
            first, own = at // inner, at % inner
        first, own = b.let(first), b.let(own)
        for i in turns:
            yield b.let(first + i // inner), own
    else:
        for i in turns:
            n = b.let(at + i)
            yield b.let(n // inner), b.let(n % inner)


def clamped(b: Builder, at: Expr, tile: int, extent: int, lanes: int = 1) -> Expr:
    """`at`, or the last place from which `lanes` lie in the extent; tiles begin at multiples."""
    return at if extent % tile == 0 else b.let(op("min", at, extent - lanes))
