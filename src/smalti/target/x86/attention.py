"""Attention in tiles, with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022).

A tile is one head and as many queries as fit in a few vectors: queries lie along the lanes, keys
and channels along the rows of the micro-kernels. Keys and values are then read where they are,
element by element, and no sum ever runs across lanes:

    scores [key][query]  = sum over d of k[key][d] * q[d][query]           micro-kernel
    top    [query]       = max(top, scores), weights = exp(scores - top)   down the rows
    out    [e][query]    = out * exp(old top - top) + sum over keys of v[key][e] * weights[key]

Only the queries are packed (once a tile), and only the result is turned back.
"""

from __future__ import annotations

import math

from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.schedule import AttentionSchedule
from smalti.target.x86.assembler import Assembler, Memory, Register
from smalti.target.x86.functions import exp, reciprocal
from smalti.target.x86.instructions import Level
from smalti.target.x86.lowered import Lowered, Step, count_left, load_pointers, pointers
from smalti.target.x86.micro import (
    Micro, Reduction, load_sums, multiply, split_rows, store_sums, zero_sums,
)

LOWEST = -1e30


def lower_attention(kernel: Kernel, schedule: AttentionSchedule, level: Level) -> Lowered:
    """Machine code of an attention."""
    return _Attention(kernel, schedule, level).lower()


class _Attention:
    def __init__(self, kernel: Kernel, schedule: AttentionSchedule, level: Level) -> None:
        self.schedule, self.level, self.kernel = schedule, level, kernel
        self.q, self.k, self.v, self.out = (kernel.buffer(n) for n in ("q", "k", "v", "out"))
        for buffer in (self.q, self.k, self.v, self.out):
            if buffer.strides[3] != 1 and buffer.shape[3] > 1:
                raise IllegalSchedule(f"the channels of {buffer.name} must lie side by side")
        self.queries = schedule.vectors * level.lanes
        self.row_bytes = 4 * self.queries
        self.depth, self.width = self.q.shape[3], self.v.shape[3]
        self.asm = Assembler(level, "attention")

    def lower(self) -> Lowered:
        asm, s = self.asm, self.schedule
        batch, tokens, heads, _ = self.q.shape
        table, index, scratch = asm.argument(), asm.argument(), asm.argument()
        names = pointers(self.kernel)
        held = load_pointers(asm, table, names)
        blocks = -(-tokens // self.queries)
        rest, block = asm.divide(asm.copy(index), blocks)
        n, head = asm.divide(rest, heads)
        self.first = asm.offset(asm.immediate(0), block, self.queries)
        at = {}
        for name, buffer in zip("qkvo", (self.q, self.k, self.v, self.out)):
            base = asm.offset(held[buffer.name], n, 4 * buffer.strides[0])
            at[name] = asm.offset(base, head, 4 * buffer.strides[2])
        for name, buffer in (("q", self.q), ("o", self.out)):
            at[name] = asm.offset(at[name], self.first, 4 * buffer.strides[1])
        self.state = asm.copy(scratch)
        self.packed = self._behind(self.state, 4)
        self.scores = self._behind(self.packed, self.depth)
        self.sums = self._behind(self.scores, s.keys)
        self._start(at["q"])
        key = asm.immediate(0)
        whole, part = divmod(self.k.shape[1], s.keys)
        if whole:
            with asm.loop(whole):
                self._block(s.keys, key, at["k"], at["v"])
        if part:
            self._block(part, key, at["k"], at["v"])
        self._finish(at["o"])
        rows = 4 + self.depth + s.keys + self.width
        return Lowered((Step(asm.finish(), batch * heads * blocks),), names,
                       rows * self.row_bytes)

    def _behind(self, register: Register, rows: int) -> Register:
        result = self.asm.copy(register)
        self.asm.advance(result, rows * self.row_bytes)
        return result

    def _vectors(self, at: Register, row: int = 0) -> list[Memory]:
        """The addresses of the vectors of one row of queries."""
        return [Memory(at, row * self.row_bytes + v * self.level.bytes)
                for v in range(self.schedule.vectors)]

    # ------------------------------------------------------------------ the parts of a tile

    def _start(self, source: Register) -> None:
        """Queries packed [d][query] and scaled; state: top, total, then the query numbers."""
        asm, lanes = self.asm, self.level.lanes
        scale = asm.load_constant(self.kernel.option("scale"))
        last = asm.immediate(self.q.shape[1] - 1)
        asm.op("isub", last, self.first)
        asm.op("mov_store32", Memory(self.state, 3 * self.row_bytes), last)
        last = asm.result("spread", Memory(self.state, 3 * self.row_bytes))
        stride = [4 * self.q.strides[1]] * lanes
        places = []
        for v in range(self.schedule.vectors):
            number = asm.result("load", asm.integers([v * lanes + i for i in range(lanes)]))
            number = asm.result("min_int", number, last)
            places.append(asm.result("mul_int", number, asm.integers(stride)))
        target = asm.copy(self.packed)
        with asm.loop(self.depth):
            for v, place in enumerate(places):
                value = asm.result("mul", asm.gather(source, place), scale)
                asm.store(Memory(target, v * self.level.bytes), value)
            asm.advance(source, 4)
            asm.advance(target, self.row_bytes)
        asm.op("mov_store32", Memory(self.state, 3 * self.row_bytes), self.first)
        first = asm.result("spread", Memory(self.state, 3 * self.row_bytes))
        for v in range(self.schedule.vectors):
            at = v * self.level.bytes
            number = asm.integers([v * lanes + i for i in range(lanes)])
            asm.store(Memory(self.state, at), asm.load_constant(LOWEST))
            asm.store(Memory(self.state, self.row_bytes + at), asm.zero())
            asm.store(Memory(self.state, 2 * self.row_bytes + at),
                      asm.result("add_int", first, number))
        target, zero = asm.copy(self.sums), asm.zero()
        with asm.loop(self.width):
            for at in self._vectors(target):
                asm.op("store", at, zero)
            asm.advance(target, self.row_bytes)

    def _block(self, keys: int, key: Register, k: Register, v: Register) -> None:
        """`keys` keys and values; `k` and `v` are moved behind them."""
        asm = self.asm
        self._score(keys, k)
        if self.kernel.option("causal"):
            self._mask(keys, key)
        self._weigh(keys)
        self._collect(keys, v)
        asm.advance(v, keys * 4 * self.v.strides[1])
        asm.advance(key, keys)

    def _score(self, keys: int, k: Register) -> None:
        asm, s = self.asm, self.schedule
        stride = 4 * self.k.strides[1]
        unroll = math.gcd(4, self.depth)
        target = asm.copy(self.scores)
        for size, many in split_rows(keys, s.rows):
            shape = Micro(size, s.vectors, stride, 4, self.row_bytes, unroll)
            with asm.loop(many):
                sums = zero_sums(asm, size, s.vectors)
                multiply(asm, shape, k, asm.copy(self.packed),
                         [Reduction(self.depth // unroll, 4 * unroll)], sums)
                store_sums(asm, sums, target, self.row_bytes)
                asm.advance(k, size * stride)
                asm.advance(target, size * self.row_bytes)

    def _mask(self, keys: int, key: Register) -> None:
        """Scores of keys behind the query become the lowest."""
        asm, lanes = self.asm, self.level.lanes
        asm.op("mov_store32", Memory(self.state, 3 * self.row_bytes), key)
        number = asm.result("spread", Memory(self.state, 3 * self.row_bytes))
        queries = [asm.load(at) for at in self._vectors(self.state, 2)]
        lowest, one = asm.load_constant(LOWEST), asm.integers([1] * lanes)
        row = asm.copy(self.scores)
        with asm.loop(keys):
            for at, query in zip(self._vectors(row), queries):
                score = asm.load(at)
                asm.store(at, asm.where_greater(number, query, lowest, score))
            asm.op("add_int", number, number, one)
            asm.advance(row, self.row_bytes)

    def _weigh(self, keys: int) -> None:
        """Scores to weights under the new top; what was summed before is scaled to it."""
        asm = self.asm
        old = [asm.load(at) for at in self._vectors(self.state)]
        top = [asm.result("copy", r) for r in old]
        row = asm.copy(self.scores)
        with asm.loop(keys):
            for register, at in zip(top, self._vectors(row)):
                asm.op("max", register, register, at)
            asm.advance(row, self.row_bytes)
        total = zero_sums(asm, 1, self.schedule.vectors)[0]
        row = asm.copy(self.scores)
        with asm.loop(keys):
            for i, at in enumerate(self._vectors(row)):
                weight = exp(asm, asm.result("sub", asm.load(at), top[i]))
                asm.op("add", total[i], total[i], weight)
                asm.store(at, weight)
            asm.advance(row, self.row_bytes)
        shrink = [exp(asm, asm.result("sub", a, b)) for a, b in zip(old, top)]
        for i, at in enumerate(self._vectors(self.state, 1)):
            asm.op("fma", total[i], shrink[i], asm.load(at))
            asm.store(at, total[i])
        for at, register in zip(self._vectors(self.state), top):
            asm.store(at, register)
        row = asm.copy(self.sums)
        with asm.loop(self.width):
            for i, at in enumerate(self._vectors(row)):
                asm.store(at, asm.result("mul", shrink[i], at))
            asm.advance(row, self.row_bytes)

    def _collect(self, keys: int, v: Register) -> None:
        """Add the weighted values to the sums [e][query]."""
        asm, s = self.asm, self.schedule
        stride, unroll = 4 * self.v.strides[1], math.gcd(4, keys)
        source, target = asm.copy(v), asm.copy(self.sums)
        for size, many in split_rows(self.width, s.rows):
            shape = Micro(size, s.vectors, 4, stride, self.row_bytes, unroll)
            with asm.loop(many):
                sums = load_sums(asm, size, s.vectors, target, self.row_bytes)
                multiply(asm, shape, source, asm.copy(self.scores),
                         [Reduction(keys // unroll, unroll * stride)], sums)
                store_sums(asm, sums, target, self.row_bytes)
                asm.advance(source, 4 * size)
                asm.advance(target, size * self.row_bytes)

    def _finish(self, target: Register) -> None:
        """Divide by the totals and write [query][e]."""
        asm, lanes = self.asm, self.level.lanes
        inverse = [reciprocal(asm, asm.load(at)) for at in self._vectors(self.state, 1)]
        row = asm.copy(self.sums)
        with asm.loop(self.width):
            for i, at in enumerate(self._vectors(row)):
                asm.store(at, asm.result("mul", inverse[i], at))
            asm.advance(row, self.row_bytes)
        index = asm.result("load", asm.integers([i * self.row_bytes for i in range(lanes)]))
        source = asm.copy(self.sums)
        with asm.loop(count_left(asm, self.first, self.queries, self.q.shape[1])):
            for v in range(-(-self.width // lanes)):
                count = min(lanes, self.width - v * lanes)
                here = asm.copy(source)
                asm.advance(here, v * lanes * self.row_bytes)
                asm.store(Memory(target, v * self.level.bytes), asm.gather(here, index, count),
                          count)
            asm.advance(source, 4)
            asm.advance(target, 4 * self.out.strides[1])
