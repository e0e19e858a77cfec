"""Attention in tiles, with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022).

A work-group has some queries of one head, and goes through the keys a tile at a time. Its
invocations stand in rows and columns: row i has the queries 4 i to 4 i + 3, column j every key
and every 4 channels whose number is j more than a multiple of the columns.

    scores  [query][key]   = k q                     both staged in shared memory, sums in registers
    top     [query]        = max(top, scores)        over the row of invocations
    weights [key][query]   = 2^(scores - top)        to shared memory
    sums    [query][e]     = sums * 2^(old top - top) + weights v

`k` and `v` share their memory: they are staged by turns, so many channels at a time that all of it
fits. What must not be looked at has a score far below all others: its weight is 0.
"""

from __future__ import annotations

import math

from smalti.codegen.gpu.form import U32, Expr, GroupProgram, Name, number, op, spread, vector
from smalti.codegen.gpu.heads import BOTTOM, VECTOR, Heads, TokenTile
from smalti.codegen.gpu.line_attention import line_attention
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.matrix_attention import matrix_attention
from smalti.codegen.gpu.types import VectorType, vector_type
from smalti.kernel.build import TOTAL_MIN
from smalti.kernel.form import Kernel
from smalti.schedule.group import QUERIES, GroupAttention, GroupLimits, GroupMatrixAttention
from smalti.schedule.line_attention import GroupLineAttention

ROW = VectorType("f32", QUERIES)
"""A number for each query of an invocation."""
UNROLLED = 4
"""Steps of a loop that are written side by side: they share addresses, and what they load is on its
way together. Compilers unroll short loops by themselves, and long ones not at all."""
LOADS = 12
"""Vectors that are on their way together, at most: they wait in registers."""


def lower_attention(kernel: Kernel,
                    schedule: GroupAttention | GroupMatrixAttention | GroupLineAttention,
                    limits: GroupLimits) -> GroupSteps:
    """A work-group for some queries of each head."""
    if isinstance(schedule, GroupLineAttention):
        return GroupSteps((line_attention(kernel, schedule, limits),))
    if isinstance(schedule, GroupMatrixAttention):
        return GroupSteps((matrix_attention(kernel, schedule, limits),))
    return GroupSteps((_Attention(kernel, schedule, limits).program(),))


class _Attention(Heads[GroupAttention]):
    """Sums in registers of invocations."""

    def __init__(self, kernel: Kernel, schedule: GroupAttention, limits: GroupLimits) -> None:
        super().__init__(kernel, schedule, limits)
        b = self.b
        self.arrays = {name: b.shared(name, schedule.dtype if name != "part" else "f32", elements,
                                      VECTOR)
                       for name, elements in schedule.shared(self.depth).items()}
        self.row, self.column = (b.let(b.invocation // schedule.columns, "row"),
                                 b.let(b.invocation % schedule.columns, "column"))
        self.query = b.let(self.first + self.row * QUERIES, "query")

    def program(self) -> GroupProgram:
        """The program for all queries of all heads."""
        b, s = self.b, self.schedule
        depth = s.depth(self.depth)
        self.tile("q", self.arrays["query"], s.stride(depth), s.queries, depth).bring(self.first)
        keys, values = (self.tile(name, self.arrays["stage"], s.stride(s.channels), s.keys,
                                  s.channels) for name in "kv")
        self.top, self.total = (b.variable(value, name, ROW)
                                for value, name in ((BOTTOM, "top"), (0.0, "total")))
        self.sums = [[[b.variable(0.0, "sum", VectorType("f32", VECTOR)) for _ in range(QUERIES)]
                      for _ in range(s.vectors)] for _ in range(-(-self.width // s.channels))]
        with b.loop(self.stop(), step=s.keys, name="key") as key:
            first, again = self.tile_of(key)
            self.weigh(self.scores(first, again, keys))
            self.add(first, values)
        self.finish()
        return self.finished()

    # ------------------------------------------------------------------ a tile of keys

    def scores(self, key: Expr, again: Expr | None, tile: TokenTile) -> list[Expr]:
        """The scores of an invocation's queries, for each of its keys, in the tile that begins
        with `key` and has so many keys `again`."""
        b, s = self.b, self.schedule
        sums = [[b.variable(0.0, "score") for _ in range(QUERIES)] for _ in range(s.each)]
        with b.loop(s.depth(self.depth), step=s.channels, name="channel") as channel:
            b.barrier()
            tile.bring(key, channel)
            b.barrier()
            steps = self.along(s.channels // VECTOR, 1)
            with b.loop(s.channels, step=steps * VECTOR) as first:
                for step in range(steps):
                    self.score(sums, channel, first + step * VECTOR)
        queries = [self.query + r for r in range(QUERIES)]
        found = []
        counts = self.seen(self.column, key, again, [n * s.columns for n in range(s.each)])
        for n, row in enumerate(sums):
            mine = ([b.let(key + self.column + n * s.columns)] * QUERIES
                    if self.masked or self.causal else [])
            seen = spread(counts[n], QUERIES) if counts else None
            found.append(self.allowed(vector(*row), queries, mine, seen))
        return found

    def along(self, steps: int, loads: int) -> int:
        """Steps of a loop of `steps` that are written side by side; each loads so many vectors that
        no other needs."""
        return math.gcd(steps, UNROLLED if UNROLLED * loads <= LOADS else UNROLLED // 2)

    def score(self, sums: list[list[Name]], channel: Expr, c: Expr) -> None:
        """Add the products of `VECTOR` channels, `c` further than those that are staged."""
        b, s = self.b, self.schedule
        stride, width = s.stride(s.depth(self.depth)), s.stride(s.channels)
        q = [b.let(b.load(self.arrays["query"], (self.row * QUERIES + r) * stride + channel + c,
                          VECTOR)) for r in range(QUERIES)]
        for n, row in enumerate(sums):
            k = b.let(b.load(self.arrays["stage"], (self.column + n * s.columns) * width + c,
                             VECTOR))
            for total, of in zip(row, q):
                b.set(total, dot(of, k, total))

    def weigh(self, scores: list[Expr]) -> None:
        """Move the top, and put the weights below it into shared memory."""
        b, s = self.b, self.schedule
        top = scores[0]
        for score in scores[1:]:
            top = op("max", top, score)
        top = self.over_row(b.let(top * self.unit), "max")
        top = b.let(op("max", self.top, top))
        grown = b.let(op("exp2", self.top - top))
        weights = [b.let(self.weight(score, top)) for score in scores]
        b.set(self.top, top)
        b.set(self.total, sum(weights, self.total * grown))
        for row in (row for part in self.sums for row in part):
            for r, total in enumerate(row):
                b.set(total, total * spread(grown.lane(r), VECTOR))
        for n, weight in enumerate(weights):
            b.store(self.arrays["weight"], (self.column + n * s.columns) * s.stride(s.queries)
                    + self.row * QUERIES, weight)

    def over_row(self, value: Expr, fold: str) -> Expr:
        """A number for each query, folded over the invocations that share the queries; the staged
        keys are free then."""
        b, s = self.b, self.schedule
        if s.subgroup:
            for step in (1 << n for n in range(s.columns.bit_length() - 1)):
                value = b.let(op(fold, value, op("subgroup_shuffle_xor", value,
                                              number(step, U32))))
            b.barrier()
            return value
        part = self.arrays["part"]
        b.store(part, self.column * s.queries + self.row * QUERIES, value)
        b.barrier()
        found = b.variable(b.load(part, self.row * QUERIES, QUERIES), "folded")
        with b.loop(s.columns, 1) as column:
            b.set(found, op(fold, found, b.load(part, column * s.queries + self.row * QUERIES,
                                                QUERIES)))
        return found

    def add(self, key: Expr, tile: TokenTile) -> None:
        """Add the values of a tile by their weights."""
        b, s = self.b, self.schedule
        for part, sums in enumerate(self.sums):
            if part:
                b.barrier()
            tile.bring(key, part * s.channels)
            b.barrier()
            steps = self.along(s.keys, s.vectors + 1)
            with b.loop(s.keys, step=steps) as first:
                for step in range(steps):
                    self.add_row(sums, first + step)

    def add_row(self, sums: list[list[Name]], row: Expr) -> None:
        """Add the values of a key."""
        b, s = self.b, self.schedule
        weight = b.let(b.load(self.arrays["weight"], row * s.stride(s.queries)
                              + self.row * QUERIES, QUERIES))
        for n, totals in enumerate(sums):
            at, inside = self.channel(n)
            value = b.let(b.load(self.arrays["stage"], row * s.stride(s.channels) + at, VECTOR,
                                 where=inside))
            for r, total in enumerate(totals):
                b.set(total, op("fma", spread(weight.lane(r), VECTOR), value, total))

    def channel(self, number: int) -> tuple[Expr, Expr | None]:
        """The first of the channels that vector `number` of an invocation has in a part, and
        whether there are such."""
        s = self.schedule
        at = self.b.let((self.column + number * s.columns) * VECTOR)
        beyond = (number + 1) * s.columns * VECTOR > s.channels
        return at, (at < s.channels) if beyond else None

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Divide by the totals, and write the results."""
        b, s = self.b, self.schedule
        total = self.over_row(self.total, "add")
        if self.masked:
            total = op("max", total, number(TOTAL_MIN, ROW))
        share = b.let(1.0 / total)
        for r in range(QUERIES):
            token = b.let(self.query + r)
            for part, rows in enumerate(self.sums):
                for n, row in enumerate(rows):
                    at, inside = self.channel(n)
                    value = b.let(row[r] * spread(share.lane(r), VECTOR))
                    self.write(token, b.let(at + part * s.channels), value,
                               self.width % s.channels > 0, inside)


def dot(x: Expr, y: Expr, total: Expr) -> Expr:
    """The sum of products of vectors, added to a total."""
    for lane in range(vector_type(x.type).lanes):
        total = op("fma", x.lane(lane), y.lane(lane), total)
    return total
