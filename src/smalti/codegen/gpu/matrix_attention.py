"""Attention in the matrix unit (Dao et al. 2022, with sums that stay where they are).

A subgroup has some rows of matrices of queries, which it holds as factors all the time. A tile of
keys and values is staged for all subgroups; of it, each computes by itself

    scores  [query][key] = q k                           to shared memory, as nobody knows where in
                                                         a subgroup the elements of a matrix are
    top     [query]      = max(top, scores)              by the invocations that share a row
    weights [query][key] = e^(scores - top)              to shared memory, as factors
    grown   [query][*]   = e^(old top - top)             over the first scores: a matrix of equal
                                                         columns, that scales sums
    sums    [query][e]   = sums * grown + weights v

Of wide heads several work-groups compute the same scores, and the sums of a slice of the channels.
"""

from __future__ import annotations

from smalti.codegen.gpu.form import U32, Expr, GroupProgram, Name, number, op, spread
from smalti.codegen.gpu.heads import LOG2_E, WIDE, Heads
from smalti.codegen.gpu.types import Matrix, vector_type
from smalti.kernel.build import LOWEST, TOTAL_MIN
from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupMatrixAttention


def matrix_attention(kernel: Kernel, schedule: GroupMatrixAttention) -> GroupProgram:
    """A work-group for some queries of each head, each of its subgroups for some of them."""
    return _MatrixAttention(kernel, schedule).program()


class _MatrixAttention(Heads[GroupMatrixAttention]):
    def __init__(self, kernel: Kernel, schedule: GroupMatrixAttention) -> None:
        self.slices = schedule.slices
        super().__init__(kernel, schedule)
        b, s = self.b, schedule
        rows, columns, depth = s.shape
        self.a, self.w = Matrix("a", rows, depth, s.dtype), Matrix("b", depth, columns, s.dtype)
        self.sum = Matrix("sum", rows, columns, "f32")
        self.arrays = {name: b.shared(name, s.dtype if name != "score" else "f32", elements, WIDE)
                       for name, elements in s.shared(self.depth, self.width).items()}
        self.block = b.let(b.subgroup * s.rows, "block")
        self.row = b.let(self.block + b.lane // s.share, "row")
        self.part = b.let(b.lane % s.share, "part")
        self.query = b.let(self.first + self.row, "query")

    def program(self) -> GroupProgram:
        """The program for all queries of all heads."""
        b, s = self.b, self.schedule
        key_width, value_width = s.padded(self.depth, self.width)
        self.channel = b.let(b.group[0] % s.slices * value_width, "channel")
        queries = self.factors(key_width)
        self.top, self.total = b.variable(LOWEST, "top"), b.variable(0.0, "total")
        sums = [[b.variable(0.0, "sum", self.sum) for _ in range(value_width // self.sum.columns)]
                for _ in range(s.blocks)]
        with b.loop(self.stop(), step=s.keys, name="key") as key:
            b.barrier()
            for array, name, channel, width in (("key", "k", 0, key_width),
                                                ("value", "v", self.channel, value_width)):
                self.stage(self.arrays[array], s.stride(width), name, key, s.keys, channel, width)
            b.barrier()
            self.scores(queries, s.stride(key_width))
            b.barrier()
            self.weigh(key)
            b.barrier()
            self.add(sums, s.stride(value_width))
        self.finish(sums, value_width)
        return self.finished()

    def at(self, block: int, stride: int) -> Expr:
        """Where the rows of one of the subgroup's blocks begin."""
        return (self.block + block * self.a.rows) * stride

    def factors(self, width: int) -> list[list[Expr]]:
        """The queries of each block as matrices along the channels, by way of the weights' memory:
        so many channels at a time as a tile has keys."""
        b, s = self.b, self.schedule
        found: list[list[Expr]] = [[] for _ in range(s.blocks)]
        for channel in range(0, width, s.keys):
            channels = min(s.keys, width - channel)
            b.barrier()
            self.stage(self.arrays["weight"], s.stride(s.keys), "q", self.first, s.queries,
                       channel, channels)
            b.barrier()
            for block, row in enumerate(found):
                row += [b.let(b.matrix(self.arrays["weight"], self.at(block, s.stride(s.keys)) + k,
                                       s.stride(s.keys), self.a))
                        for k in range(0, channels, self.a.columns)]
        return found

    # ------------------------------------------------------------------ a tile of keys

    def scores(self, queries: list[list[Expr]], stride: int) -> None:
        """The scores of all keys, to shared memory."""
        b, s = self.b, self.schedule
        with b.loop(s.keys, step=self.sum.columns, name="column") as column:
            sums = [b.variable(0.0, "score", self.sum) for _ in queries]
            for k in range(len(queries[0])):
                keys = b.let(b.matrix(self.arrays["key"], column * stride + k * self.w.rows, stride,
                                      self.w, by_columns=True))
                for total, row in zip(sums, queries):
                    b.set(total, op("matrix_multiply_add", row[k], keys, total))
            for block, total in enumerate(sums):
                b.store_matrix(self.arrays["score"], self.at(block, s.score_stride) + column,
                               s.score_stride, total)

    def weigh(self, key: Expr) -> None:
        """Move the top, and put weights and growth into shared memory; invocations that share a row
        take every fourth keys of it in turn."""
        b, s = self.b, self.schedule
        places = [b.let((self.part + n * s.share) * WIDE)
                  for n in range(s.keys // (WIDE * s.share))]
        here = b.let(self.row * s.score_stride)
        scores = [self.allowed(b.load(self.arrays["score"], here + at, WIDE), [self.query] * WIDE,
                               [b.let(key + at + lane) for lane in range(WIDE)]) for at in places]
        top = scores[0]
        for score in scores[1:]:
            top = op("max", top, score)
        top = b.let(op("max", self.top, self.over_row(fold(b.let(top), "max"), "max")))
        grown = b.let(op("exp2", (self.top - top) * LOG2_E))
        b.set(self.top, top)
        weights = [b.let(op("exp2", (score - spread(top, WIDE)) * LOG2_E)) for score in scores]
        b.set(self.total, self.total * grown + fold(b.let(sum(weights[1:], weights[0])), "add"))
        for at, weight in zip(places, weights):
            b.store(self.arrays["weight"], self.row * s.stride(s.keys) + at, weight)
        for at in places[:self.sum.columns // (WIDE * s.share)]:
            b.store(self.arrays["score"], here + at, spread(grown, WIDE))

    def over_row(self, value: Expr, instruction: str) -> Expr:
        """A number folded over the invocations that share a row."""
        step = 1
        while step < self.schedule.share:
            value = self.b.let(value)
            value = op(instruction, value, op("subgroup_shuffle_xor", value, number(step, U32)))
            step *= 2
        return value

    def add(self, sums: list[list[Name]], stride: int) -> None:
        """Add the values of a tile by their weights."""
        b, s = self.b, self.schedule
        for block, row in enumerate(sums):
            grown = b.let(b.matrix(self.arrays["score"], self.at(block, s.score_stride),
                                   s.score_stride, self.sum))
            for total in row:
                b.set(total, total * grown)
        with b.loop(s.keys, step=self.a.columns, name="row") as key:
            weights = [b.let(b.matrix(self.arrays["weight"], self.at(block, s.stride(s.keys)) + key,
                                      s.stride(s.keys), self.a)) for block in range(s.blocks)]
            for n, column in enumerate(zip(*sums)):
                value = b.let(b.matrix(self.arrays["value"], key * stride + n * self.sum.columns,
                                       stride, self.w))
                for weight, total in zip(weights, column):
                    b.set(total, op("matrix_multiply_add", weight, value, total))

    # ------------------------------------------------------------------ the end

    def finish(self, sums: list[list[Name]], width: int) -> None:
        """Divide by the totals, and write the results: as many columns at a time as there are
        keys."""
        b, s = self.b, self.schedule
        total = self.over_row(self.total, "add")
        if self.masked:
            total = op("max", total, number(TOTAL_MIN, total.type))
        share = b.let(spread(b.let(1.0 / total), WIDE))
        for first in range(0, width, s.keys):
            b.barrier()
            columns = min(s.keys, width - first)
            for block, row in enumerate(sums):
                for at in range(0, columns, self.sum.columns):
                    b.store_matrix(self.arrays["score"], self.at(block, s.score_stride) + at,
                                   s.score_stride, row[(first + at) // self.sum.columns])
            b.barrier()
            with b.loop(columns // (WIDE * s.share), name="turn") as turn:
                place = b.let((turn * s.share + self.part) * WIDE)
                value = b.load(self.arrays["score"], self.row * s.score_stride + place, WIDE)
                self.write(self.query, b.let(place + first + self.channel), b.let(value * share),
                           width, None)


def fold(vector: Expr, instruction: str) -> Expr:
    """The lanes of a named vector, folded."""
    found = vector.lane(0)
    for lane in range(1, vector_type(vector.type).lanes):
        found = op(instruction, found, vector.lane(lane))
    return found
