"""Heads of an attention: where their tokens lie, and which of them see which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Generic, TypeVar

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import both
from smalti.codegen.gpu.form import (
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
from smalti.codegen.gpu.lowered import bind
from smalti.codegen.gpu.weights import VECTOR, WIDE
from smalti.dataclass import dataclass
from smalti.kernel.build import LOWEST
from smalti.kernel.form import Buffer, Kernel
from smalti.schedule.group import GroupAttention, GroupLimits, GroupMatrixAttention
from smalti.schedule.line_attention import GroupLineAttention

LOG2_E = math.log2(math.e)
BOTTOM = LOWEST * LOG2_E
"""What the top of a row begins with: scores are to the base 2, so that weights are powers of it."""
UNIT_MIN = 1e-6
"""The least factor of scores that is applied late: what is below all others stays finite."""
TOGETHER = 4
"""Vectors, or turned blocks of them, that are loaded before they are stored where only some
invocations have one: so many wait for memory at a time, in 16 registers, or 32."""
Schedule = TypeVar("Schedule", GroupAttention, GroupMatrixAttention, GroupLineAttention)


class Heads(Generic[Schedule]):
    """What the ways to compute attention share: where tokens lie, and which of them see which."""

    def __init__(self, kernel: Kernel, schedule: Schedule, limits: GroupLimits) -> None:
        self.kernel, self.few_registers = kernel, limits.few_registers
        self.schedule: Schedule = schedule
        self.queries, self.heads, self.depth = kernel.buffer("q").shape[1:]
        _, self.keys, _, self.width = kernel.buffer("v").shape
        self.masked = any(buffer.name == "mask" for buffer in kernel.buffers)
        self.causal = bool(kernel.option("causal"))
        self.ragged = self.queries % schedule.queries > 0
        scale = float(kernel.option("scale"))
        late = not self.masked and scale > UNIT_MIN
        self.factor, self.unit = (1.0, scale * LOG2_E) if late else (scale, LOG2_E)
        b = self.b = Builder("attention", schedule.size, schedule.subgroup)
        self.bound = {buffer.name: bind(b, kernel, buffer.name, self.at_once(buffer))
                      for buffer in kernel.buffers if buffer.role != "local"}
        self.first = b.let(b.group[0] * schedule.queries, "first")

    def at_once(self, buffer: Buffer) -> int:
        """Elements of a buffer that are read or written at once."""
        return VECTOR if buffer.name != "mask" and wide(buffer, VECTOR) else 1

    def finished(self) -> GroupProgram:
        """The program for all queries of all heads."""
        blocks = -(-self.queries // self.schedule.queries)
        return self.b.finish((blocks, self.heads, self.kernel.buffer("q").shape[0]))

    def stop(self) -> Expr:
        """Where the keys end that queries of this work-group see."""
        if self.causal:
            return op("min", number(self.keys, U32), self.first + self.schedule.queries)
        return self.end(self.keys, self.schedule.keys)

    def end(self, count: int, step: int) -> Expr:
        """Where a loop ends that takes `step` of `count` at a time.

        Where registers are few, it is one that drivers cannot work out: they would test the loop
        behind its turns, and what it carries have two registers; or write out short loops, with
        addresses for each turn.
        """
        end = number(count, U32)
        if not self.few_registers or count <= step:
            return end
        return self.b.let(select(self.first < self.queries, end, 0))  # there is a query

    @property
    def overlapping(self) -> bool:
        """Whether the last tile begins earlier, so that it ends with the last key: then nobody
        reads behind that, and some keys are there twice."""
        return self.ragged_keys and self.keys > self.schedule.keys

    def tile_of(self, key: Expr) -> tuple[Expr, Expr | None]:
        """Where the tile begins that has the keys from `key` on, and how many keys at its
        beginning are those of the tile before; None where there are none in any tile."""
        if not self.overlapping:
            return key, None
        first = self.b.let(op("min", key, number(self.keys - self.schedule.keys, U32)))
        return first, self.b.let(key - first)

    def seen(self, place: Expr, first: Expr, again: Expr | None,
             further: Sequence[int]) -> list[Expr] | None:
        """Whether the keys at a place of the tile from `first` on, and so many further, count:
        those behind the last do not, nor those that are there `again`; None where all do.

        An invocation's own place is in one number, which is compared with constants.
        """
        b, tile = self.b, self.schedule.keys
        if again is not None:
            mine = b.let(place + tile - again)
            return [mine >= tile - by for by in further]
        if self.ragged_keys:
            mine = b.let(first + place)
            return [mine < max(self.keys - by, 0) for by in further]
        return None

    def unknown_one(self) -> Expr:
        """1, which no compiler finds out: there is a query."""
        return self.b.let(select(self.first < self.queries, number(1.0, F32), 2.0), "one")

    def unknown_zero(self, key: Expr, which: int) -> Expr:
        """0, which no compiler finds out: there is such a key. Each that has another number is
        another one.

        Where it is part of an address, a compiler works that out again, and does not keep in
        registers what it was when the same place was read before.
        """
        return self.b.let(select(key < self.keys + which, number(0, U32), 1))

    def place(self, name: str, token: Expr, channel: Expr | int) -> Expr:
        """The element of a token's channel in this head."""
        buffer = self.kernel.buffer(name)
        n, t, h, c = buffer.strides
        group = self.heads // buffer.shape[2]  # of heads of queries that share this one
        head = self.b.group[1] // group if group > 1 else self.b.group[1]
        return self.b.group[2] * n + token * t + head * h + channel * c

    def tile(self, name: str, array: Shared, stride: int, rows: int, channels: int,
             by_columns: bool = False) -> TokenTile:
        """What brings `rows` tokens, and `channels` of each, to a shared array."""
        return TokenTile(self, name, array, stride, rows, channels, by_columns)

    def fill(self, array: Shared, stride: int, rows: range, columns: range,
             value: float = 0.0) -> None:
        """Put a value into some rows and columns of a shared array, which tiles leave alone; into
        an array of words only 0. What lies between whole rows is filled, too: then places follow
        each other, and nobody divides by the length of a row."""
        b, size = self.b, self.schedule.size
        if not len(rows) * len(columns):
            return
        if columns.start == 0:
            rows, columns = range(1), range(rows.start * stride, rows.stop * stride)
        lanes = array.lanes if not any(n % array.lanes for n in (
            columns.start, len(columns), stride)) else 1
        filled = spread(number(0, U32) if array.dtype == "u32" else number(value, F32), lanes)
        across = len(columns) // lanes
        turns, rest = divmod(len(rows) * across, size)

        def store(turn: Expr | int, where: Expr | None = None) -> None:
            index = b.let(b.invocation + turn * size)
            row = 0 if len(rows) == 1 else b.let(index // across)
            at = (row + rows.start) * stride + (index - row * across) * lanes + columns.start
            b.store(array, at, filled, where=where)

        if turns:
            with b.loop(turns, name="turn") as turn:
                store(turn)
        if rest:
            store(turns, b.let(b.invocation < rest))

    def allowed(self, score: Expr, queries: Sequence[Expr], keys: Sequence[Expr],
                seen: Expr | None) -> Expr:
        """Scores of queries and keys, one in each lane, with the mask, to be multiplied by `unit`;
        far below all others where nobody may look, or keys are behind the last: not `seen`."""
        b = self.b
        found = score if self.factor == 1.0 else score * self.factor
        lowest = number(2 * BOTTOM / self.unit, score.type)
        if self.masked:
            n, h, s, t = self.kernel.buffer("mask").strides
            at, added = b.let(b.group[2] * n + b.group[1] * h), []
            for query, key in zip(queries, keys):
                here = None if seen is None or self.overlapping else key < self.keys
                here = both(here, (query < self.queries) if t and self.ragged else None)
                added.append(b.let(b.load(self.bound["mask"], at + key * s + query * t,
                                          where=here)))
            found = b.let(found + vector(*added))
            found = select(found < 2 * LOWEST, lowest, found)
        if seen is not None:
            found = select(seen, found, lowest)
        if self.causal:
            found = select(vector(*keys) <= vector(*queries), found, lowest)
        return b.let(found)

    @property
    def ragged_keys(self) -> bool:
        """Whether tiles reach behind the last key."""
        return self.keys % self.schedule.keys > 0

    def weight(self, score: Expr, top: Expr) -> Expr:
        """The weight of allowed scores below the tops of their rows."""
        return op("exp2", op("fma", score, number(self.unit, score.type), -top))

    def write(self, token: Expr, channel: Expr, value: Expr, ragged: bool,
              where: Expr | None) -> None:
        """`VECTOR` results of a token, as far as it is there, and its channels if those may be too
        many: if they are `ragged`."""
        b, out = self.b, self.bound["out"]
        where = both((token < self.queries) if self.ragged else None, where)
        if out.lanes == VECTOR:
            where = both(where, (channel < self.width) if ragged else None)
            b.store(out, self.place("out", token, channel), value, where=where)
            return
        for lane in range(VECTOR):
            here = both(where, (channel + lane < self.width) if ragged else None)
            b.store(out, self.place("out", token, channel + lane), value.lane(lane), where=here)


AnyHeads = Heads[GroupAttention] | Heads[GroupMatrixAttention] | Heads[GroupLineAttention]


@dataclass(frozen=True)
class TokenSpot:
    """What an invocation brings of a tile: vectors of `each` tokens from `row` further on than its
    first, `column` channels further; `where` it does, None always. They lie `down` and `over`
    elements further: where it brings nothing, its first vector is read once more, which costs no
    decision in the loop."""

    row: int
    column: int
    where: Expr | None
    down: Expr | int
    over: Expr | int


class TokenTile:
    """Tokens that a work-group brings to shared memory, as rows [token][channel] that lie `stride`
    apart, or `by_columns`, as rows [channel][token].

    Behind the last token that is read once more, and behind the last channel that; queries have 0
    there, so that it does not matter what keys have.

    In an array of words, each holds two neighbouring halves of a row, which are not converted.

    The tokens of an invocation are equally far apart, and it brings the same channels of each: all
    places where it reads and writes are constants away from its first. By columns it brings
    `VECTOR` tokens at a time, whose channels it turns in registers.
    """

    def __init__(self, heads: AnyHeads, name: str, array: Shared, stride: int, rows: int,
                 channels: int, by_columns: bool, each: int = 0) -> None:
        self.heads, self.name, self.array, self.stride = heads, name, array, stride
        self.rows, self.channels, self.by_columns = rows, channels, by_columns
        b, size, buffer = heads.b, heads.schedule.size, heads.kernel.buffer(name)
        self.tokens, self.depth = buffer.shape[1::2]
        self.step = buffer.strides[1], buffer.strides[3]
        self.words = array.dtype == "u32"
        bound = heads.bound[name]
        self.lanes = WIDE if self.words else min(bound.lanes, VECTOR)
        self.each = each or (VECTOR if by_columns else 1)
        halves = "f16" if bound.dtype == array.dtype == "f16" else None
        self.scalar = "u32" if self.words else halves
        across, down = channels // self.lanes, rows // self.each
        self.spots = list(self._spots(across, down))
        beside = min(across, size)
        active = min(size // beside, down) * beside
        reader = b.invocation if active == size else b.let(
            select(b.invocation < active, b.invocation, number(0, U32)))
        self.row = b.let(reader // beside * self.each)
        self.reach = (active // beside - 1) * self.each  # the highest row of anybody
        self.column = b.let(reader % beside * self.lanes)
        self.origin = b.let(heads.place(name, self.row, self.column))
        self.halves = 2 if self.words else 1
        self.target = b.let(self._target())

    def _target(self) -> Expr:
        """Where an invocation writes first."""
        if self.by_columns:
            return self.column * self.stride + self.row
        return self.row * (self.stride // self.halves) + self.column // self.halves

    def _spots(self, across: int, down: int) -> Iterator[TokenSpot]:
        """What an invocation brings of `down` rows of `across` vectors."""
        b, size = self.heads.b, self.heads.schedule.size
        known: dict[int, Expr] = {}  # who brings something, where not all do
        if across >= size:
            for row in range(down):
                for column in range(0, across, size):
                    mine = b.let(b.invocation < across - column) if column + size > across else None
                    yield self._spot(row * self.each, column * self.lanes, mine, mine is not None)
            return
        step = size // across
        for row in range(0, down, step):
            few = min(step, down - row) * across
            if few < size and few not in known:
                known[few] = b.let(b.invocation < few)
            yield self._spot(row * self.each, 0, known.get(few), row > 0 and few < step * across)

    def _spot(self, row: int, column: int, where: Expr | None, beyond: bool) -> TokenSpot:
        """A spot; `beyond`: those who bring nothing would read behind the tile."""
        def moved(by: int) -> Expr | int:
            return self.heads.b.let(select(where, number(by, U32), 0)) if beyond and by else by

        token, along = self.step
        return TokenSpot(row, column, where, moved(row * token), moved(column * along))

    def fetch(self, first: Expr, channel: Expr | int = 0) -> list[list[Expr]]:
        """Load what this invocation brings of the tile that begins at a token and a channel: the
        vectors of each of its spots."""
        b = self.heads.b
        return [[b.let(value) for value in values] for values in self._loads(first, channel)]

    def put(self, fetched: Sequence[Sequence[Expr]]) -> None:
        """Store what was fetched: those that the same invocations have in one branch."""
        for where, group in groupby(zip(self.spots, fetched, strict=True),
                                    lambda each: each[0].where):
            self._store_where(where, list(group))

    def bring(self, first: Expr, channel: Expr | int = 0) -> None:
        """Load and store: vector by vector, or, where not all invocations have one, as many at a
        time as have a branch together. Drivers move loads into the branch where they are used, and
        do not look for the next before it ends: branch by branch waits for memory."""
        together = 1 if self.heads.few_registers else TOGETHER
        loaded = zip(self.spots, self._loads(first, channel), strict=True)
        for where, group in groupby(loaded, lambda each: each[0].where):
            waiting: list[tuple[TokenSpot, list[Expr]]] = []
            for spot, values in group:
                waiting.append((spot, [self.heads.b.let(value) for value in values]))
                if where is None or len(waiting) == together:
                    self._store_where(where, waiting)
                    waiting = []
            self._store_where(where, waiting)

    def _store_where(self, where: Expr | None,
                     pairs: Sequence[tuple[TokenSpot, Sequence[Expr]]]) -> None:
        """Store what was loaded for some spots that the same invocations have."""
        if not pairs:
            return
        with nullcontext() if where is None else self.heads.b.branch(where):
            for spot, values in pairs:
                self._store(spot, values)

    def _loads(self, first: Expr, channel: Expr | int) -> Iterator[list[Expr]]:
        b, (token, along) = self.heads.b, self.step
        origin = b.let(self.origin + first * token + channel * along)
        for spot in self.spots:
            inside, over = None, spot.over
            if self._narrow(channel):
                column = b.let(self.column + spot.column + channel)
                if self.name == "q":
                    inside = b.let(column < self.depth)
                else:
                    last = op("min", column, number(self.depth - self.lanes, U32))
                    over = b.let((last - (self.column + channel)) * along)
            values: list[Expr] = []
            for row in range(spot.row, spot.row + self.each):
                down = spot.down + (row - spot.row) * token
                if self._ragged(first, row):
                    here = b.let(first + self.row)
                    last = op("min", here + row, number(self.tokens - 1, U32))
                    down = (last - here) * token
                lanes = self.lanes // 2 if self.words else self.lanes
                values.append(b.load(self.heads.bound[self.name], origin + over + down, lanes,
                                     where=inside, scalar=self.scalar))
            yield values

    def _narrow(self, channel: Expr | int) -> bool:
        """Whether a tile that begins at a channel reaches behind the last."""
        return (channel + self.channels > self.depth if isinstance(channel, int)
                else self.depth % self.channels > 0)

    def _ragged(self, first: Expr, row: int) -> bool:
        """Whether a row of somebody may be behind the last token of a tile that begins there."""
        if self.tokens % self.rows == 0 or self.name != "q" and self.heads.overlapping:
            return False
        seen = self.tokens - int(first.value) if isinstance(first, Number) else 0
        return self.reach + row >= seen

    def _store(self, spot: TokenSpot, values: Sequence[Expr]) -> None:
        """Store what was loaded for a spot, by those who have it."""
        b = self.heads.b
        if not self.by_columns:
            at = self.target + (spot.row * self.stride + spot.column) // self.halves
            b.store(self.array, at, values[0])
            return
        for lane in range(self.lanes):
            turned = vector(*[v.lane(lane) if self.lanes > 1 else v for v in values])
            at = self.target + ((spot.column + lane) * self.stride + spot.row)
            b.store(self.array, at, turned)


class Ahead:
    """What an invocation brings of the next tile, in registers."""

    def __init__(self, tile: TokenTile, first: Expr) -> None:
        self.tile = tile
        self.kept: list[list[Name]] = [[tile.heads.b.variable(value, "ahead") for value in values]
                                       for values in tile.fetch(first)]

    def put(self) -> None:
        """Store it."""
        self.tile.put(self.kept)

    def renew(self, first: Expr) -> None:
        """Load the tile that begins at a token instead."""
        for old, new in zip(self.kept, self.tile.fetch(first), strict=True):
            for register, value in zip(old, new, strict=True):
                self.tile.heads.b.set(register, value)


def wide(buffer: Buffer, lanes: int) -> bool:
    """Whether a head's channels lie side by side, from multiples of `lanes` elements on."""
    *outer, last = buffer.strides
    return (last == 1 or buffer.shape[3] == 1) and not any(
        n % lanes for n in (*outer, buffer.shape[3]))
