"""Right factors that were packed when they were bound, or that are read like these.

    PackedColumns      blocks of the depth of columns, staged for the matrix unit
    PlacedColumns      the same, whose matrices are read where they are
    PackedWeight       lines of columns, staged, or read where they are
    ComputedWeight     a value that is read through its strides, staged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values
from smalti.codegen.gpu.factors import WEIGHT, WORDS, Area, Factor, Fetched, Walk
from smalti.codegen.gpu.form import Binding, Expr, Number, op
from smalti.codegen.gpu.product import ZERO, Place, Product, vector_lanes
from smalti.codegen.gpu.spots import Spot, clamped, spots
from smalti.codegen.gpu.types import Matrix
from smalti.codegen.gpu.weights import VECTOR, WIDE, padded
from smalti.errors import IllegalSchedule
from smalti.graph.operation import HALVES
from smalti.kernel.form import loads
from smalti.schedule.group import BYTES, WIDE_BYTES, WORD_OF_BYTES, GroupContraction
from smalti.schedule.merge import access


def packed_columns(b: Builder, product: Product, schedule: GroupContraction, first: Expr,
                   spots: Sequence[Spot], lanes: int = 1) -> dict[Expr, Expr]:
    """Where the columns of spots are in a line of the packed weight, by `inner`: that counts
    vectors of `lanes`, of all parts of a tile whose columns begin with `first`."""
    each, part = schedule.tile_n // lanes, padded(product.columns)
    found = {}
    for inner in dict.fromkeys(spot.inner for spot in spots):
        number = inner % each if product.parts > 1 else inner
        column = clamped(b, b.let(first + number * lanes), schedule.tile_n, part, lanes)
        found[inner] = b.let(column + inner // each * part if product.parts > 1 else column)
    return found


class PackedColumns(Factor):
    """The right factor of the matrix unit, packed when it was bound: blocks of the depth of
    columns from `first` on, of 8 halves or floats, or of 16 bytes as four words."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, area: Area) -> None:
        super().__init__(b, product, schedule, bindings, area)
        self.binding = bindings["weight"]
        whole = schedule.dtype == BYTES
        self.deep, self.size = (WIDE_BYTES, VECTOR) if whole else (WIDE, WIDE)
        self.line = product.parts * padded(product.columns) * self.size
        self.spots = spots(b, schedule.invocations, schedule.tile_k // self.deep,
                           product.parts * schedule.tile_n,
                           "inner" if schedule.pad == self.size else "")
        columns = packed_columns(b, product, schedule, first, self.spots)
        self.bases = {spot: self._base(spot.outer, columns[spot.inner]) for spot in self.spots}

    def _base(self, block: Expr, column: Expr) -> tuple[Expr, int]:
        """Where a column of a block begins: a number that others share, and a constant."""
        at, by = column * self.size, 0
        if isinstance(block, Number):
            by = int(block.value) * self.line
        else:
            at = block * self.line + at
        return self.b.let(at), by

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b = self.b
        start = b.let(chunk * (self.schedule.tile_k // self.deep * self.line))
        halves = self.binding.dtype in HALVES
        words = halves or self.binding.dtype == "u32"
        found = []
        for spot, (base, by) in self.bases.items():
            at = b.let(base + start) + by
            pieces = (WORDS,) if words else (0, VECTOR)
            found.append(Fetched({
                (WEIGHT, n): b.let(b.load(self.binding, at + max(n, 0), VECTOR, where=spot.where,
                                          scalar="u32" if words else "f32"))
                for n in pieces}, None))
        return found

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        dtype = self.binding.dtype
        for spot, each in zip(self.spots, fetched):
            parts = list(each.values.values())
            if dtype in HALVES and dtype != self.schedule.dtype:
                parts = self.widened(parts[0], dtype)
            block, line = spot.place
            self.store(spot, buffer, line, block, self.size, parts)


class PlacedColumns(Factor):
    """The right factor of the matrix unit, packed when it was bound, whose matrices each subgroup
    reads where they are: those of the columns from `first` on, in blocks as deep as a matrix.

    Where they are loaded ahead, that is before the patch is staged: both are waited for at once.
    """

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr) -> None:
        super().__init__(b, product, schedule, bindings, None)
        if product.columns % schedule.tile_n:
            raise IllegalSchedule(f"matrices of tiles of {schedule.tile_n} columns reach behind "
                                  f"the last of {product.columns}")
        _, self.columns, self.deep = schedule.shape
        self.type = Matrix("b", self.deep, self.columns, schedule.dtype)
        self.length = self.deep // WORD_OF_BYTES if schedule.dtype == BYTES else self.deep
        self.part = padded(product.columns) * self.length
        self.line = product.parts * self.part
        self.spots, self.base = [], b.let(first * self.length)
        self.ahead: dict[tuple[int, int, int], Expr] = {}

    def fetch(self, chunk: Expr) -> list[Fetched]:
        s, self.ahead = self.schedule, {}
        if s.ahead:
            self.ahead = {at: self._loaded(chunk, *at) for at in product(
                range(0, s.tile_k, self.deep), range(self.product.parts),
                range(0, s.block_n, self.columns))}
        return []

    def matrix(self, chunk: Expr, k: int, part: int, column: int) -> Expr:
        """That of a part, `k` deep in the chunk and so many columns across the block."""
        return self.ahead.get((k, part, column)) or self._loaded(chunk, k, part, column)

    def _loaded(self, chunk: Expr, k: int, part: int, column: int) -> Expr:
        b, s = self.b, self.schedule
        start = b.let(chunk * (s.tile_k // self.deep * self.line)) + self.base
        behind = k // self.deep * self.line + part * self.part + column * self.length
        return b.let(b.matrix(self.bindings["weight"], start + behind, self.length, self.type,
                              by_columns=True))

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        """Nothing is staged."""


class PackedWeight(Factor):
    """The right factor, packed when it was bound: columns from `first` on. Lines are of elements,
    or of words of four bytes that are neighbours along the depth.

    Where it is read in place, it is so `deep` lines at a time.
    """

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, area: Area | None) -> None:
        super().__init__(b, product, schedule, bindings, area)
        self.first, self.binding = first, bindings["weight"]
        self.part = padded(product.columns)
        self.line = product.parts * self.part
        self.lanes = self.deep = VECTOR
        self.spots = [] if area is None else spots(
            b, schedule.invocations, schedule.places, product.parts * schedule.tile_n // VECTOR)
        columns = packed_columns(b, product, schedule, first, self.spots, VECTOR)
        self.bases = [b.let(spot.outer * self.line + columns[spot.inner]) for spot in self.spots]

    def column(self, part: int, column: Expr) -> Expr:
        """Where a vector of columns of the tile is in a line of the packed weight."""
        at = clamped(self.b, self.b.let(self.first + column), self.schedule.tile_n, self.part,
                     VECTOR)
        return at + part * self.part

    def lines(self, chunk: Expr, k: Expr, columns: Mapping[tuple[int, int], Expr]
              ) -> list[dict[tuple[int, int], Expr]]:
        """Vectors that begin at `columns` of the `deep` lines from number `k` of a chunk on, read
        where they are."""
        b, first = self.b, self.b.let(chunk * self.schedule.places + k)

        def loaded(at: Expr) -> Expr:
            found = b.load(self.binding, at, VECTOR, scalar=self._scalar)
            return b.let(found if self.schedule.dtype == BYTES else found.to("f32"))

        return [{key: loaded((first + n) * self.line + column)
                 for key, column in columns.items()} for n in range(self.deep)]

    @property
    def _scalar(self) -> str | None:
        return self.held if self.held == self.binding.dtype else None

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b = self.b
        start = b.let(chunk * (self.schedule.places * self.line))
        return [Fetched({(WEIGHT, 0): b.let(b.load(self.binding, base + start, VECTOR,
                                                   where=spot.where, scalar=self._scalar))}, None)
                for spot, base in zip(self.spots, self.bases)]

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        for spot, each in zip(self.spots, fetched):
            self.store(spot, buffer, spot.outer, spot.inner, self.lanes, [each.values[WEIGHT, 0]])


class ComputedWeight(PackedWeight):
    """The right factor where it is a value like others, read through its strides."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        Factor.__init__(self, b, product, schedule, bindings, area)
        self.outer, e = outer, product.extents
        _, self.read = loads(product.kernel.stages[1].value)
        self.found = access(product.kernel, self.read)
        self.lanes = vector_lanes(e.o)
        each, depth = schedule.tile_n // self.lanes, schedule.places
        if self.found.stride("o") != 1 and self.found.stride("c") == 1:
            turned = spots(b, schedule.invocations, product.parts * each, depth)
            self.spots = [spot.turned() for spot in turned]
        else:
            self.spots = spots(b, schedule.invocations, depth, product.parts * each)
        self.origins, self.walks = [], []
        for spot in self.spots:
            column = b.let(first + spot.inner % each * self.lanes)
            column = clamped(b, column, schedule.tile_n, e.o, self.lanes)
            part = spot.inner // each * e.o if product.parts > 1 else ZERO
            origin = {**outer, "o": b.let(column + part)}
            self.origins.append(origin)
            self.walks.append(Walk.begin(b, self.found, origin))

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b, product, tile = self.b, self.product, self.schedule.tile_k
        steps: dict[Expr, tuple[dict, dict]] = {}
        found = []
        for spot, origin, walk in zip(self.spots, self.origins, self.walks):
            if spot.outer not in steps:
                k = spot.outer
                if product.depth % tile:
                    k = b.let(op("min", chunk * tile + k, product.depth - 1) - chunk * tile)
                steps[spot.outer] = product.within(b, chunk, tile, k), {}
            step, known = steps[spot.outer]
            values = Values(b, product.kernel, self.bindings, {**origin, **step}, "o", self.lanes,
                            where=spot.where, places=walk.place(b, step, known))
            held = self.held if self.held == self.found.dtype else None
            raw = values.load(self.found, held)
            found.append(Fetched({(WEIGHT, 0): b.let(raw if held else raw.to("f32"))}, None))
        return found
