"""Bringing the factors of a product into shared memory, a chunk of the depth at a time.

    a [row][depth]         the patch: prologue applied, zeros beyond its borders
    b [depth][column]      the weight: packed, or a value that is read through its strides

Neighbouring invocations take what lies side by side in memory. What is loaded can wait in registers
(`fetch`) until the shared array is free (`put`). Rows and columns behind the last are read as if
they were the last: nobody stores what comes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, both
from smalti.codegen.gpu.form import Binding, Expr, Name, Shared, op, select
from smalti.codegen.gpu.product import ZERO, Place, Product, reads, vector_lanes
from smalti.codegen.gpu.weights import VECTOR, padded
from smalti.kernel.form import Expr as KernelExpr
from smalti.kernel.form import Load, loads
from smalti.schedule.group import GroupContraction
from smalti.schedule.merge import Access, access


@dataclass(frozen=True)
class Spot:
    """A vector of a shared array that an invocation brings; `where` it does, None always."""

    outer: Expr
    inner: Expr
    where: Expr | None


def spots(b: Builder, size: int, outer: int, inner: int) -> list[Spot]:
    """What one of `size` invocations takes of [outer, inner], neighbours along inner."""
    at, total = b.invocation, outer * inner
    if size % inner == 0:
        first, own, step = b.let(at // inner), b.let(at % inner), size // inner
        rows = [b.let(first + i) for i in range(0, outer, step)]
        return [Spot(row, own, row < outer if (i + 1) * step > outer else None)
                for i, row in enumerate(rows)]
    found = []
    for i in range(0, total, size):
        n = b.let(at + i)
        found.append(Spot(b.let(n // inner), b.let(n % inner),
                          n < total if i + size > total else None))
    return found


def clamped(b: Builder, at: Expr, tile: int, extent: int, lanes: int = 1) -> Expr:
    """`at`, or the last place from which `lanes` lie in the extent; tiles begin at multiples."""
    return at if extent % tile == 0 else b.let(op("min", at, extent - lanes))


@dataclass(frozen=True)
class Walk:
    """An access whose element is that of a row or column and a step along the depth further; the
    step is worked out once for all who take the same. `base` is None where that is not so."""

    found: Access
    base: Expr | None

    @classmethod
    def begin(cls, b: Builder, found: Access, origin: Place) -> Walk:
        """The walk that begins at a row or column."""
        if found.divided or found.indirect:
            return cls(found, None)
        return cls(found, b.let(_sum(found, origin) + found.offset))

    def place(self, b: Builder, step: Place, known: dict) -> dict[Access, Expr]:
        """The element `step` further, if that is the way to it; `known` are steps already taken."""
        if self.base is None:
            return {}
        strides = tuple((step[name], s) for name, s in self.found.strides if name in step)
        if strides not in known:
            known[strides] = b.let(_sum(self.found, step))
        return {self.found: b.let(self.base + known[strides])}


def _sum(found: Access, at: Place) -> Expr:
    return sum((at[name] * s for name, s in found.strides if name in at), ZERO)


@dataclass(frozen=True)
class Fetched:
    """What was loaded for a spot, and whether it counts."""

    values: Mapping[KernelExpr, Expr]
    inside: Expr | None


@dataclass(frozen=True)
class Kept(Fetched):
    """Registers that hold what was loaded for a spot."""

    values: Mapping[KernelExpr, Name]
    inside: Name | None


WEIGHT = Load("weight", ())
"""What the values of a weight are fetched as: there is no prologue that reads them."""


class Factor(ABC):
    """What both factors have in common: spots, and waiting in registers."""

    spots: list[Spot]

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding]) -> None:
        self.b, self.product, self.schedule, self.bindings = b, product, schedule, bindings
        self.held = "f16" if schedule.dtype == "f16" else None

    @abstractmethod
    def fetch(self, chunk: Expr) -> list[Fetched]:
        """Load what this invocation brings of a chunk."""

    @abstractmethod
    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        """Store it in the shared array, `buffer` elements from its start."""

    def keep(self, fetched: list[Fetched]) -> list[Kept]:
        """Registers with these values."""
        return [Kept({key: self.b.variable(value) for key, value in each.values.items()},
                     None if each.inside is None else self.b.variable(each.inside))
                for each in fetched]

    def renew(self, kept: list[Kept], fetched: list[Fetched]) -> None:
        """Give the registers other values."""
        for old, new in zip(kept, fetched, strict=True):
            for key, value in new.values.items():
                self.b.set(old.values[key], value)
            if old.inside is not None:
                self.b.set(old.inside, new.inside)


class Patch(Factor):
    """The left factor: rows of the patch from `first` on, of the image and row `outer`."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place,
                 shared: Shared) -> None:
        super().__init__(b, product, schedule, bindings)
        self.shared, self.stage = shared, product.kernel.stages[0]
        self.lanes = vector_lanes(product.extents.c)
        self.loads = {load: access(product.kernel, load) for load in
                      dict.fromkeys(reads(self.stage.value))}
        vectors, rows = schedule.tile_k // self.lanes, schedule.tile_m
        if self.by_rows:
            turned = spots(b, schedule.invocations, vectors, rows)
            self.spots = [Spot(s.inner, s.outer, s.where) for s in turned]
        else:
            self.spots = spots(b, schedule.invocations, rows, vectors)
        self.origins, self.walks = [], []
        for spot in self.spots:
            row = clamped(b, b.let(first + spot.outer), rows, product.rows)
            origin = {n: b.let(at) for n, at in
                      product.origin(product.pixel(b, row, outer)).items()}
            self.origins.append(origin)
            self.walks.append([Walk.begin(b, found, origin) for found in self.loads.values()])

    @property
    def by_rows(self) -> bool:
        """Whether neighbours along the rows lie side by side, and those along c do not."""
        strides = [(a.stride("c"), a.stride("x")) for a in self.loads.values()]
        return all(c != 1 for c, _ in strides) and any(x == 1 for _, x in strides)

    @property
    def plain(self) -> bool:
        """Whether there is no prologue: 0 is what a load gives beyond the borders."""
        return isinstance(self.stage.value, Load)

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b, product, tile = self.b, self.product, self.schedule.tile_k
        steps: dict[Expr, tuple[dict, Expr | None, dict]] = {}
        found = []
        for spot, origin, walks in zip(self.spots, self.origins, self.walks):
            if spot.inner not in steps:
                at = product.within(b, chunk, tile, b.let(spot.inner * self.lanes))
                inside = None
                if product.depth % tile:
                    inside = b.let(chunk * tile + spot.inner * self.lanes < product.depth)
                step = {name: b.let(value) for name, value in product.step(at).items()}
                steps[spot.inner] = step, inside, {}
            step, inside, known = steps[spot.inner]
            found.append(self._fetched(spot, origin, walks, step, both(spot.where, inside), known))
        return found

    def _fetched(self, spot: Spot, origin: Place, walks: list[Walk], step: Place,
                 inside: Expr | None, known: dict) -> Fetched:
        b, kernel = self.b, self.product.kernel
        at = {"b": origin["b"], "y": b.let(origin["y"] + step["y"]),
              "x": b.let(origin["x"] + step["x"]), "c": step["c"]}
        guards = Values(b, kernel, self.bindings, at).inside(self.stage.guards)
        inside = both(inside, guards)
        if inside is not None:
            inside = b.let(inside)
        places: dict[Access, Expr] = {}
        for walk in walks:
            places |= walk.place(b, step, known)
        values = Values(b, kernel, self.bindings, at, "c", self.lanes, where=inside, places=places)
        if self.plain:
            (found,) = self.loads.values()
            held = self.held if self.held == found.dtype else None
            raw = values.load(found, held)
            return Fetched({self.stage.value: b.let(raw if held else raw.to("f32"))}, None)
        return Fetched({load: values.value(load) for load in self.loads}, inside)

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        b, stride = self.b, self.schedule.tile_k + self.schedule.pad
        for spot, each in zip(self.spots, fetched):
            value = Values(b, self.product.kernel, self.bindings, {}, "c", self.lanes,
                           known=dict(each.values)).value(self.stage.value)
            if each.inside is not None:
                value = select(each.inside, value, 0.0)
            at = spot.outer * stride + spot.inner * self.lanes + buffer
            b.store(self.shared, at, value, where=spot.where)


class PackedWeight(Factor):
    """The right factor, packed when it was bound: columns from `first` on."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, shared: Shared | None) -> None:
        super().__init__(b, product, schedule, bindings)
        self.shared, self.first, self.binding = shared, first, bindings["weight"]
        self.part = padded(product.columns)
        self.line = product.parts * self.part
        self.lanes, self.bases, each = VECTOR, [], schedule.tile_n // VECTOR
        self.spots = [] if shared is None else spots(
            b, schedule.invocations, schedule.tile_k, product.parts * each)
        columns = {}
        for inner in dict.fromkeys(spot.inner for spot in self.spots):
            if product.parts == 1:
                columns[inner] = b.let(self.column(ZERO, inner * VECTOR))
            else:
                columns[inner] = b.let(self.column(inner // each, inner % each * VECTOR))
        for spot in self.spots:
            self.bases.append(b.let(spot.outer * self.line + columns[spot.inner]))

    def column(self, part: Expr | int, column: Expr) -> Expr:
        """Where a column of the tile is in a line of the packed weight."""
        at = clamped(self.b, self.b.let(self.first + column), self.schedule.tile_n, self.part,
                     VECTOR)
        return at + part * self.part

    def load(self, line: Expr, column: Expr) -> Expr:
        """A vector of a line of the packed weight."""
        return self.b.load(self.binding, line * self.line + column, VECTOR, scalar=self._scalar)

    @property
    def _scalar(self) -> str | None:
        return self.held if self.held == self.binding.dtype else None

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b = self.b
        start = b.let(chunk * (self.schedule.tile_k * self.line))
        return [Fetched({WEIGHT: b.let(b.load(self.binding, start + base, VECTOR, where=spot.where,
                                              scalar=self._scalar))}, None)
                for spot, base in zip(self.spots, self.bases)]

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        stride = self.product.parts * self.schedule.tile_n + self.schedule.pad
        for spot, each in zip(self.spots, fetched):
            self.b.store(self.shared, spot.outer * stride + spot.inner * self.lanes + buffer,
                         each.values[WEIGHT], where=spot.where)


class ComputedWeight(PackedWeight):
    """The right factor where it is a value like others, read through its strides."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place,
                 shared: Shared) -> None:
        Factor.__init__(self, b, product, schedule, bindings)
        self.shared, self.outer, e = shared, outer, product.extents
        _, self.read = loads(product.kernel.stages[1].value)
        self.found = access(product.kernel, self.read)
        self.lanes = vector_lanes(e.o)
        each, depth = schedule.tile_n // self.lanes, schedule.tile_k
        if self.found.stride("o") != 1 and self.found.stride("c") == 1:
            turned = spots(b, schedule.invocations, product.parts * each, depth)
            self.spots = [Spot(s.inner, s.outer, s.where) for s in turned]
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
            found.append(Fetched({WEIGHT: b.let(raw if held else raw.to("f32"))}, None))
        return found
