"""Attention in the matrix unit (Dao et al. 2022, with sums that stay where they are).

A set of subgroups, often of one, has some rows of matrices of queries. A tile of keys and values is
staged for all of the work-group: keys [key][channel], values [channel][key], so that both are read
along the depth of their product. Of it, each set computes by itself

    scores  [query][key] = q k                           to shared memory, as nobody knows where in
                                                         a subgroup the elements of a matrix are
    top     [query]      = scores, if they are far more  by the invocations that share a row
    weights [query][key] = 2^(scores - top)              to shared memory, as factors
    grown   [query][*]   = 2^(old top - top)             over the first scores: a matrix of equal
                                                         columns, that scales sums
    sums    [query][e]   = sums * grown + weights v

Subgroups of a set divide the keys of the scores, and the channels of the sums, so that the sums of
wide heads fit into registers. What is too wide for shared memory is staged in chunks of channels.

The top is any number that is not far below the scores: it moves when they exceed it by `SLACK`, so
in most tiles sums need no scaling.

Where matrices reach behind the last channel, and there are several tiles, values are 1 in the first
place there: its sum is what the weights of a query come to, and nobody adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from smalti.codegen.gpu.form import (
    F32,
    U32,
    Expr,
    GroupProgram,
    Name,
    number,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.heads import BOTTOM, VECTOR, WIDE, Ahead, TokenTile, wide
from smalti.codegen.gpu.staged_heads import SLACK, StagedHeads, fold
from smalti.codegen.gpu.types import Matrix
from smalti.kernel.build import TOTAL_MIN
from smalti.kernel.form import Buffer, Kernel
from smalti.schedule.group import GroupLimits, GroupMatrixAttention

KEPT = 16
"""Scores of a row that an invocation keeps in registers: of more, it reads them twice."""
KEPT_ONCE = 40
"""The same where all keys are in one tile: there are no sums yet."""
WRITTEN_OUT = 2
"""Turns of a loop that writes results which are written out, at most, so that where each of them
goes is a constant away from where the first does. Four turns of heads of 512 channels cost AMD's
compiler 22 moves in the loop before, whose registers are all taken."""


def matrix_attention(kernel: Kernel, schedule: GroupMatrixAttention,
                     limits: GroupLimits) -> GroupProgram:
    """A work-group for some queries of each head, each of its sets of subgroups for some of them.
    """
    return _MatrixAttention(kernel, schedule, limits).program()


class _MatrixAttention(StagedHeads[GroupMatrixAttention]):
    def __init__(self, kernel: Kernel, schedule: GroupMatrixAttention,
                 limits: GroupLimits) -> None:
        super().__init__(kernel, schedule, limits)
        b, s = self.b, schedule
        rows, columns, depth = s.shape
        self.a, self.w = Matrix("a", rows, depth, s.dtype), Matrix("b", depth, columns, s.dtype)
        self.sum = Matrix("sum", rows, columns, "f32")
        self.key_width, self.value_width = s.padded(self.depth, self.width)
        self.chunk = s.channels or self.value_width
        self.own = self.chunk // s.across  # channels of a chunk that a subgroup has sums of
        self.arrays = {name: self.array(name, elements)
                       for name, elements in s.shared(self.depth, self.width).items()}
        block, place = b.subgroup * s.rows, b.lane
        self.member: Expr = number(0, U32)
        if s.across > 1:
            self.member = b.let(b.subgroup % s.across, "member")
            block = b.subgroup // s.across * s.rows
            place = self.member * s.subgroup + b.lane
        self.block = b.let(block, "block")
        sharing = s.rows * s.share // s.subgroup  # subgroups of a set that have rows
        self.sharer = self.member < sharing if sharing < s.across else None
        row = place // s.share
        if self.sharer is not None:
            row = op("min", row, s.rows - 1)
        self.row = b.let(self.block + row, "row")
        self.part = b.let(place % s.share, "part")
        self.query = b.let(self.first + self.row, "query")
        self.level: Expr = number(BOTTOM, F32)
        self.sum_of_row: Expr = number(0.0, F32)
        self.counts = s.counts(self.keys, self.width)
        self.once = not self.causal and self.keys <= schedule.keys and self.sharer is None
        """Whether all keys are in one tile, and each subgroup knows what its own rows come to."""

    def program(self) -> GroupProgram:
        """The program for all queries of all heads."""
        b, s = self.b, self.schedule
        held = self.queries_held() if s.held else []
        if not s.held:
            self.tile("q", self.arrays["query"], s.stride(self.key_width), s.queries,
                      self.key_width).bring(self.first)
        if not self.once:  # what weights are below
            self.level = self.top = b.variable(BOTTOM, "top")
            if not self.counts:  # and what they come to
                self.sum_of_row = self.total = b.variable(0.0, "total")
        self.sums = [[b.variable(0.0, "sum", self.sum)
                      for _ in range(self.value_width // (s.across * self.sum.columns))]
                     for _ in range(s.blocks)]
        keys, values = self.tiles()
        ahead = [Ahead(tile, number(0, U32)) for tile in (keys, values)] if (
            s.ahead and self.keys > s.keys) else []  # there is a next tile
        self.one = self.unknown_one() if self.few_registers else number(1.0, F32)
        with b.loop(self.stop(), step=s.keys, name="key") as key:
            first, again = self.tile_of(key)
            if not s.channels:
                self.stage(key, first, keys, values, ahead)
            self.scores(first, keys, held)
            self.meet()
            with self.sharing():
                self.weigh(first, again)
            self.add(first, values)
        self.finish()
        return self.finished()

    def sharing(self) -> AbstractContextManager[None]:
        """What follows is for the subgroups of a set that share its rows: most often all."""
        return nullcontext() if self.sharer is None else self.b.branch(self.sharer)

    def meet(self) -> None:
        """Wait for those who share queries."""
        self.b.barrier(subgroup=self.schedule.across == 1)

    def at(self, block: int, stride: int) -> Expr:
        """Where the rows of one of a subgroup's blocks begin."""
        return (self.block + block * self.a.rows) * stride

    def at_once(self, buffer: Buffer) -> int:
        return WIDE if buffer.name == "q" and self.reads_queries else super().at_once(buffer)

    @property
    def reads_queries(self) -> bool:
        """Whether queries that are held are read as matrices where they are: all of these are
        whole, and their rows begin at multiples of 16 bytes. That is a shorter way to the first
        product, which counts where all keys are in one tile; AMD's compiler makes two moves more of
        a loop that follows. Where registers are few, drivers read matrices word by word."""
        buffer, s = self.kernel.buffer("q"), self.schedule
        return s.held and self.keys <= s.keys and not (
            self.few_registers or self.ragged or self.depth % s.shape[2]) and (
            buffer.dtype == s.dtype and wide(buffer, WIDE))

    def queries_held(self) -> list[list[Expr]]:
        """The queries of each block as matrices along the channels: from where they are, or by way
        of the weights' memory, so many channels at a time as a tile has keys. Where registers are
        few, rows lie closer than those of weights: else compilers would keep the addresses for
        these, in 40 registers."""
        b, s = self.b, self.schedule
        if self.reads_queries:
            step = self.kernel.buffer("q").strides[1]
            at = self.place("q", b.let(self.first + self.block), 0)
            return [[b.let(b.matrix(self.bound["q"], at + (block * self.a.rows * step + k), step,
                                    self.a)) for k in range(0, self.depth, self.a.columns)]
                    for block in range(s.blocks)]
        found: list[list[Expr]] = [[] for _ in range(s.blocks)]
        stride = s.keys if self.few_registers else s.stride(s.keys)
        for channel in range(0, self.key_width, s.keys):
            channels = min(s.keys, self.key_width - channel)
            b.barrier()
            self.tile("q", self.arrays["weight"], stride, s.queries, channels).bring(
                self.first, channel)
            b.barrier()
            for block, row in enumerate(found):
                row += [b.let(b.matrix(self.arrays["weight"], self.at(block, stride) + k, stride,
                                       self.a)) for k in range(0, channels, self.a.columns)]
        return found

    # ------------------------------------------------------------------ a tile of keys

    def scores(self, key: Expr, tile: TokenTile, held: list[list[Expr]]) -> None:
        """The scores of a subgroup's part of the keys, to shared memory."""
        b, s = self.b, self.schedule
        mine, step = s.ways * s.keys // s.across, s.columns * self.sum.columns
        with b.loop(mine, step=step, name="column") as column:
            place = b.let(self.member * mine + column)  # of a score, way by way
            first = place if s.ways == 1 else b.let(place % s.keys)
            sums = [[b.variable(0.0, "score", self.sum) for _ in range(s.columns)]
                    for _ in range(s.blocks)]
            if held:
                for k in range(len(held[0])):
                    self.multiply(sums, [row[k] for row in held], first, k * self.w.rows, tile)
            elif s.channels:
                self.multiply_chunks(sums, first, key, tile)
            else:
                self.multiply_along(sums, first, 0, self.key_width, tile)
            for block, row in enumerate(sums):
                for n, total in enumerate(row):
                    b.store_matrix(self.arrays["score"], self.at(block, s.score_stride) + place
                                   + n * self.sum.columns, s.score_stride, total)

    def multiply_chunks(self, sums: list[list[Name]], first: Expr, key: Expr,
                        tile: TokenTile) -> None:
        """Add the products chunk by chunk of the channels, the last of which may be shorter."""
        b, chunk = self.b, tile.channels
        whole = self.depth // chunk * chunk

        def add(channel: Expr | int) -> None:
            b.barrier()
            tile.bring(key, channel)
            b.barrier()
            at = first
            if isinstance(channel, int) and self.few_registers:
                at = b.let(first + self.unknown_zero(key, channel))
            self.multiply_along(sums, at, channel, chunk, tile)

        if self.few_registers:
            for begin in range(0, self.depth, chunk):
                add(begin)
            return
        with b.loop(whole, step=chunk, name="channel") as channel:
            add(channel)
        if whole < self.depth:
            add(whole)

    def multiply_along(self, sums: list[list[Name]], first: Expr, channel: Expr | int,
                       channels: int, tile: TokenTile) -> None:
        """Add the products of queries in shared memory, along the channels of a tile."""
        b, s, stride = self.b, self.schedule, self.schedule.stride(self.key_width)
        own = channels // s.ways
        start = b.let(self.member * s.columns * self.sum.columns // s.keys * own)
        with b.loop(own, step=self.w.rows, name="depth") as step:
            k = step if s.ways == 1 else b.let(start + step)
            queries: list[Expr] = [
                b.let(b.matrix(self.arrays["query"], self.at(block, stride) + channel + k, stride,
                               self.a)) for block in range(len(sums))]
            self.multiply(sums, queries, first, k, tile)

    def multiply(self, sums: list[list[Name]], queries: list[Expr], first: Expr, k: Expr | int,
                 tile: TokenTile) -> None:
        """Add the products of a matrix of queries of each block and some of keys."""
        b = self.b
        for n, column in enumerate(zip(*sums)):
            line = tile.stride // tile.halves
            at = (first + n * self.sum.columns) * line + k // tile.halves
            keys = b.let(b.matrix(tile.array, at, line, self.w, by_columns=True))
            for total, query in zip(column, queries):
                b.set(total, op("matrix_multiply_add", query, keys, total))

    def weigh(self, first: Expr, again: Expr | None) -> None:
        """Move the top, and put weights into shared memory. Invocations that share a row take turns
        with its keys, `VECTOR` at a time. The tile begins with key `first`, and has so many keys
        `again`."""
        b, s = self.b, self.schedule
        places = [b.let((self.part + n * s.share) * VECTOR)
                  for n in range(s.keys // (VECTOR * s.share))]
        here = b.let(self.row * s.score_stride)
        twice = len(places) * VECTOR > (KEPT_ONCE if self.once else KEPT)

        mine = first + places[0]
        steps = [n * s.share * VECTOR + lane for n in range(len(places)) for lane in range(VECTOR)]
        counts = self.seen(places[0], first, again, steps)

        def score(n: int) -> Expr:
            ways: list[Expr] = [b.load(self.arrays["score"], here + places[n] + way * s.keys,
                                       VECTOR) for way in range(s.ways)]
            here_on = slice(n * VECTOR, (n + 1) * VECTOR)
            keys = ([b.let(mine + by) for by in steps[here_on]]
                    if self.masked or self.causal else [])
            seen = None
            if counts and not (self.once and (n + 1) * s.share * VECTOR <= self.keys):
                seen = vector(*counts[here_on])
            return self.allowed(sum(ways[1:], ways[0]), [self.query] * VECTOR, keys, seen)

        scores = [score(0)]
        most = scores[0]
        for n in range(1, len(places)):
            scores.append(score(n))
            most = b.let(op("max", most, scores[-1]))
        if twice:
            b.barrier(subgroup=True)  # so that compilers do not keep what they have read
        most = b.let(self.over_row(fold(most, "max"), "max") * self.unit)
        grown = self.move(most)
        weights: list[Expr] = []
        for n, (at, found) in enumerate(zip(places, scores)):
            weight = b.let(self.weight(score(n) if twice else found, spread(self.level, VECTOR)))
            b.store(self.arrays["weight"], self.row * s.stride(s.keys) + at, weight)
            if not self.counts:
                weights = [b.let(weights[0] + weight) if weights else weight]
        if grown is None:
            self.sum_of_row = fold(weights[0], "add")
            return
        if weights:
            b.set(self.total, self.total + fold(weights[0], "add"))
        step = VECTOR * s.share
        with self.b.branch(self.moved) if s.across == 1 else nullcontext():
            for at in places[:max(1, self.sum.columns // step)]:
                b.store(self.arrays["score"], here + at, spread(grown, VECTOR),
                        where=at < self.sum.columns if self.sum.columns < step else None)

    def move(self, most: Expr) -> Expr | None:
        """Move the top where scores are far above it. Gives what that makes of earlier weights,
        None where there are none."""
        b = self.b
        if self.once:
            self.level = b.let(op("max", most, number(BOTTOM, F32)))
            return None
        far = b.let(most > self.top + SLACK)
        if self.schedule.across == 1:
            self.moved = self.anywhere(far)
        top = b.let(select(far, most, self.top))
        grown = b.let(op("exp2", self.top - top))
        b.set(self.top, top)
        if not self.counts:
            b.set(self.total, self.total * grown)
        return grown

    def over_row(self, value: Expr, instruction: str) -> Expr:
        """A number folded over the invocations that share a row."""
        step = 1
        while step < self.schedule.share:
            value = self.b.let(value)
            value = op(instruction, value, op("subgroup_shuffle_xor", value, number(step, U32)))
            step *= 2
        return value

    def add(self, key: Expr, tile: TokenTile) -> None:
        """Add the values of a tile by their weights."""
        b, s = self.b, self.schedule
        each, steps = self.own // self.sum.columns, range(0, s.keys, self.a.columns)
        kept: list[list[Expr]] = []  # the weights of all keys
        for chunk in range(self.value_width // self.chunk):
            if s.channels:
                b.barrier()
                tile.bring(key, chunk * self.chunk)
                b.barrier()
            else:
                self.meet()
            if chunk == 0 and not self.once:
                self.scale()
            sums = [row[chunk * each:(chunk + 1) * each] for row in self.sums]
            if self.few_registers and not self.once and len(steps) <= len(self.sums[0]):
                kept = kept or [self.weights(k) for k in steps]
                anew = self.unknown_zero(key, chunk) if s.channels else number(0, U32)
                self.add_by_columns(sums, kept, anew, tile)
                continue
            with b.loop(s.keys, step=self.a.columns, name="row") as k:
                weights = self.weights(k)
                for n, column in enumerate(zip(*sums)):
                    self.add_keys(column, weights, n, k, tile)

    def add_by_columns(self, sums: list[list[Name]], weights: list[list[Expr]], anew: Expr,
                       tile: TokenTile) -> None:
        """Add the products of a chunk of a tile column by column, by the weights of all its keys.
        `anew` is 0, and makes addresses others than those of the chunk before.

        Intel's compiler leaves the registers of what goes from turn to turn to nobody else, and a
        product cannot be written to them, as products ignore which invocations take part. So there
        is one sum at a time that is a product: multiplied by 1 it goes to where it was.
        """
        b = self.b
        for n, column in enumerate(zip(*sums)):
            for k, row in enumerate(weights):
                self.add_keys(column, row, n, b.let(anew + k * self.a.columns), tile)
            for total in column:
                b.set(total, op("matrix_times", total, self.one))

    def weights(self, k: Expr | int) -> list[Expr]:
        """The weights of each block for a matrix of keys from `k` on."""
        b, stride = self.b, self.schedule.stride(self.schedule.keys)
        return [b.let(b.matrix(self.arrays["weight"], self.at(block, stride) + k, stride, self.a))
                for block in range(self.schedule.blocks)]

    def add_keys(self, sums: Sequence[Name], weights: list[Expr], n: int, k: Expr,
                 tile: TokenTile) -> None:
        """Add the values of a matrix of keys from `k` on to the sums of each block in column `n`,
        by their weights."""
        b = self.b
        at = (self.member * self.own + n * self.sum.columns) * tile.stride + k
        value = b.let(b.matrix(tile.array, at, tile.stride, self.w, by_columns=True))
        for weight, total in zip(weights, sums):
            b.set(total, op("matrix_multiply_add", weight, value, total))

    def scale(self) -> None:
        """Make the sums smaller as earlier weights are. Subgroups that share queries look whether
        the top of any row has moved."""
        b, s = self.b, self.schedule
        if s.across > 1:
            rows = [b.let(self.block + (b.lane + n) % s.rows)
                    for n in range(0, s.rows, s.subgroup)]
            grown = [b.load(self.arrays["score"], row * s.score_stride) for row in rows]
            least: Expr = grown[0]
            for each in grown[1:]:
                least = op("min", least, each)
            self.moved = self.anywhere(least < 1.0)
        with b.branch(self.moved):
            for block, row in enumerate(self.sums):
                factor = b.let(b.matrix(self.arrays["score"], self.at(block, s.score_stride),
                                        s.score_stride, self.sum))
                for total in row:
                    b.set(total, total * factor)

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Divide by the totals, and write the results: as many columns at a time as there are
        scores, those that the totals are among first."""
        b, s = self.b, self.schedule
        piece = s.ways * s.keys // s.across
        places = [(start, first) for start in range(0, self.value_width // s.across, self.own)
                  for first in range(0, self.own, piece)]
        counter = self.width % self.own // piece * piece
        if self.counts:
            places.sort(key=lambda place: place[1] != counter)
        share = None if self.counts else self.share_of(self.over_row(self.sum_of_row, "add"))
        for start, first in places:
            columns = min(piece, self.own - first)
            self.meet()
            self.leave(start + first, columns)
            self.meet()
            if share is None:
                at = self.width // self.own * columns + self.width % self.own - counter
                share = self.share_of(b.load(self.arrays["score"],
                                             self.row * s.score_stride + at))
            turns = s.across * columns // (VECTOR * s.share)
            with self.sharing():
                if turns <= WRITTEN_OUT:
                    for n in range(turns):
                        self.write_turn(n, columns, start * s.across + first, share)
                else:
                    with b.loop(turns, name="turn") as turn:
                        self.write_turn(turn, columns, start * s.across + first, share)

    def write_turn(self, turn: Expr | int, columns: int, first: int, share: Expr) -> None:
        """Write what invocations have in a turn of so many `columns` of each subgroup, from channel
        `first` on of the first of them."""
        b, s = self.b, self.schedule
        step, part = VECTOR * s.share, self.part * VECTOR
        place = b.let(part + turn * step)
        value = b.load(self.arrays["score"], self.row * s.score_stride + place, VECTOR)
        ragged = self.value_width > self.width
        if s.across == 1 or step % columns and columns % step:
            channel = place // columns * self.own + place % columns if s.across > 1 else place
        else:  # it is the sum of what the turn says and what the invocation's part does
            channel = b.let(part // columns * self.own + part % columns) + (
                turn * step // columns * self.own + turn * step % columns)
            if isinstance(turn, int):
                last = max(n // columns * self.own + n % columns for n in range(0, step, VECTOR))
                last += turn * step // columns * self.own + turn * step % columns
                ragged = first + last + VECTOR > self.width
        self.write(self.query, b.let(channel + first), b.let(value * share), ragged, None)

    def share_of(self, total: Expr) -> Expr:
        """What a row's sums are multiplied by whose weights come to `total`, in each lane."""
        if self.masked:
            total = op("max", total, number(TOTAL_MIN, F32))
        return self.b.let(spread(self.b.let(1.0 / total), VECTOR))

    def leave(self, first: int, columns: int) -> None:
        """Put some columns of a subgroup's sums where scores were."""
        b, s, wide = self.b, self.schedule, self.sum.columns
        for block, row in enumerate(self.sums):
            for at in range(0, columns, wide):
                b.store_matrix(self.arrays["score"], self.at(block, s.score_stride)
                               + self.member * columns + at, s.score_stride,
                               row[(first + at) // wide])
