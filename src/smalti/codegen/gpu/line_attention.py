"""Attention in the matrix unit where invocations hold whole queries.

Where a driver gives each invocation a column of sums and of right factors, the scores of a query
never leave its registers. Of a tile of keys a set of subgroups computes

    scores  [key][query]     = k q^T                     each invocation has a column: its query
    top     [query]          = scores, if they are far more
    weights [key][query]     = 2^(scores - top)          the column of a right factor
    sums    [channel][query] = sums * 2^(old top - top) + v^T weights

Nobody stores scores, exchanges them with neighbours, or looks for who has which: a query's top, the
sum of its weights, and its results belong to one invocation.

Where it is also known which words of left factors an invocation holds, keys lie in shared memory as
words [two channels][key], and values as [two keys][channel]: what an invocation reads of a factor
is then one piece, and it reads that as vectors.

Subgroups of a set divide the keys of the scores, and the channels of the sums: they exchange the
tops that each has found, and weights, through shared memory. Tiles are those of
`matrix_attention.py`, as is when the top moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from smalti.codegen.gpu.form import (
    F16,
    F32,
    U32,
    Expr,
    GroupProgram,
    Name,
    Number,
    Shared,
    number,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.heads import BOTTOM, VECTOR, WIDE, Ahead, TokenSpot, TokenTile, wide
from smalti.codegen.gpu.staged_heads import SLACK, StagedHeads, fold
from smalti.codegen.gpu.types import Matrix
from smalti.errors import IllegalSchedule
from smalti.kernel.build import TOTAL_MIN
from smalti.kernel.form import Buffer, Kernel
from smalti.schedule.group import GroupLimits
from smalti.schedule.line_attention import WORDS_PAD, GroupLineAttention

Scores = list[list[Name]]
"""Matrices of scores: of each part of the keys, for each matrix of queries."""


def line_attention(kernel: Kernel, schedule: GroupLineAttention,
                   limits: GroupLimits) -> GroupProgram:
    """A work-group for some queries of each head, each of its invocations for a few of them."""
    return _LineAttention(kernel, schedule, limits).program()


class _LineAttention(StagedHeads[GroupLineAttention]):
    def __init__(self, kernel: Kernel, schedule: GroupLineAttention, limits: GroupLimits) -> None:
        super().__init__(kernel, schedule, limits)
        if schedule.words and not all(self.bound[name].lanes == WIDE for name in "kv"):
            raise IllegalSchedule("words of keys and values, of which no eight halves lie together")
        b, s = self.b, self.schedule
        rows, columns, depth = s.shape
        a, w = Matrix("a", rows, depth, s.dtype), Matrix("b", depth, columns, s.dtype)
        self.token, self.of_queries = a, w
        self.sum, self.matrix_depth = Matrix("sum", rows, columns, "f32"), depth
        self.key_width, self.value_width = s.padded(self.depth, self.width)
        self.chunk = s.channels or self.value_width
        self.own = self.chunk // s.across  # channels of a chunk that a subgroup has sums of
        self.mine = s.keys // s.across  # keys of a tile that a subgroup has scores of
        self.counts = False
        self.arrays = {name: self.array(name, elements)
                       for name, elements in s.shared(self.depth, self.width).items()}
        self.member: Expr = number(0, U32)
        block = b.subgroup
        if s.across > 1:
            self.member = b.let(b.subgroup % s.across, "member")
            block = b.subgroup // s.across
        self.block = b.let(block * (s.blocks * s.query_lines), "block")
        self.rows = [b.let(self.block + (b.lane + n * s.query_lines), "row")
                     for n in range(s.blocks)]
        self.query = [b.let(self.first + row, "query") for row in self.rows]
        self.once = not self.causal and self.keys <= s.keys
        """Whether all keys are in one tile."""

    def program(self) -> GroupProgram:
        """The program for all queries of all heads."""
        b, s = self.b, self.schedule
        held = [self.query_held(n) for n in range(s.blocks)] if s.held else []
        if not s.held:
            self.tile("q", self.arrays["query"], s.stride(self.key_width), s.queries,
                      self.key_width).bring(self.first)
        blocks = range(0 if self.once else s.blocks)
        self.tops = [b.variable(BOTTOM, "top") for _ in blocks]
        self.levels: list[Expr] = [*self.tops]  # what weights are below
        self.counters = [b.variable(0.0, "total") for _ in blocks]
        self.totals: list[Expr] = [*self.counters]
        self.sums = [[b.variable(0.0, "sum", self.sum) for _ in range(s.blocks)]
                     for _ in range(self.value_width // (s.across * s.token_lines))]
        keys, values = self.tiles()
        ahead = [Ahead(tile, number(0, U32)) for tile in (keys, values)] if (
            s.ahead and self.keys > s.keys) else []  # there is a next tile
        self.one = self.unknown_one() if self.few_registers else number(1.0, F32)
        with b.loop(self.stop(), step=s.keys, name="key") as key:
            first, again = self.tile_of(key)
            if not s.channels:
                self.stage(key, first, keys, values, ahead)
            found = self.scores(first, keys, held)
            self.add(first, values, self.weigh(found, first, again))
        self.finish()
        return self.finished()

    def at_once(self, buffer: Buffer) -> int:
        if self.schedule.words and buffer.name == "v" and buffer.dtype == "f16" and (
                wide(buffer, WIDE)):
            return WIDE
        return super().at_once(buffer)

    def array(self, name: str, elements: int) -> Shared:
        """A shared array: keys and values may lie in words."""
        if self.schedule.words and name in ("key", "value", "stage"):
            return self.b.shared(name, "u32", elements // 2, VECTOR)
        return super().array(name, elements)

    def tiles(self) -> tuple[TokenTile, TokenTile]:
        """What brings keys and values, whole or by chunks, in words or not."""
        s = self.schedule
        if not s.words:
            return super().tiles()
        widths, long = (s.channels, s.channels), s.keys + WORDS_PAD
        names = ("stage", "stage")
        if not s.channels:
            widths, names = (self.depth, self.width), ("key", "value")
            self.fill(self.arrays["key"], long,
                      range(self.depth // 2, self.key_width // 2), range(s.keys))
            self.fill(self.arrays["value"], self.value_width + WORDS_PAD, range(s.keys // 2),
                      range(self.width, self.value_width))
        across = (s.channels or self.value_width) + WORDS_PAD
        found = (KeyWords(self, "k", self.arrays[names[0]], long, s.keys, widths[0], True, VECTOR),
                 ValueWords(self, "v", self.arrays[names[1]], across, s.keys, widths[1], True, 2))
        self.lines = {tile.name: self.b.let(self.b.lane * tile.stride) for tile in found}
        return found

    def query_held(self, block: int) -> list[Expr]:
        """The queries of a block as matrices along the channels: each invocation reads its own."""
        b, bound = self.b, self.bound["q"]
        query = b.let(op("min", self.query[block], number(self.queries - 1, U32)))
        origin = b.let(self.place("q", query, 0))
        step = self.kernel.buffer("q").strides[3]

        def channel(place: int) -> Expr:
            if place >= self.depth:
                return number(0.0, F16)
            return b.let(b.load(bound, origin + place * step).to("f16"))

        def channels(place: int) -> Expr:
            if bound.lanes < VECTOR:
                return vector(*(channel(place + lane) for lane in range(VECTOR)))
            if place >= self.depth:
                return spread(number(0.0, F16), VECTOR)
            return b.load(bound, origin + place * step, VECTOR,
                          scalar="f16" if bound.dtype == "f16" else None).to("f16")

        return [self.matrix(self.of_queries, [b.let(channels(k + n))
                                              for n in range(0, self.matrix_depth, VECTOR)])
                for k in range(0, self.key_width, self.matrix_depth)]

    # ------------------------------------------------------------------ lines of matrices

    def matrix(self, type: Matrix, lines: list[Expr]) -> Expr:
        """A matrix of the lines that invocations have in vectors."""
        return self.b.let(op("with_columns", Number(0.0, type), *lines))

    def elements(self, matrix: Expr, first: int) -> Expr:
        """A vector of the line that an invocation has of a matrix."""
        return vector(*(op("of_column", matrix, number(first + n, U32)) for n in range(VECTOR)))

    def tokens(self, tile: TokenTile, line: Expr, k: Expr | int) -> Expr:
        """Lines of a tile, along its rows, from `k` on."""
        b, s = self.b, self.schedule
        if s.words:
            at = self.lines[tile.name] + line + k // 2 * tile.stride
            words = [b.let(b.load(tile.array, at + n, VECTOR))
                     for n in range(0, s.token_lines, VECTOR)]
            return b.let(op("with_words", Number(0.0, self.token), *words))
        stride = tile.stride // tile.halves
        return b.let(b.matrix(tile.array, line * stride + k // tile.halves, stride, self.token))

    def shared_queries(self, name: str, stride: int, block: int, k: Expr | int) -> Expr:
        """A factor of queries out of a shared array."""
        at = (self.block + block * self.schedule.query_lines) * stride + k
        return self.b.let(self.b.matrix(self.arrays[name], at, stride, self.of_queries,
                                        by_columns=True))

    # ------------------------------------------------------------------ a tile of keys

    def scores(self, key: Expr, tile: TokenTile, held: list[list[Expr]]) -> Scores:
        """The scores of a subgroup's part of the keys."""
        b, s = self.b, self.schedule
        found = [[b.variable(0.0, "score", self.sum) for _ in range(s.blocks)]
                 for _ in range(self.mine // s.token_lines)]
        if held:
            for n in range(len(held[0])):
                self.add_scores(found, [row[n] for row in held], n * self.matrix_depth, tile)
        elif s.channels:
            for channel in range(0, self.depth, s.channels):
                b.barrier()
                tile.bring(key, channel)
                b.barrier()
                self.add_along(found, channel, s.channels, tile)
        else:
            self.add_along(found, 0, self.key_width, tile)
        return found

    def add_along(self, found: Scores, channel: int, channels: int, tile: TokenTile) -> None:
        """Add the products with queries in shared memory, along the channels of a tile."""
        stride = self.schedule.stride(self.key_width)
        with self.b.loop(channels, step=self.matrix_depth, name="depth") as k:
            queries = [self.shared_queries("query", stride, block, k + channel)
                       for block in range(len(found[0]))]
            self.add_scores(found, queries, k, tile)

    def add_scores(self, found: Scores, queries: list[Expr], k: Expr | int,
                   tile: TokenTile) -> None:
        """Add the products of a depth of a matrix."""
        lines = self.schedule.token_lines
        for n, row in enumerate(found):
            keys = self.tokens(tile, self.member * self.mine + n * lines, k)
            for total, query in zip(row, queries):
                self.b.set(total, op("matrix_multiply_add", keys, query, total))

    def weigh(self, found: Scores, first: Expr, again: Expr | None) -> list[list[Expr]]:
        """Move the tops, and give the weights of the tile as factors: for each matrix of keys those
        of all blocks; none of a set, which exchanges them. The tile begins with key `first`, and
        has so many keys `again`."""
        b, s = self.b, self.schedule
        scores = [self.allowed_scores(found, block, first, again) for block in range(s.blocks)]
        most = []
        for vectors in scores:
            best = vectors[0]
            for each in vectors[1:]:
                best = b.let(op("max", best, each))
            most.append(b.let(fold(best, "max") * self.unit))
        if s.across > 1:
            most = self.best_of_set(most)
        for block, each in enumerate(most):
            self.move(block, each)
        weights = []
        for block, vectors in enumerate(scores):
            level = spread(self.levels[block], VECTOR)
            values = [b.let(self.weight(each, level)) for each in vectors]
            total = values[0]
            for each in values[1:]:
                total = b.let(total + each)
            self.count(block, b.let(fold(total, "add")))
            weights.append(self.factors(block, [b.let(each.to("f16")) for each in values]))
        return [list(blocks) for blocks in zip(*weights)]

    def allowed_scores(self, found: Scores, block: int, first: Expr,
                       again: Expr | None) -> list[Expr]:
        """The scores of an invocation's query of a block, `VECTOR` at a time."""
        b, lines = self.b, self.schedule.token_lines
        place = b.let(self.member * self.mine)
        mine = b.let(first + place)
        counts = self.seen(place, first, again, range(self.mine))
        scores = []
        for n in range(0, self.mine, VECTOR):
            keys = ([b.let(mine + (n + lane)) for lane in range(VECTOR)]
                    if self.masked or self.causal else [])
            seen = vector(*counts[n:n + VECTOR]) if counts else None
            scores.append(self.allowed(
                b.let(self.elements(found[n // lines][block], n % lines)),
                [self.query[block]] * VECTOR, keys, seen))
        return scores

    def best_of_set(self, most: list[Expr]) -> list[Expr]:
        """The largest scores of queries among those that the subgroups of a set have found."""
        b, s = self.b, self.schedule
        for row, each in zip(self.rows, most):
            b.store(self.arrays["top"], self.member * s.queries + row, each)
        b.barrier()
        return [self.over_set(row, "max") for row in self.rows]

    def over_set(self, row: Expr, instruction: str) -> Expr:
        """What the subgroups of a set have written of a query, folded."""
        b, s = self.b, self.schedule
        found: Expr = b.load(self.arrays["top"], row)
        for member in range(1, s.across):
            found = op(instruction, found, b.load(self.arrays["top"], row + member * s.queries))
        return b.let(found)

    def move(self, block: int, most: Expr) -> None:
        """Move a query's top where scores are far above it, and make smaller what is of earlier
        weights."""
        b = self.b
        if self.once:
            self.levels.append(b.let(op("max", most, number(BOTTOM, F32))))
            return
        far = b.let(most > self.tops[block] + SLACK)
        top = b.let(select(far, most, self.tops[block]))
        grown = b.let(op("exp2", self.tops[block] - top))
        b.set(self.tops[block], top)
        moved = self.anywhere(far)
        with b.branch(moved):
            b.set(self.counters[block], self.counters[block] * grown)
            factor = self.matrix(self.sum, [spread(grown, VECTOR)] * (
                self.schedule.token_lines // VECTOR))
            for row in self.sums:
                b.set(row[block], row[block] * factor)

    def count(self, block: int, total: Expr) -> None:
        """Add up what the weights of a query come to."""
        if self.once:
            self.totals.append(total)
        else:
            self.b.set(self.counters[block], self.counters[block] + total)

    def factors(self, block: int, weights: list[Expr]) -> list[Expr]:
        """The weights of all keys as factors: an invocation's own, or, of a set, by way of shared
        memory, from where they are read when all have written theirs."""
        b, s = self.b, self.schedule
        each = self.matrix_depth // VECTOR
        if s.across == 1:
            return [self.matrix(self.of_queries, weights[n:n + each])
                    for n in range(0, len(weights), each)]
        here = b.let(self.rows[block] * s.stride(s.keys) + self.member * self.mine)
        for n, weight in enumerate(weights):
            b.store(self.arrays["weight"], here + n * VECTOR, weight)
        return []

    def shared_weights(self, k: int) -> list[Expr]:
        """The weights of a matrix of keys, from where the subgroups of a set have put them."""
        stride = self.schedule.stride(self.schedule.keys)
        return [self.shared_queries("weight", stride, block, k)
                for block in range(self.schedule.blocks)]

    def add(self, key: Expr, tile: TokenTile, weights: list[list[Expr]]) -> None:
        """Add the values of a tile by their weights.

        Where registers are few, one sum at a time is a product (`matrix_attention.py`)."""
        b, s, lines = self.b, self.schedule, self.schedule.token_lines
        each, steps = self.own // lines, range(0, s.keys, self.matrix_depth)
        for chunk in range(self.value_width // self.chunk):
            if s.channels:
                b.barrier()
                tile.bring(key, chunk * self.chunk)
            if s.channels or s.across > 1:
                b.barrier()
            if s.across > 1 and s.keeps and chunk == 0:
                weights = [self.shared_weights(k) for k in steps]
            anew = self.unknown_zero(key, chunk) if s.channels and self.few_registers else 0
            for n, row in enumerate(self.sums[chunk * each:(chunk + 1) * each]):
                for step, k in enumerate(steps):
                    values = self.tokens(tile, self.member * self.own + n * lines, anew + k)
                    factors = weights[step] if s.keeps else self.shared_weights(k)
                    for total, weight in zip(row, factors):
                        b.set(total, op("matrix_multiply_add", values, weight, total))
                if self.few_registers and not self.once:
                    for total in row:
                        b.set(total, op("matrix_times", total, self.one))

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Divide by the totals, and write the results: each invocation those of its queries."""
        b, s = self.b, self.schedule
        totals: list[Expr] = [b.let(total + 0.0) for total in self.totals]
        if s.across > 1:
            b.barrier()  # tops are read
            for row, total in zip(self.rows, totals):
                b.store(self.arrays["top"], self.member * s.queries + row, total)
            b.barrier()
            totals = [self.over_set(row, "add") for row in self.rows]
        if self.masked:
            totals = [b.let(op("max", total, number(TOTAL_MIN, F32))) for total in totals]
        shares = [b.let(spread(b.let(1.0 / total), VECTOR)) for total in totals]
        each = self.own // s.token_lines
        for place, sums in enumerate(self.sums):
            chunk, n = divmod(place, each)
            start = b.let(self.member * self.own + (chunk * self.chunk + n * s.token_lines))
            for query, total, share in zip(self.query, sums, shares):
                for first in range(0, s.token_lines, VECTOR):
                    value = b.let(self.elements(total, first) * share)
                    self.write(query, start + first, value, self.value_width > self.width, None)


class KeyWords(TokenTile):
    """Keys to shared memory as words [two channels][key]."""

    def _target(self) -> Expr:
        return self.column // 2 * self.stride + self.row

    def _store(self, spot: TokenSpot, values: Sequence[Expr]) -> None:
        b, at = self.heads.b, self.target + (spot.column // 2 * self.stride + spot.row)
        for word in range(WIDE // 2):
            b.store(self.array, at + word * self.stride,
                    b.let(vector(*(value.lane(word) for value in values))))


class ValueWords(TokenTile):
    """Values to shared memory as words [two keys][channel]."""

    def _target(self) -> Expr:
        return self.row // 2 * self.stride + self.column

    def _store(self, spot: TokenSpot, values: Sequence[Expr]) -> None:
        b, at = self.heads.b, self.target + (spot.row // 2 * self.stride + spot.column)
        words: list[Expr] = []  # of the halves of two keys each, channel by channel
        for n in range(WIDE // 2):
            one, other = (value.lane(n) for value in values)
            words += [op("low_halves", one, other), op("high_halves", one, other)]
        for first in range(0, WIDE, VECTOR):
            b.store(self.array, at + first, b.let(vector(*words[first:first + VECTOR])))
