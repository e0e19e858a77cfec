"""A contraction as products of matrices, and where their rows, columns and depth are in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property

from smalti.codegen.gpu import form
from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import unravel
from smalti.codegen.gpu.form import U32, number
from smalti.codegen.gpu.spots import clamped
from smalti.dataclass import dataclass
from smalti.kernel.form import Call, Expr, Kernel, Load
from smalti.schedule.merge import Extents, contraction_extents, weights_batched

ZERO = number(0, U32)
Place = Mapping[str, form.Expr]


@dataclass(frozen=True)
class Product:
    """`batch` products [rows, depth] times [depth, columns], the last for each of `parts`."""

    kernel: Kernel

    @cached_property
    def extents(self) -> Extents:
        """The extents of the contraction, b and y merged into x where that is possible."""
        return contraction_extents(self.kernel)

    @cached_property
    def axes(self) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
        """Axes of more than one step: those that rows walk through, and those of the batch."""
        e = self.extents
        every = [(name, n) for name, n in zip("byx", (e.b, e.y, e.x))]
        split = 2 if weights_batched(self.kernel) else 0
        rows, batch = every[split:], every[:split]
        return (tuple(a for a in rows if a[1] > 1), tuple(a for a in batch if a[1] > 1))

    @property
    def rows(self) -> int:
        """Pixels of a product."""
        return math.prod(n for _, n in self.axes[0])

    @property
    def batch(self) -> int:
        """Products, each with a weight of its own."""
        return math.prod(n for _, n in self.axes[1])

    @property
    def columns(self) -> int:
        """Channels of the result."""
        return self.extents.o

    @property
    def parts(self) -> int:
        """Sums that a channel of the result is made of."""
        return self.extents.parts

    @property
    def depth(self) -> int:
        """What a sum runs over: r, s, and c as the innermost."""
        return self.extents.r * self.extents.s * self.extents.c

    def pixel(self, b: Builder, row: form.Expr, outer: Place) -> dict[str, form.Expr]:
        """b, y and x of a row; `outer` are those of its batch."""
        return {"b": ZERO, "y": ZERO, "x": ZERO, **outer, **unravel(b, row, self.axes[0])}

    def pixel_of_tile(self, b: Builder, first: form.Expr, own: form.Expr, tile: int,
                      outer: Place, once: bool) -> dict[str, form.Expr]:
        """b, y and x of row number `own` of a tile of `tile` rows that begins with `first`, a
        multiple of these; or of the last row, where that is behind it. Where a tile is in one
        image, that is worked out for the whole work-group; of a depth of one chunk also where it
        is in one row of pixels: in loops, AMD's compiler makes 7 instructions more of that."""
        at: dict[str, form.Expr] = {"b": ZERO, "y": ZERO, "x": ZERO, **outer}
        axes = self.axes[0]
        while len(axes) > 1 and (once or axes[0][0] == "b") and (
                inner := math.prod(n for _, n in axes[1:])) % tile == 0:
            at[axes[0][0]], first = b.let(first // inner), b.let(first % inner)
            axes = axes[1:]
        row = clamped(b, b.let(first + own), tile, math.prod(n for _, n in axes))
        return {**at, **unravel(b, row, axes)}

    def origin(self, pixel: Place) -> dict[str, form.Expr]:
        """Where in the patch the window of a pixel begins."""
        e = self.extents
        return {"b": pixel["b"], "y": pixel["y"] * e.stride_y, "x": pixel["x"] * e.stride_x}

    def step(self, at: Place) -> dict[str, form.Expr]:
        """How far from there in the patch r, s and c are."""
        e = self.extents
        return {"y": at["r"] * e.dilation_y, "x": at["s"] * e.dilation_x, "c": at["c"]}

    def within(self, b: Builder, chunk: form.Expr, tile: int, k: form.Expr,
               lanes: int = 1) -> dict[str, form.Expr]:
        """r, s and c of vector number `k` of `lanes` in a chunk of `tile` of the depth."""
        e = self.extents
        tap, c = self.tap(b, chunk, tile, k, lanes)
        if e.r * e.s == 1:
            return {"r": ZERO, "s": ZERO, "c": c}
        return {"r": b.let(tap // e.s), "s": b.let(tap % e.s), "c": c}

    def tap(self, b: Builder, chunk: form.Expr, tile: int, k: form.Expr, lanes: int = 1
            ) -> tuple[form.Expr, form.Expr]:
        """The place in the window, r times its width plus s, and c of vector number `k` of `lanes`
        in a chunk; channels and chunks are multiples of `lanes`."""
        e = self.extents
        if e.r * e.s == 1:
            return ZERO, b.let(chunk * tile + k * lanes)
        if e.c % tile == 0:
            each = e.c // tile
            return b.let(chunk // each), b.let(chunk % each * tile + k * lanes)
        vector = b.let(chunk * (tile // lanes) + k)
        each = e.c // lanes
        return b.let(vector // each), b.let(vector % each * lanes)


def reads(expr: Expr) -> Iterator[Load]:
    """The loads of an expression, without those that only say where."""
    if isinstance(expr, Load):
        yield expr
    elif isinstance(expr, Call):
        for argument in expr.arguments:
            yield from reads(argument)


def vector_lanes(extent: int, most: int = 4) -> int:
    """Elements that are loaded at once, so that `extent` has no rest: `most`, a power of two, or
    less."""
    return math.gcd(extent, most)
