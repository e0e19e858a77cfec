"""Results of a contraction from its sums: the epilogue, and the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from smalti.codegen.gpu import form
from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, both
from smalti.codegen.gpu.form import Binding
from smalti.codegen.gpu.product import Place, Product, reads
from smalti.codegen.gpu.weights import VECTOR
from smalti.kernel.form import Call, Expr, Load, affine
from smalti.schedule.merge import Access, access, store


class Results:
    """Writes results of a product, four channels or, where these have a rest, one at a time."""

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

    def write(self, b: Builder, bindings: Mapping[str, Binding], row: form.Expr,
              column: form.Expr, sums: Sequence[form.Expr], outer: Place, tile: tuple[int, int],
              ) -> None:
        """The results of a row and four columns; those beyond the last are left out. Tiles of
        `tile` rows and columns begin at multiples of these."""
        product, e = self.product, self.product.extents
        inside = None
        if product.rows % tile[0]:
            inside = row < product.rows
        if product.columns % tile[1] and self.lanes > 1:
            inside = both(inside, column < product.columns)
        strides = {"b": e.y * e.x * e.o, "y": e.x * e.o, "x": e.o, "o": 1}
        extents = {"b": e.b, "y": e.y, "x": e.x, "o": e.o}
        strides = {name: s for name, s in strides.items() if extents[name] > 1}
        with b.branch(inside) if inside is not None else nullcontext():
            pixel = product.pixel(b, row, outer)
            for lane in range(0, VECTOR, self.lanes):
                at = {**pixel, "o": b.let(column + lane)}
                flat = (strides, b.let(row * e.o + at["o"]))
                held = {f"sum {part}": total if self.lanes > 1 else total.lane(lane)
                        for part, total in enumerate(sums)}
                beyond = at["o"] < e.o if self.lanes == 1 else None
                with b.branch(beyond) if beyond is not None else nullcontext():
                    values = Values(b, self.kernel, bindings, at, "o", self.lanes,
                                    flat=None if outer else flat, given=held)
                    values.store(self.out, values.value(self.value))


def _numbered(expr: Expr, columns: int) -> Expr:
    """The expression with the sum of each part under a name of its own."""
    if isinstance(expr, Load) and expr.buffer == "sum":
        return Load(f"sum {affine(expr)[3].offset // columns}", ())
    if isinstance(expr, Call):
        return replace(expr, arguments=tuple(_numbered(a, columns) for a in expr.arguments))
    return expr
