"""Who of a work-group brings which vector of a factor to shared memory."""

from __future__ import annotations

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
    whole, found = size % inner == 0, []
    first, own = (b.let(at // inner), b.let(at % inner)) if whole else (at, at)
    for i in range(0, total, size):
        last, beyond = i + size > total, i + size - total
        n = at if whole else b.let(at + i)
        row, column = (b.let(first + i // inner), own) if whole else (
            b.let(n // inner), b.let(n % inner))
        inside = (row < outer if whole else n < total) if last else None
        if inside is None or beyond > lines:
            found.append(Spot(row, column, inside))
            continue
        inside = b.let(inside)
        spare = b.let((at + i) - total)
        put = (spare, number(inner, U32)) if pads == "outer" else (number(outer, U32), spare)
        place = (b.let(select(inside, row, put[0])), b.let(select(inside, column, put[1])))
        found.append(Spot(b.let(op("min", row, outer - 1)), column, None, place))
    return found


def clamped(b: Builder, at: Expr, tile: int, extent: int, lanes: int = 1) -> Expr:
    """`at`, or the last place from which `lanes` lie in the extent; tiles begin at multiples."""
    return at if extent % tile == 0 else b.let(op("min", at, extent - lanes))
