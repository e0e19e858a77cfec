"""Bringing the factors of a product into shared memory, a chunk of the depth at a time.

    a [row][depth]         the patch: prologue applied, zeros beyond its borders
    b [depth][column]      the weight: packed, or a value that is read through its strides
    b [column][depth]      the same for the matrix unit, which takes both factors along the depth

For the matrix unit both are halves in words of one shared array, which are stored four at a time.

Neighbouring invocations take what lies side by side in memory. What is loaded can wait in registers
(`fetch`) until the shared array is free (`put`). Rows and columns behind the last are read as if
they were the last: nobody stores what comes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, both, together, wanders
from smalti.codegen.gpu.form import (
    Binding,
    Expr,
    Shared,
    number,
    op,
    select,
    vector,
)
from smalti.codegen.gpu.product import ZERO, Place, Product, reads, vector_lanes
from smalti.codegen.gpu.spots import Spot, clamped, spots
from smalti.codegen.gpu.types import VectorType, vector_type
from smalti.codegen.gpu.weights import VECTOR, WIDE
from smalti.dataclass import dataclass
from smalti.graph.operation import HALVES
from smalti.kernel.form import Expr as KernelExpr
from smalti.kernel.form import Index, Load, loads
from smalti.schedule.group import GroupContraction
from smalti.schedule.merge import Access, access


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
class Area:
    """Where a factor lies in a shared array: lines of so many elements, `stride` apart, from `at`
    on; counted in words of two halves where `words`."""

    shared: Shared
    stride: int
    at: int = 0
    words: bool = False

    def place(self, line: Expr, inner: Expr, lanes: int) -> Expr:
        """The element, or word, at `inner` vectors of `lanes` of a line."""
        each = 2 if self.words else 1
        return line * (self.stride // each) + inner * (lanes // each) + self.at


WORDS = -1
"""Stands for the first element in a `Key` whose load brought all elements of a spot, as words of
two halves."""
Key = tuple[Load, int]
"""A load, and the first of the elements of a spot that it read; or `WORDS`."""


@dataclass(frozen=True)
class Fetched:
    """What was loaded for a spot, nothing where there are only zeros, and whether it counts."""

    values: Mapping[Key, Expr]
    inside: Expr | None


WEIGHT = Load("weight", ())
"""What the values of a weight are fetched as: there is no prologue that reads them."""


class Factor(ABC):
    """What both factors have in common: spots, and waiting in registers."""

    spots: list[Spot]

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], area: Area | None) -> None:
        self.b, self.product, self.schedule, self.bindings = b, product, schedule, bindings
        self.area = area
        self.held = "f16" if schedule.dtype == "f16" else None

    @abstractmethod
    def fetch(self, chunk: Expr) -> list[Fetched]:
        """Load what this invocation brings of a chunk."""

    @abstractmethod
    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        """Store it in the shared array, `buffer` elements of that from its start."""

    def store(self, spot: Spot, buffer: Expr, line: Expr, inner: Expr, lanes: int,
              parts: Sequence[Expr], inside: Expr | None = None) -> None:
        """Store the elements of a spot: f32 in vectors, or words of the dtype of the products;
        zeros unless `inside`."""
        area = self.area
        if area.words and parts[0].type.scalar != "u32":
            parts = self._words(parts)
        value = parts[0] if len(parts) == 1 else vector(*parts)
        if inside is not None:
            value = select(inside, value, number(0.0, value.type))
        self.b.store(area.shared, area.place(line, inner, lanes) + buffer, value, where=spot.where)

    def _words(self, parts: Sequence[Expr]) -> list[Expr]:
        """f32 vectors as words, one by one."""
        b, found = self.b, []
        for part in parts:
            words = b.let(op(f"narrow_{self.schedule.dtype}", part))
            lanes = vector_type(words.type).lanes
            found += [words.lane(n) for n in range(lanes)] if lanes > 1 else [words]
        return found

    def widened(self, words: Expr, dtype: str) -> list[Expr]:
        """The halves of four words, as two vectors of f32."""
        return [self.b.let(op(f"widen_{dtype}", vector(words.lane(n), words.lane(n + 1))))
                for n in (0, 2)]


@dataclass(frozen=True)
class TapLine:
    """Where a line of a spot is at one place of the window, and the elements that its accesses
    begin with there. Where it is not `inside`, there are zeros, and elements that may be read."""

    at: Place
    places: Mapping[Access, Expr]
    inside: Expr | None


@dataclass(frozen=True)
class Tap:
    """A place of the window: its first chunk, and the line of each spot."""

    first: Expr
    lines: Sequence[TapLine]


class Lines(Factor):
    """Lines along the depth: rows of the patch, or columns of a weight that is a value.

    `value` is what is staged at the place of a line and a step along the depth, where `guards`
    hold; elsewhere zeros.
    """

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], area: Area, value: KernelExpr,
                 guards: Sequence[tuple[Index, int]] = ()) -> None:
        super().__init__(b, product, schedule, bindings, area)
        self.value, self.guards = value, guards
        self.loads = {load: access(product.kernel, load) for load in
                      dict.fromkeys(reads(value))}
        e = product.extents
        self.lanes = vector_lanes(e.c, self.widest)
        self.steady = not any(wanders(found, "c") for found in self.loads.values())
        """Whether all that is read lies evenly along the channels."""
        self.whole = False
        """Whether integers that are read stay what they are."""
        self.chunks_of_a_tap = e.c // schedule.tile_k if self.steady and (
            e.r * e.s > 1 and e.c % schedule.tile_k == 0) else 0
        """Of how many chunks a place of the window is; 0 where there is one place, or no whole
        number."""
        self.whole_chunks = e.r * e.s == 1 or e.c % schedule.tile_k == 0
        """Whether a chunk is of one place of the window."""
        self.origins: list[Place] = []
        self.walks: list[list[Walk]] = []
        self.tap: Tap | None = None

    def begin(self, lines: int, across: bool) -> None:
        """Say who brings what of so many lines; neighbours along the lines, or `across` them."""
        vectors, size = self.schedule.tile_k // self.lanes, self.schedule.invocations
        padded = self.padded
        if across:
            turned = spots(self.b, size, vectors, lines, "inner" if padded else "",
                           once=self.schedule.tile_k >= self.product.depth)
            self.spots = [spot.turned() for spot in turned]
        else:
            self.spots = spots(self.b, size, lines, vectors, "outer" if padded else "")

    def add(self, origin: Place) -> None:
        """Say where the line of the next spot begins."""
        if self.whole_chunks:
            along = self.spots[len(self.origins)].inner * self.lanes
            origin = {**origin, "c": self.b.let(along)}
        self.origins.append(origin)
        self.walks.append([Walk.begin(self.b, found, origin) for found in self.loads.values()])

    @property
    def widest(self) -> int:
        """Elements of a spot, at most."""
        return WIDE if self.area.words else VECTOR

    @property
    def padded(self) -> bool:
        """Whether the pad behind a line holds a spot."""
        return self.area.words and self.lanes == self.schedule.pad

    @property
    def plain(self) -> bool:
        """Whether there is no prologue: 0 is what a load gives beyond the borders."""
        return isinstance(self.value, Load)

    @property
    def each(self) -> int:
        """Elements of a spot that are computed at once."""
        return min(self.lanes, VECTOR)

    def enter(self, tap: Expr) -> None:
        """Go to a place of the window, for the chunks that are fetched and put from here on."""
        b, e = self.b, self.product.extents
        at = {"r": tap, "s": ZERO} if e.s == 1 else {"r": b.let(tap // e.s), "s": b.let(tap % e.s)}
        step = {name: b.let(value) for name, value in self.step({**at, "c": ZERO}).items()
                if name != "c"}
        known: dict = {}
        shared: set[Expr] = set()
        with b.once({}):
            self.tap = Tap(b.let(tap * self.chunks_of_a_tap), [
                self._line(spot, origin, walks, step, known, shared)
                for spot, origin, walks in zip(self.spots, self.origins, self.walks)])

    def _line(self, spot: Spot, origin: Place, walks: Sequence[Walk], step: Place,
              known: dict, shared: set[Expr]) -> TapLine:
        """The line of a spot at a place of the window, `step` further than where it begins."""
        b, at = self.b, self._at(origin, step)
        values = Values(b, self.product.kernel, self.bindings, at)
        inside = values.inside(self.guards)
        if inside is not None:
            inside = b.let(inside)
        values.where = both(inside, spot.where)
        for walk in walks:
            values.places |= walk.place(b, step, known)
        places = {}
        for found in self.loads.values():
            place = values.place(found)
            counts = self._counts(found, place, spot, inside, shared)
            if counts is not None:
                # else anywhere in the buffer, and between vectors, as far as compilers can see
                each = self._together(found)
                last = self.bindings[found.buffer].elements - each
                place = b.let(op("min", select(counts, place, 0), last) // each) * each
            places[found] = place
        return TapLine(at, places, inside)

    def _counts(self, found: Access, place: Expr, spot: Spot, inside: Expr | None,
                shared: set[Expr]) -> Expr | None:
        """Where a spot reads an access at `place`, None if that can be read always: what an image
        has in common, if all bring the spot, or an earlier one has the same place. Those are noted
        as `shared`."""
        if not self._common(found):
            return both(inside, spot.where)
        if spot.where is None:
            shared.add(place)
        return None if place in shared else spot.where

    def _together(self, found: Access) -> int:
        """Elements that are read from a place on: then the last place is a multiple, too."""
        lanes = self.lanes if self._whole(found) else self.each
        return lanes if together(found, "c", lanes) else 1

    def _common(self, found: Access) -> bool:
        """Whether an access reads the same at all places of an image, beyond its borders and, as
        channels come round again there, behind the last place of the window, too."""
        moved = any(map(found.stride, "yxrs"))
        return not (moved or found.divided or found.indirect) and (
            self.product.depth % self.schedule.tile_k == 0 or not self.whole_chunks)

    def _at(self, origin: Place, step: Place) -> Place:
        return {name: self.b.let(origin[name] + step[name]) if name in origin and name in step else
                origin.get(name, step.get(name)) for name in (*origin, *step)}

    def fetch(self, chunk: Expr) -> list[Fetched]:
        with self.b.once({}):  # what rows have in common, as statistics of their image
            if self.tap is not None:
                return self._fetch_of_tap(self.tap, chunk)
            return self._fetch_of_chunk(chunk)

    def _fetch_of_chunk(self, chunk: Expr) -> list[Fetched]:
        b, product, tile = self.b, self.product, self.schedule.tile_k
        steps: dict[Expr, tuple[dict, dict]] = {}
        found = []
        shared: set[Expr] = set()
        for spot, origin, walks in zip(self.spots, self.origins, self.walks):
            if tile >= product.depth <= spot.least[1] * self.lanes:
                found.append(Fetched({}, None))
                continue
            along = b.let(spot.inner * self.lanes)
            k = ZERO if self.whole_chunks else spot.inner
            if k not in steps:
                at = self.step(product.within(b, chunk, tile, k, self.lanes))
                steps[k] = {name: b.let(value) for name, value in at.items()}, {}
            step, known = steps[k]
            at = self._at(origin, step)
            inside = Values(b, product.kernel, self.bindings, at).inside(self.guards)
            if product.depth % tile:
                inside = both(b.let(chunk * tile + along < product.depth), inside)
            places: dict[Access, Expr] = {}
            for walk in walks:
                places |= walk.place(b, step, known)
            if inside is None:
                found.append(Fetched(self._loaded(at, places, spot.where), None))
                continue
            inside = b.let(inside)
            if not self.steady:
                found.append(Fetched(self._loaded(at, places, both(spot.where, inside)), inside))
                continue
            # who brings nothing reads no row number
            values = Values(b, product.kernel, self.bindings, at,
                            where=b.let(both(inside, spot.where)), places=places)
            places = {a: values.place(a) for a in self.loads.values()}
            for a, place in places.items():
                counts = self._counts(a, place, spot, inside, shared)
                places[a] = place if counts is None else b.let(select(counts, place, 0))
            found.append(Fetched(self._loaded(at, places, None), inside))
        return found

    def _fetch_of_tap(self, tap: Tap, chunk: Expr) -> list[Fetched]:
        b, strides, found = self.b, {}, []
        # bounded, as far as compilers can see: then no address wraps
        turn = b.let(op("min", chunk - tap.first, self.chunks_of_a_tap - 1))
        c = b.let(turn * self.schedule.tile_k)
        for line in tap.lines:
            places = {}
            for load, place in line.places.items():
                stride = load.stride("c")
                if stride not in strides:
                    strides[stride] = b.let(c * stride)
                places[load] = b.let(place + strides[stride])
            at = {**line.at, "c": b.let(line.at["c"] + c)}
            found.append(Fetched(self._loaded(at, places, None), None))
        return found

    @abstractmethod
    def step(self, at: Place) -> Place:
        """How far along each axis r, s and c are from where a line begins."""

    def _loaded(self, at: Place, places: Mapping[Access, Expr],
                inside: Expr | None) -> dict[Key, Expr]:
        """What is loaded for a spot, at a place whose accesses are of these elements, if known."""
        b, kernel = self.b, self.product.kernel
        found: dict[Key, Expr] = {}
        whole = [load for load, a in self.loads.items() if self._whole(a)]
        for n in range(0, self.lanes, self.each):
            there = {**at, "c": b.let(at["c"] + n)}
            moved = {a: b.let(place + n * a.stride("c")) for a, place in places.items()}
            values = Values(b, kernel, self.bindings, there, "c", self.each, where=inside,
                            places=moved)
            for load, a in self.loads.items():
                if load in whole:
                    continue
                held = self.held if self.plain and self.held == a.dtype else None
                raw = values.load(a, held)
                kept = self.whole or held and not self.area.words
                found[load, n] = b.let(raw if kept else raw.to("f32"))
        values = Values(b, kernel, self.bindings, at, "c", self.lanes, where=inside,
                        places=dict(places))
        for load in whole:
            a = self.loads[load]
            found[load, WORDS] = b.let(b.load(self.bindings[a.buffer], values.place(a),
                                                self.lanes // 2, where=inside, scalar="u32"))
        return found

    def _whole(self, found: Access) -> bool:
        """Whether the elements of a spot are read as words, all at once."""
        kernel, binding = self.product.kernel, self.bindings[found.buffer]
        plain = self.plain and found.dtype == self.schedule.dtype
        return (self.area.words and binding.dtype in HALVES and binding.lanes % self.lanes == 0
                and (plain and self.lanes > 1 or self.lanes == WIDE)
                and kernel.buffer(found.buffer).dtype in HALVES
                and together(found, "c", self.lanes))

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        for n, (spot, each) in enumerate(zip(self.spots, fetched)):
            inside = self.tap.lines[n].inside if self.tap else each.inside
            line, inner = spot.place
            self.store(spot, buffer, line, inner, self.lanes, self._parts(each), inside)

    def _parts(self, fetched: Fetched) -> list[Expr]:
        """What is staged of a spot: words as they are, or vectors of f32."""
        b, kernel, values = self.b, self.product.kernel, dict(fetched.values)
        if not values:
            type = VectorType("u32", self.lanes // 2) if self.area.words else (
                VectorType("f32", self.lanes))
            return [number(0, type) if self.area.words else number(0.0, type)]
        for load, a in self.loads.items():
            words = values.get((load, WORDS))
            if words is not None and self.plain and a.dtype == self.schedule.dtype:
                return [words]
            if words is not None:
                first, second = self.widened(words, a.dtype)
                values |= {(load, 0): first, (load, VECTOR): second}
        found = []
        for n in range(0, self.lanes, self.each):
            known: dict[KernelExpr, Expr] = {load: values[load, n] for load in self.loads}
            found.append(Values(b, kernel, self.bindings, {}, "c", self.each,
                                known=known).value(self.value))
        return found


class Patch(Lines):
    """The left factor: rows of the patch from `first` on, of the image and row `outer`."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        stage, rows = product.kernel.stages[0], schedule.tile_m
        super().__init__(b, product, schedule, bindings, area, stage.value, stage.guards)
        self.begin(rows, self.by_rows)
        with b.once({}):
            for spot in self.spots:
                pixel = product.pixel_of_tile(b, first, spot.outer, rows, outer,
                                              schedule.tile_k >= product.depth)
                self.add({n: b.let(at) for n, at in product.origin(pixel).items()})

    @property
    def by_rows(self) -> bool:
        """Whether neighbours along the rows lie side by side, and those along c do not."""
        strides = [(a.stride("c"), a.stride("x")) for a in self.loads.values()]
        return all(c != 1 for c, _ in strides) and any(x == 1 for _, x in strides)

    def step(self, at: Place) -> Place:
        return self.product.step(at)


class ComputedColumns(Lines):
    """The right factor of the matrix unit where it is a value like others: its columns."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        _, value = loads(product.kernel.stages[1].value)
        super().__init__(b, product, schedule, bindings, area, value)
        e, tile = product.extents, schedule.tile_n
        (found,) = self.loads.values()
        self.begin(product.parts * tile, found.stride("c") != 1)
        for spot in self.spots:
            column = clamped(b, b.let(first + spot.outer % tile), tile, e.o)
            part = spot.outer // tile * e.o if product.parts > 1 else ZERO
            self.add({**outer, "o": b.let(column + part)})

    def step(self, at: Place) -> Place:
        return at
