"""Attention in tiles, with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022).

A tile is some groups of queries of one head, a group as many as fit in a few vectors: queries lie
along the lanes, keys and channels along the rows of the micro-kernels, and no sum ever runs across
lanes. A block of keys and values is staged once for all groups:

    scores [key][query]  = sum over d of k[key][d] * q[d][query]           micro-kernel
    top    [query]       = max(top, scores)                                in its epilogue,
                                                                           or with the mask
    weights              = 2^(scores - reference)                          down the rows
    sums   [e][query]   += sum over keys of v[key][e] * weights[key]       micro-kernel

Scores are those of base 2. Any reference cancels when the sums are divided by the total of the
weights, so it is moved to the top, and what was summed before is scaled, only where the top has
grown past it by more than `SLACK`. Lanes behind the last query hold what the scratch memory held:
they have no say in that, or the same numbers would be rounded otherwise from run to run.

In bf16 two channels of queries and keys, and two keys of weights and values, make a pair.
"""

from __future__ import annotations

import math

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.functions import exp2, exp2_coefficients, reciprocal
from smalti.codegen.cpu.lowered import (
    KernelStep,
    NativeKernel,
    count_left,
    load_pointers,
    pointers,
    smaller,
)
from smalti.codegen.cpu.micro import (
    Micro,
    Reduction,
    load_sums,
    multiply,
    split_rows,
    store_sums,
    zero_sums,
)
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.transpose import transpose
from smalti.errors import IllegalSchedule
from smalti.kernel.build import LOWEST, MASK_SLACK, TOTAL_MIN
from smalti.kernel.form import STORED_BYTES, Buffer, Kernel
from smalti.schedule.schedule import AttentionSchedule

START = 1.5 * LOWEST
"""Below the lowest mask, in base 2: the top that rows with a mask start from."""
SLACK = 8.0
"""How far a score may lie above the reference, in powers of 2: weights stay below 2^SLACK."""
REFERENCE, TOP, TOTAL, NUMBER, LEEWAY, STATES = range(6)
"""Rows of a group's state: three f32 a query, its number, and its slack, infinite where there is no
such query."""


def lower_attention(kernel: Kernel, schedule: AttentionSchedule,
                    level: FeatureLevel) -> NativeKernel:
    """Machine code of an attention."""
    return _AttentionLowering(kernel, schedule, level).lower()


def staged_bytes(elements: int) -> int:
    """Bytes of a staged row of f32 or pairs: an odd number of cache lines, so that neighbouring
    rows fall into different sets."""
    return 64 * (-(-4 * elements // 64) | 1)


def row_bytes(buffer: Buffer) -> int:
    """Bytes from one token to the next in memory."""
    return STORED_BYTES[buffer.dtype] * buffer.strides[1]


class _AttentionLowering:
    def __init__(self, kernel: Kernel, schedule: AttentionSchedule, level: FeatureLevel) -> None:
        self.schedule, self.level, self.kernel = schedule, level, kernel
        self.q, self.k, self.v, self.out = (kernel.buffer(n) for n in ("q", "k", "v", "out"))
        self.mask = next((b for b in kernel.buffers if b.name == "mask"), None)
        for buffer in (self.q, self.k, self.v, self.out):
            if buffer.strides[3] != 1 and buffer.shape[3] > 1:
                raise IllegalSchedule(f"the channels of {buffer.name} must lie side by side")
        self.pairs = schedule.dtype == "bf16"
        self.degree = 3 if self.pairs else 5
        step = 2 if self.pairs else 1
        self.queries = schedule.vectors * level.lanes
        if self.mask is not None and self.queries > MASK_SLACK:
            raise IllegalSchedule(f"{self.queries} queries at a time read too far behind a mask")
        self.row_bytes = 4 * self.queries
        self.depth, self.width = -(-self.q.shape[3] // step), self.v.shape[3]
        self.key_rows = -(-schedule.keys // step)
        self.key_bytes, self.value_bytes = staged_bytes(self.depth), staged_bytes(self.width)
        self.turned_bytes = staged_bytes(max(self.q.shape[3], self.width))
        self.packed_at = STATES * self.row_bytes
        self.sums_at = self.packed_at + self.depth * self.row_bytes
        self.group_bytes = self.sums_at + self.width * self.row_bytes
        self.asm = level.assembler("attention")

    def lower(self) -> NativeKernel:
        asm, s = self.asm, self.schedule
        batch, tokens, heads, _ = self.q.shape
        table, index, scratch = asm.argument(), asm.argument(), asm.argument()
        names = pointers(self.kernel)
        held = load_pointers(asm, table, names)
        many = s.groups * self.queries
        blocks = -(-tokens // many)
        rest, block = asm.divide(asm.copy(index), blocks)
        n, head = asm.divide(rest, heads)
        first = asm.offset(asm.immediate(0), block, many)
        at = {}
        for name, buffer in zip("qkvo", (self.q, self.k, self.v, self.out)):
            size = STORED_BYTES[buffer.dtype]
            base = asm.offset(held[buffer.name], n, size * buffer.strides[0])
            group = heads // buffer.shape[2]  # of heads of queries that share this one
            own = asm.divide(asm.copy(head), group)[0] if group > 1 else head
            at[name] = asm.offset(base, own, size * buffer.strides[2])
        self.hidden = self._mask_of(held, n, head, first)
        self.state = asm.copy(scratch)
        self.scores = self.turned = self._behind(self.state, s.groups * self.group_bytes)
        self.keys = self._behind(self.scores, 2 * self.key_rows * self.row_bytes)
        self.values = self._behind(self.keys, s.keys * self.key_bytes)
        left = count_left(asm, first, many, tokens)
        self.groups: int | Register = s.groups
        if not isinstance(left, int):
            asm.advance(left, self.queries - 1)
            self.groups = asm.divide(left, self.queries)[0]
        self._each_group(first, lambda group, query: self._start(group, query, at["q"]))
        self._blocks(first, at["k"], at["v"])
        self._each_group(first, lambda group, query: self._finish(group, query, at["o"]))
        staged = (2 * self.key_rows * self.row_bytes + s.keys * self.key_bytes
                  + self.key_rows * self.value_bytes)
        scratch_bytes = s.groups * self.group_bytes + max(staged, self.queries * self.turned_bytes)
        step = KernelStep(asm.finish(), batch * heads * blocks)
        return NativeKernel((step,), names, scratch_bytes)

    def _mask_of(self, held: dict[str, Register], n: Register, head: Register,
                 query: Register) -> Register | None:
        """Where the mask of a head's first key and a query is; None without a mask."""
        if self.mask is None:
            return None
        at, size = held["mask"], STORED_BYTES[self.mask.dtype]
        for index, stride in zip((n, head, query), (*self.mask.strides[:2], self._query_step())):
            at = self.asm.offset(at, index, size * stride)
        return at

    def _query_step(self) -> int:
        """Elements of the mask from one query to the next: 1, or 0 where all have the same."""
        return self.mask.strides[3] if self.mask.shape[3] > 1 else 0

    def _mask_row(self) -> int:
        """Bytes of the mask from one key to the next."""
        return STORED_BYTES[self.mask.dtype] * self.mask.strides[2]

    @property
    def masked(self) -> bool:
        """True if scores change between their product and the maximum of them."""
        return self.mask is not None or bool(self.kernel.option("causal"))

    def _behind(self, register: Register, amount: int) -> Register:
        result = self.asm.copy(register)
        self.asm.advance(result, amount)
        return result

    def _vectors(self, at: Register, offset: int = 0) -> list[Address]:
        """The addresses of the vectors of the row of queries at `offset`."""
        return [Address(at, offset + v * self.level.bytes) for v in range(self.schedule.vectors)]

    def _each_group(self, first: Register, body) -> None:
        """`body` of each group's state and first query."""
        asm = self.asm
        group, query = asm.copy(self.state), asm.copy(first)
        with asm.loop(self.groups):
            body(group, query)
            asm.advance(group, self.group_bytes)
            asm.advance(query, self.queries)

    def _blocks(self, first: Register, k: Register, v: Register) -> None:
        """Emit the loop over all blocks of keys; if causal, those that no query of the tile lies
        behind are left out."""
        asm, keys = self.asm, self.schedule.keys
        whole, part = divmod(self.k.shape[1], keys)
        key, end = asm.immediate(0), asm.label()
        count: int | Register = whole
        if self.kernel.option("causal") and whole:
            last = asm.copy(first)
            asm.advance(last, self.schedule.groups * self.queries - 1)
            seen = asm.divide(last, keys)[0]
            asm.advance(seen, 1)
            count = smaller(asm, seen, whole)
        if whole:
            with asm.loop(count):
                self._block(keys, key, k, v)
        if part:
            if not isinstance(count, int):
                asm.op("compare_immediate", seen, whole + 1)
                asm.jump("less", end)
            self._block(part, key, k, v)
        asm.place(end)

    def _block(self, keys: int, key: Register, k: Register, v: Register) -> None:
        """Emit the work on `keys` keys and values; `k`, `v` and `key` are moved behind them."""
        asm = self.asm
        self._stage_keys(keys, k)
        self._stage_values(keys, v)
        group = asm.copy(self.state)
        masks = None if self.hidden is None else asm.copy(self.hidden)
        with asm.loop(self.groups):
            self._score(keys, group)
            if self.masked:
                self._hide(keys, key, group, masks)
            self._rescale(group)
            self._weigh(keys, group)
            self._collect(keys, group)
            asm.advance(group, self.group_bytes)
            if masks is not None:
                asm.advance(masks, self.queries * STORED_BYTES[self.mask.dtype]
                            * self._query_step())
        asm.advance(key, keys)
        if self.hidden is not None:
            asm.advance(self.hidden, keys * self._mask_row())

    # ------------------------------------------------------------------ staging

    def _order(self) -> Register | None:
        """What pairs are made by; nothing in f32."""
        return self.asm.order_of_pairs() if self.pairs else None

    def _stage_keys(self, keys: int, source: Register) -> None:
        """Stage keys: rows of d channels, in bf16 two to a lane."""
        asm, lanes, depth = self.asm, self.level.lanes, self.k.shape[3]
        target = asm.copy(self.keys)
        with asm.loop(keys):
            for v in range(-(-depth // lanes)):
                held = min(lanes, depth - v * lanes)
                at = Address(source, v * lanes * STORED_BYTES[self.k.dtype])
                value = elements.load(asm, self.k.dtype, at, held)
                dtype = self.schedule.dtype
                elements.store(asm, dtype, Address(target, v * lanes * STORED_BYTES[dtype]), value)
            asm.advance(source, row_bytes(self.k))
            asm.advance(target, self.key_bytes)

    def _stage_values(self, keys: int, source: Register) -> None:
        """Stage values: rows of e channels, in bf16 of two keys each."""
        asm, lanes = self.asm, self.level.lanes
        target = asm.copy(self.values)
        step = 2 if self.pairs else 1
        stride, order = row_bytes(self.v), self._order()

        def rows(count: int) -> None:
            for v in range(-(-self.width // lanes)):
                at = Address(source, v * lanes * STORED_BYTES[self.v.dtype])
                held = min(lanes, self.width - v * lanes)
                value = elements.load(asm, self.v.dtype, at, held)
                if self.pairs:
                    other = asm.zero() if count == 1 else elements.load(
                        asm, self.v.dtype, at.plus(stride), held)
                    value = asm.pair(order, value, other)
                asm.store(Address(target, v * self.level.bytes), value)
            asm.advance(source, count * stride)
            asm.advance(target, self.value_bytes)

        if keys // step:
            with asm.loop(keys // step):
                rows(step)
        if keys % step:
            rows(1)

    # ------------------------------------------------------------------ the parts of a group

    def _start(self, group: Register, query: Register, source: Register) -> None:
        """Pack the queries of a group as [d][query], scaled, and set its state before any key."""
        asm, lanes = self.asm, self.level.lanes
        self._copy(query, self.q, source, self.turned, into_scratch=True)
        scale = asm.load_constant(self.kernel.option("scale") / math.log(2))
        order = self._order()
        for v in range(self.schedule.vectors):
            at = self._behind(self.turned, v * lanes * self.turned_bytes)
            target = self._behind(group, self.packed_at + v * self.level.bytes)

            def block(channels: int, at: Register = at, target: Register = target) -> None:
                rows = [asm.load(Address(at, i * self.turned_bytes)) for i in range(lanes)]
                columns = [asm.result("mul", c, scale) for c in transpose(asm, rows)[:channels]]
                if self.pairs:
                    columns.extend([asm.zero()] * (channels % 2))
                    columns = [asm.pair(order, *columns[i:i + 2])
                               for i in range(0, channels, 2)]
                for i, column in enumerate(columns):
                    asm.store(Address(target, i * self.row_bytes), column)
                asm.advance(at, self.level.bytes)
                asm.advance(target, len(columns) * self.row_bytes)

            self._each_block(self.q.shape[3], block)
        first, zero, tokens = self._spread(query), asm.zero(), self.q.shape[1]
        for v, place in enumerate(self._vectors(group)):
            behind = asm.integers([v * lanes + i for i in range(lanes)])
            for row in (REFERENCE, TOP):
                start = LOWEST if self.mask is None else START
                asm.store(place.plus(row * self.row_bytes), asm.load_constant(start))
            asm.store(place.plus(TOTAL * self.row_bytes), zero)
            number = asm.result("add_int", first, behind)
            asm.store(place.plus(NUMBER * self.row_bytes), number)
            slack = asm.load_constant(SLACK)
            if tokens % self.queries:
                last = asm.integers([tokens - 1] * lanes)
                slack = asm.where_greater(number, last, asm.load_constant(math.inf), slack)
            asm.store(place.plus(LEEWAY * self.row_bytes), slack)
        target = self._behind(group, self.sums_at)
        with asm.loop(self.width):
            for place in self._vectors(target):
                asm.op("store", place, zero)
            asm.advance(target, self.row_bytes)

    def _each_block(self, channels: int, block) -> None:
        """Emit `block` for as many channels as there are lanes at a time, then for those that are
        left."""
        full, part = divmod(channels, self.level.lanes)
        if full:
            with self.asm.loop(full):
                block(self.level.lanes)
        if part:
            block(part)

    def _copy(self, query: Register, buffer: Buffer, memory: Register, turned: Register,
              into_scratch: bool) -> None:
        """Copy the rows of a group's queries from `memory` to scratch, or back."""
        asm, lanes, channels = self.asm, self.level.lanes, buffer.shape[3]
        outside = asm.offset(memory, query, row_bytes(buffer))
        inside = asm.copy(turned)
        with asm.loop(count_left(asm, query, self.queries, self.q.shape[1])):
            for v in range(-(-channels // lanes)):
                count = min(lanes, channels - v * lanes)
                far = Address(outside, v * lanes * STORED_BYTES[buffer.dtype])
                near = Address(inside, v * self.level.bytes)
                if into_scratch:
                    asm.store(near, elements.load(asm, buffer.dtype, far, count), count)
                else:
                    elements.store(asm, buffer.dtype, far, asm.load(near, count), count)
            asm.advance(outside, row_bytes(buffer))
            asm.advance(inside, self.turned_bytes)

    def _spread(self, number: Register) -> Register:
        """An integer in all lanes, through the memory of the scores."""
        self.asm.op("mov_store32", Address(self.scores), number)
        return self.asm.result("spread", Address(self.scores))

    def _score(self, keys: int, group: Register) -> None:
        """Compute the scores of the staged keys, and their maximum unless some are masked later."""
        asm, s = self.asm, self.schedule
        unroll = math.gcd(4, self.depth)
        source, target = asm.copy(self.keys), asm.copy(self.scores)
        for size, many in split_rows(keys, s.rows):
            shape = Micro(size, s.vectors, self.key_bytes, 4, self.row_bytes, unroll,
                          "pairs" if self.pairs else "f32")
            with asm.loop(many):
                sums = zero_sums(asm, size, s.vectors)
                multiply(asm, shape, source, self._behind(group, self.packed_at),
                         [Reduction(self.depth // unroll, 4 * unroll)], sums)
                store_sums(asm, sums, target, self.row_bytes)
                if not self.masked:
                    for v, at in enumerate(self._vectors(group, TOP * self.row_bytes)):
                        top = asm.load(at)
                        for row in sums:
                            asm.op("max", top, top, row[v])
                        asm.store(at, top)
                asm.advance(source, size * self.key_bytes)
                asm.advance(target, size * self.row_bytes)

    def _hide(self, keys: int, key: Register, group: Register, masks: Register | None) -> None:
        """Add the mask to the scores, make those of keys behind the query the lowest, and compute
        the maximum of all."""
        asm, lanes, causal = self.asm, self.level.lanes, bool(self.kernel.option("causal"))
        row = asm.copy(self.scores)
        tops = [asm.load(at) for at in self._vectors(group, TOP * self.row_bytes)]
        lowest = asm.load_constant(LOWEST if masks is None else 2 * START)
        number = queries = None
        if causal:
            saved = asm.load(Address(row))
            number = self._spread(key)
            asm.store(Address(row), saved)
            queries = [asm.load(at) for at in self._vectors(group, NUMBER * self.row_bytes)]
        mask = None if masks is None else asm.copy(masks)
        with asm.loop(keys):
            for v, (at, top) in enumerate(zip(self._vectors(row), tops)):
                score = asm.load(at)
                if mask is not None:
                    score = asm.result("max", lowest,
                                       asm.result("add", score, self._mask_vector(mask, v)))
                if causal:
                    score = asm.where_greater(number, queries[v], lowest, score)
                asm.store(at, score)
                asm.op("max", top, top, score)
            if causal:
                asm.op("add_int", number, number, asm.integers([1] * lanes))
            if mask is not None:
                asm.advance(mask, self._mask_row())
            asm.advance(row, self.row_bytes)
        for at, top in zip(self._vectors(group, TOP * self.row_bytes), tops):
            asm.store(at, top)

    def _mask_vector(self, mask: Register, vector: int) -> Register:
        """The mask of a key and the queries of a vector, for scores of base 2."""
        asm, dtype = self.asm, self.mask.dtype
        if self._query_step():
            at = Address(mask, vector * self.level.lanes * STORED_BYTES[dtype])
            value = elements.load(asm, dtype, at)
        else:
            value = elements.spread(asm, dtype, Address(mask))
        return asm.result("mul", value, asm.constant(1 / math.log(2)))

    def _rescale(self, group: Register) -> None:
        """Make the maxima the references of scores, where one has grown too far past its
        reference."""
        asm = self.asm
        references, totals, slacks = (self._vectors(group, row * self.row_bytes)
                                      for row in (REFERENCE, TOTAL, LEEWAY))
        old = [asm.load(at) for at in references]
        top = [asm.load(at) for at in self._vectors(group, TOP * self.row_bytes)]
        limits = [asm.result("add", r, slack) for r, slack in zip(old, slacks)]
        keep = asm.label()
        asm.op("compare_immediate", asm.any_greater(list(zip(top, limits))), 0)
        asm.jump("equal", keep)
        coefficients = exp2_coefficients(asm, self.degree)
        shrink = [exp2(asm, asm.result("sub", a, b), coefficients)
                  for a, b in zip(old, top)]
        for factor, total, reference, new in zip(shrink, totals, references, top):
            asm.store(total, asm.result("mul", factor, total))
            asm.store(reference, new)
        row = self._behind(group, self.sums_at)
        with asm.loop(self.width):
            for factor, at in zip(shrink, self._vectors(row)):
                asm.store(at, asm.result("mul", factor, at))
            asm.advance(row, self.row_bytes)
        asm.place(keep)

    def _weigh(self, keys: int, group: Register) -> None:
        """Make weights of scores, in bf16 those of two keys in the place of the first of each
        pair."""
        asm, step = self.asm, 2 if self.pairs else 1
        totals = self._vectors(group, TOTAL * self.row_bytes)
        references = [asm.load(at) for at in self._vectors(group, REFERENCE * self.row_bytes)]
        total = [asm.load(at) for at in totals]
        row, target = asm.copy(self.scores), asm.copy(self.scores)
        coefficients = exp2_coefficients(asm, self.degree)
        order = self._order()

        def rows(count: int) -> None:
            for v in range(self.schedule.vectors):
                weights = []
                for at in (Address(row, k * self.row_bytes + v * self.level.bytes)
                           for k in range(count)):
                    score = asm.result("sub", asm.load(at), references[v])
                    weights.append(exp2(asm, score, coefficients))
                    asm.op("add", total[v], total[v], weights[-1])
                if self.pairs:
                    weights.extend([asm.zero()] * (2 - count))
                    weights = [asm.pair(order, *weights)]
                for k, weight in enumerate(weights):
                    asm.store(Address(target, k * self.row_bytes + v * self.level.bytes), weight)
            asm.advance(row, count * self.row_bytes)
            asm.advance(target, (1 if self.pairs else count) * self.row_bytes)

        if keys // step:
            with asm.loop(keys // step):
                rows(step)
        if keys % step:
            rows(1)
        for at, register in zip(totals, total):
            asm.store(at, register)

    def _collect(self, keys: int, group: Register) -> None:
        """Add the weighted values to the sums [e][query]."""
        asm, s = self.asm, self.schedule
        rows = -(-keys // 2) if self.pairs else keys
        unroll = math.gcd(4, rows)
        source, target = asm.copy(self.values), self._behind(group, self.sums_at)
        for size, many in split_rows(self.width, s.rows):
            shape = Micro(size, s.vectors, 4, self.value_bytes, self.row_bytes, unroll,
                          "pairs" if self.pairs else "f32")
            with asm.loop(many):
                sums = load_sums(asm, size, s.vectors, target, self.row_bytes)
                multiply(asm, shape, source, asm.copy(self.scores),
                         [Reduction(rows // unroll, unroll * self.value_bytes)], sums)
                store_sums(asm, sums, target, self.row_bytes)
                asm.advance(source, 4 * size)
                asm.advance(target, size * self.row_bytes)

    def _finish(self, group: Register, query: Register, out: Register) -> None:
        """Divide by the totals and write [query][e]."""
        asm, lanes = self.asm, self.level.lanes
        totals = self._vectors(group, TOTAL * self.row_bytes)
        for v, total in enumerate(totals):
            divisor = asm.load(total)
            if self.mask is not None:
                divisor = asm.result("max", divisor, asm.constant(TOTAL_MIN))
            inverse = reciprocal(asm, divisor)
            at = self._behind(group, self.sums_at + v * self.level.bytes)
            target = self._behind(self.turned, v * lanes * self.turned_bytes)

            def block(channels: int, inverse: Register = inverse, at: Register = at,
                      target: Register = target) -> None:
                columns = [asm.result("mul", inverse, Address(at, i * self.row_bytes))
                           for i in range(channels)]
                columns.extend([inverse] * (lanes - channels))
                for i, row in enumerate(transpose(asm, columns)):
                    asm.store(Address(target, i * self.turned_bytes), row)
                asm.advance(at, channels * self.row_bytes)
                asm.advance(target, self.level.bytes)

            self._each_block(self.width, block)
        self._copy(query, self.out, out, self.turned, into_scratch=False)
