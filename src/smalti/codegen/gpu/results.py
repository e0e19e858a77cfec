"""Results of a contraction from its sums: the epilogue, and the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from smalti.codegen.gpu import form
from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, both
from smalti.codegen.gpu.form import Binding
from smalti.codegen.gpu.integers import Starts
from smalti.codegen.gpu.product import ZERO, Place, Product, reads
from smalti.codegen.gpu.spots import clamped
from smalti.codegen.gpu.weights import VECTOR, padded
from smalti.dataclass import dataclass
from smalti.kernel.form import Call, Expr, Load, affine
from smalti.schedule.merge import Access, access, store


@dataclass(frozen=True)
class Moved:
    """A row or column `by` behind one that is worked out once for many."""

    base: form.Expr
    by: int = 0

    @property
    def value(self) -> form.Expr:
        """Its number."""
        return self.base + self.by if self.by else self.base

    def below(self, end: int) -> form.Expr:
        """Whether it is below `end`."""
        return self.base < max(end - self.by, 0)


class Corner:
    """Where the tile of a work-group begins in the result: gives rows and columns of the tile as
    those of the result."""

    def __init__(self, b: Builder, row: form.Expr, column: form.Expr) -> None:
        self.b, self.row, self.column = b, row, column
        self._rows: dict[form.Expr, form.Expr] = {}
        self._columns: dict[form.Expr, form.Expr] = {}

    def __call__(self, row: Moved, column: Moved) -> tuple[Moved, Moved]:
        """A row and a column of the result."""
        for known, first, at in ((self._rows, self.row, row), (self._columns, self.column, column)):
            if at.base not in known:
                known[at.base] = self.b.let(first + at.base)
        return (replace(row, base=self._rows[row.base]),
                replace(column, base=self._columns[column.base]))


class Results:
    """What becomes of the sums of a product: four channels or, where these have a rest, one at a
    time."""

    def __init__(self, product: Product) -> None:
        *_, self.stage = product.kernel.stages
        self.product, self.kernel = product, product.kernel
        self.lanes = VECTOR if product.columns % VECTOR == 0 else 1
        self.out = store(self.kernel, self.stage.axes, "out")
        self.value = _numbered(self.stage.value, product.columns)

    @property
    def accesses(self) -> list[Access]:
        """What is read and written."""
        read = [access(self.kernel, load) for load in dict.fromkeys(reads(self.stage.value))
                if load.buffer != "sum"]
        return [*read, self.out]

    @property
    def by_rows(self) -> bool:
        """Whether neighbouring pixels lie side by side, and neighbouring channels do not."""
        return self.out.stride("o") != 1 and self.out.stride("x") == 1

    def common(self, found: Access, rows: int) -> bool:
        """Whether all rows of a tile of so many read the same through an access: as it depends on
        the channel alone, or on the image as well, where a tile is in one."""
        inner = math.prod(n for name, n in self.product.axes[0] if name != "b")
        moved = found.stride("y") or found.stride("x") or found.stride("b") and inner % rows
        return not (moved or found.divided or found.indirect or found == self.out)

    def row_stride(self, found: Access) -> int | None:
        """How far apart an access has neighbouring rows; None where no one number says it: where
        the pixels of a row, or the images, do not follow each other."""
        if found.divided or found.indirect:
            return None
        expected, each = None, 1
        for name, extent in reversed(self.product.axes[0]):
            if expected is None:
                expected = found.stride(name)
            elif found.stride(name) != expected * each:
                return None
            each *= extent
        return expected or 0


class Writer:
    """Writes results in a program. Tiles of `tile` rows and columns begin at multiples of these;
    `outer` is the place of the batch.

    Where an access begins at the base of a row and a column is worked out once; what is behind
    those is a constant away, which costs one addition, or none where an instruction has room for
    it.
    """

    def __init__(self, b: Builder, results: Results, bindings: Mapping[str, Binding], outer: Place,
                 tile: tuple[int, int], starts: Starts | None = None) -> None:
        self.b, self.results, self.bindings, self.starts = b, results, bindings, starts
        self.outer, self.tile, self.product = outer, tile, results.product
        self.strides = {found: results.row_stride(found) for found in results.accesses
                        if not results.common(found, tile[0])}
        self._bases: dict[tuple[Access, form.Expr, form.Expr], form.Expr] = {}
        self._common: dict[tuple[Expr, form.Expr, int], form.Expr] = {}
        self.to_floats = self.product.kernel.buffer("out").dtype != "i32"
        self._begun: dict[tuple[int, form.Expr, int], form.Expr] = {}

    def write(self, row: Moved, column: Moved, sums: Sequence[form.Expr],
              where: form.Expr | None = None) -> None:
        """The results of a row and four columns, `where` that holds; those beyond the last are
        left out."""
        b, product, results = self.b, self.product, self.results
        places = [dict(self._places(row, Moved(column.base, column.by + lane)))
                  for lane in range(0, VECTOR, results.lanes)]
        inside = where
        if product.rows % self.tile[0]:
            inside = both(inside, row.below(product.rows))
        if product.columns % self.tile[1] and results.lanes > 1:
            inside = both(inside, column.below(product.columns))
        common = [self._loaded(row, Moved(column.base, column.by + lane))
                  for lane in range(0, VECTOR, results.lanes)]
        sums = self._whole(column, sums)
        with b.branch(inside) if inside is not None else nullcontext():
            at = dict(self.outer)
            if None in self.strides.values():
                at = product.pixel(b, b.let(row.value), self.outer)
            for lane, found, known in zip(range(0, VECTOR, results.lanes), places, common):
                own = Moved(column.base, column.by + lane)
                held = {f"sum {part}": total if results.lanes > 1 else total.lane(lane)
                        for part, total in enumerate(sums)}
                beyond = own.below(product.columns) if results.lanes == 1 else None
                with b.branch(beyond) if beyond is not None else nullcontext():
                    values = Values(b, results.kernel, self.bindings,
                                    {**at, "o": b.let(own.value)}, "o", results.lanes,
                                    given=held, places=found, known=known)
                    values.store(results.out, values.value(results.value))

    def _whole(self, column: Moved, sums: Sequence[form.Expr]) -> list[form.Expr]:
        """Sums of integers with what those of their columns begin with, as the epilogue reads them:
        as f32, where they are not the result as they are. Others are what is given."""
        found = []
        for part, total in enumerate(sums):
            if self.starts is not None:
                key = part, column.base, column.by
                if key not in self._begun:
                    self._begun[key] = self.starts(part, column.value)
                total = self.b.let(total + self._begun[key])
            if isinstance(self.results.stage.value, Call) or self.to_floats:
                total = self.b.let(total.to("f32"))
            found.append(total)
        return found

    def _loaded(self, row: Moved, column: Moved) -> dict[Expr, form.Expr]:
        """What all rows have in common in some columns, from the last ones for those beyond. It is
        loaded once, as a branch around the results of a row would have it loaded for each."""
        b, results, rows = self.b, self.results, self.tile[0]
        found: dict[Expr, form.Expr] = {}
        for load in dict.fromkeys(reads(results.stage.value)):
            if load.buffer == "sum" or not results.common(a := access(results.kernel, load), rows):
                continue
            key = load, column.base, column.by
            if key not in self._common:
                at = dict(self.outer)
                if a.stride("b") and "b" not in at:
                    at = self.product.pixel(b, row.base, self.outer)
                place = clamped(b, b.let(column.value), self.tile[1], self.product.columns,
                                results.lanes)
                values = Values(b, results.kernel, self.bindings, {**at, "o": place}, "o",
                                results.lanes)
                self._common[key] = b.let(values.load(a).to("f32"))
            found[load] = self._common[key]
        return found

    def _places(self, row: Moved, column: Moved) -> Iterator[tuple[Access, form.Expr]]:
        """The elements of accesses that go with rows and columns evenly."""
        b = self.b
        for found, stride in self.strides.items():
            if stride is None:
                continue
            key, across = (found, row.base, column.base), found.stride("o")
            if key not in self._bases:
                terms = [at * found.stride(name) for name, at in self.outer.items()
                         if found.stride(name)]
                terms += [at * n for at, n in ((row.base, stride), (column.base, across)) if n]
                self._bases[key] = b.let(sum(terms[1:], terms[0]) + found.offset
                                         if terms else ZERO + found.offset)
            yield found, self._bases[key] + (row.by * stride + column.by * across)


class PartWriter:
    """Writes sums of a part of the depth to the workspace, as [which][row][part][column]: `which`
    counts the batch inside of the parts of the depth. Tiles are of `tile` rows and columns."""

    def __init__(self, b: Builder, product: Product, space: Binding, which: form.Expr,
                 tile: tuple[int, int]) -> None:
        self.b, self.product, self.space, self.which, self.tile = b, product, space, which, tile
        self._bases: dict[tuple[form.Expr, form.Expr], form.Expr] = {}

    def write(self, row: Moved, column: Moved, sums: Sequence[form.Expr],
              where: form.Expr | None = None) -> None:
        """The sums of a row and four columns, `where` that holds."""
        b, product, key = self.b, self.product, (row.base, column.base)
        columns, each = padded(product.columns), line_of_sums(product)
        if key not in self._bases:
            self._bases[key] = b.let((self.which * product.rows + row.base) * each + column.base)
        line = self._bases[key] + (row.by * each + column.by)
        inside = where
        if product.rows % self.tile[0]:
            inside = both(inside, row.below(product.rows))
        if columns % self.tile[1]:
            inside = both(inside, column.below(columns))
        for part, total in enumerate(sums):
            b.store(self.space, line + part * columns, total, where=inside)


def line_of_sums(product: Product) -> int:
    """Sums of a row in the workspace, of all parts."""
    return product.parts * padded(product.columns)


def _numbered(expr: Expr, columns: int) -> Expr:
    """The expression with the sum of each part under a name of its own."""
    if isinstance(expr, Load) and expr.buffer == "sum":
        return Load(f"sum {affine(expr)[3].offset // columns}", ())
    if isinstance(expr, Call):
        return replace(expr, arguments=tuple(_numbered(a, columns) for a in expr.arguments))
    return expr
