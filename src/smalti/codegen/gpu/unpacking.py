"""Factors of a product out of quantised weights: words are loaded, and widened when they are used.

    words, heads     = fetch: codes of a run of channels at one place of the window, and the scales
                       (and minima) of all groups that the run can be of
    [f32] * run      = scale * code (+ minimum)

Each value is a scalar, or a vector of as many columns as were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.factors import WEIGHT, Area, Factor, Fetched
from smalti.codegen.gpu.form import Binding, Expr, op, select, vector
from smalti.codegen.gpu.packed import PackedWeight, packed_columns
from smalti.codegen.gpu.product import ZERO, Product
from smalti.codegen.gpu.quantised import SHIFT, WIDENED, PackedGroups
from smalti.codegen.gpu.spots import spots
from smalti.codegen.gpu.weights import VECTOR, WIDE, packed_groups
from smalti.dataclass import dataclass
from smalti.graph.quantised import WORD_BITS
from smalti.schedule.group import GroupContraction

SHORT_SIGN = 1 << 31
SHORT_MASK = SHORT_SIGN | ((1 << 28) - 1) >> SHIFT << SHIFT
"""What counts of a short float that stands where an f32 does: its sign, five bits of exponent and
the mantissa."""


@dataclass(frozen=True)
class RunOfCodes:
    """Where a run of the depth begins: its line of codes, its first group, and the place in that,
    counted from the last group of even number."""

    line: Expr
    group: Expr
    within: Expr


class Groups:
    """Reads runs of `run` neighbours along the depth, which are whole words of codes."""

    def __init__(self, b: Builder, binding: Binding, packed: PackedGroups, product: Product,
                 tile: int, run: int) -> None:
        self.b, self.binding, self.packed, self.run = b, binding, packed, run
        self.product, self.tile, self.form = product, tile, packed.form
        self.words, self.touched = run // self.form.codes, packed.touched(run)
        self.placed = self.touched > 1 or not self.form.minimum
        """Whether it matters where in its groups a run begins."""

    def begin(self, chunk: Expr, k: Expr) -> RunOfCodes:
        """Where the run from number `k` of a chunk on begins."""
        b, form = self.b, self.form
        depth, channels = self.packed.rows, self.packed.c
        every = b.let(chunk * self.tile + k)
        if depth % self.tile:  # the patch has zeros there
            every = b.let(op("min", every, depth - self.run))
            tap, c = (ZERO, every) if depth == channels else (every // channels, every % channels)
        else:
            tap, c = self.product.tap(b, chunk, self.tile, k)
        line = b.let(every // form.codes)
        at = c if self.packed.taps == 1 else b.let(c * self.packed.taps + tap)
        if self.packed.taps == 1 and form.group % self.tile == 0:
            at = b.let(chunk * self.tile)  # of the same group, for all of the work-group
        return RunOfCodes(line, b.let(at // form.group), b.let(at % (2 * form.group)))

    def fetch(self, run: RunOfCodes, column: Expr, lanes: int, where: Expr | None) -> list[Expr]:
        """Words of codes, words of heads, and where in its groups the run begins."""
        b, width = self.b, self.packed.width

        def load(line: Expr, first: int) -> Expr:
            return b.let(b.load(self.binding, line * width + (column + first), lanes, where=where))

        found = [load(run.line + n, 0) for n in range(self.words)]
        for n in range(self.touched):
            group = run.group + n
            found.append(load(group if self.form.minimum else b.let(group >> 1),
                              self.packed.heads_at))
        return [*found, run.within] if self.placed else found

    def factors(self, fetched: Sequence[Expr]) -> list[Expr]:
        """The weights of a run, of what was fetched."""
        b, form = self.b, self.form
        words, heads = fetched[:self.words], fetched[self.words:self.words + self.touched]
        at = fetched[-1] if self.placed else ZERO
        known = self._heads(heads, at)
        within = b.let(at % form.group) if self.touched > 1 else ZERO
        found = []
        for n in range(self.run):
            word, shift = words[n // form.codes], n % form.codes * form.bits
            code = word >> shift if shift else word
            if shift + form.bits < WORD_BITS:
                code = code & ((1 << form.bits) - 1)
            scale, least = self._of(known, within, n)
            number = code.to("f32")
            if least is None:
                value = (number - float(1 << form.bits - 1)) * scale
            else:
                value = op("fma", number, scale, least)
            found.append(b.let(value))
        return found

    def _heads(self, words: Sequence[Expr], at: Expr) -> list[tuple[Expr, Expr | None]]:
        """Scale and minimum of each group that a run can be of."""
        b = self.b
        if self.form.minimum:
            return [(b.let(widened(word << 16)), b.let(widened(word))) for word in words]
        odd = b.let(at // self.form.group)
        found: list[tuple[Expr, Expr | None]] = []
        for n, word in enumerate(words):
            upper = odd.equals(1 - n % 2)
            found.append((b.let(widened(select(upper, word, word << 16))), None))
        return found

    def _of(self, known: Sequence[tuple[Expr, Expr | None]], within: Expr, n: int
            ) -> tuple[Expr, Expr | None]:
        """Scale and minimum of number `n` of a run that begins `within` a group."""
        taps, group = self.packed.taps, self.form.group
        if self.touched == 1:
            return known[0]
        first, last = n * taps // group, (n * taps + group - 1) // group
        if first == last:
            return known[first]
        before = self.b.let(within < group * last - n * taps)
        scale, least = (None if x is None or y is None else self.b.let(select(before, x, y))
                        for x, y in zip(known[first], known[last]))
        assert scale is not None
        return scale, least


def widened(word: Expr) -> Expr:
    """The short float in the upper half of a word as f32."""
    placed = (word.bits("i32") >> 16 - SHIFT).bits("u32") & SHORT_MASK
    return placed.bits("f32") * WIDENED


class QuantisedWeight(PackedWeight):
    """The right factor out of groups, as [depth][column]: columns from `first` on."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, area: Area | None) -> None:
        Factor.__init__(self, b, product, schedule, bindings, area)
        packed, tile = packed_groups(product, schedule), schedule.tile_n
        self.first, self.part, self.deep = first, packed.columns, packed.form.codes
        self.groups = Groups(b, bindings["weight"], packed, product, schedule.tile_k, self.deep)
        self.spots, self.columns = [], {}
        if area is None:
            return
        runs, size = schedule.tile_k // self.deep, schedule.invocations
        self.lanes = next((n for n in (VECTOR, 2)
                           if runs * product.parts * tile // n >= size), 1)
        self.spots = spots(b, size, runs, product.parts * tile // self.lanes)
        self.columns = packed_columns(b, product, schedule, first, self.spots, self.lanes)

    def lines(self, chunk: Expr, k: Expr, columns: Mapping[tuple[int, int], Expr]
              ) -> list[dict[tuple[int, int], Expr]]:
        run = self.groups.begin(chunk, k)
        found = {key: self.groups.factors(self.groups.fetch(run, column, VECTOR, None))
                 for key, column in columns.items()}
        return [{key: values[n] for key, values in found.items()} for n in range(self.deep)]

    def fetch(self, chunk: Expr) -> list[Fetched]:
        runs: dict[Expr, RunOfCodes] = {}
        found = []
        for spot in self.spots:
            if spot.outer not in runs:
                runs[spot.outer] = self.groups.begin(chunk, self.b.let(spot.outer * self.deep))
            found.append(_numbered(self.groups.fetch(runs[spot.outer], self.columns[spot.inner],
                                                     self.lanes, spot.where)))
        return found

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        for spot, each in zip(self.spots, fetched):
            first = self.b.let(spot.outer * self.deep)
            for n, value in enumerate(self.groups.factors(list(each.values.values()))):
                self.store(spot, buffer, first + n, spot.inner, self.lanes, [value])


class QuantisedColumns(Factor):
    """The right factor of the matrix unit out of groups: columns from `first` on."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, area: Area) -> None:
        super().__init__(b, product, schedule, bindings, area)
        self.groups = Groups(b, bindings["weight"], packed_groups(product, schedule), product,
                             schedule.tile_k, WIDE)
        self.spots = spots(b, schedule.invocations, schedule.tile_k // WIDE,
                           product.parts * schedule.tile_n)
        self.columns = packed_columns(b, product, schedule, first, self.spots)

    def fetch(self, chunk: Expr) -> list[Fetched]:
        runs = {outer: self.groups.begin(chunk, self.b.let(outer * WIDE))
                for outer in dict.fromkeys(spot.outer for spot in self.spots)}
        return [_numbered(self.groups.fetch(runs[spot.outer], self.columns[spot.inner], 1,
                                            spot.where))
                for spot in self.spots]

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        for spot, each in zip(self.spots, fetched):
            found = self.groups.factors(list(each.values.values()))
            self.store(spot, buffer, spot.inner, spot.outer, WIDE,
                       [vector(*found[:VECTOR]), vector(*found[VECTOR:])])


def _numbered(values: Sequence[Expr]) -> Fetched:
    """What was fetched for a spot, value by value."""
    return Fetched({(WEIGHT, n): value for n, value in enumerate(values)}, None)
