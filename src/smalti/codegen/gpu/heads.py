"""Heads of an attention: where their tokens lie, and which of them see which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import both
from smalti.codegen.gpu.form import (
    U32,
    Expr,
    GroupProgram,
    Shared,
    number,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.lowered import bind
from smalti.codegen.gpu.types import vector_type
from smalti.kernel.build import LOWEST
from smalti.kernel.form import Buffer, Kernel
from smalti.schedule.group import GroupAttention, GroupMatrixAttention

LOG2_E = math.log2(math.e)
WIDE = 4
"""Elements that are read and written at once, where they lie so."""


Schedule = TypeVar("Schedule", GroupAttention, GroupMatrixAttention)


class Heads(Generic[Schedule]):
    """What the ways to compute attention share: where tokens lie, and which of them see which."""

    slices = 1
    """Work-groups that share queries."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self.kernel = kernel
        self.schedule: Schedule = schedule
        self.queries, self.heads, self.depth = kernel.buffer("q").shape[1:]
        _, self.keys, _, self.width = kernel.buffer("v").shape
        self.masked = any(buffer.name == "mask" for buffer in kernel.buffers)
        self.causal = bool(kernel.option("causal"))
        self.ragged = self.queries % schedule.queries > 0
        b = self.b = Builder("attention", schedule.size, schedule.subgroup)
        self.bound = {buffer.name: bind(b, kernel, buffer.name, WIDE if buffer.name != "mask"
                                        and wide(buffer) else 1)
                      for buffer in kernel.buffers if buffer.role != "local"}
        self.first = b.let(b.group[0] // self.slices * schedule.queries, "first")

    def finished(self) -> GroupProgram:
        """The program for all queries of all heads."""
        blocks = -(-self.queries // self.schedule.queries)
        return self.b.finish((self.slices * blocks, self.heads, self.kernel.buffer("q").shape[0]))

    def stop(self) -> Expr:
        """Where the keys end that queries of this work-group see."""
        stop = number(self.keys, U32)
        return op("min", stop, self.first + self.schedule.queries) if self.causal else stop

    def place(self, name: str, token: Expr, channel: Expr | int) -> Expr:
        """The element of a token's channel in this head."""
        n, t, h, c = self.kernel.buffer(name).strides
        return self.b.group[2] * n + token * t + self.b.group[1] * h + channel * c

    def beyond(self, name: str, channels: int) -> bool:
        """Whether steps of so many channels go beyond those that a head has."""
        steps = 1 if name in "qk" else self.slices
        extent = self.kernel.buffer(name).shape[3]
        return extent % channels > 0 or steps * channels > extent

    def stage(self, array: Shared, stride: int, name: str, first: Expr, rows: int,
              channel: Expr | int, channels: int) -> None:
        """`rows` tokens from `first` on, and `channels` of each, to rows of a shared array; 0
        behind the last ones."""
        b, size, lanes = self.b, self.schedule.size, self.bound[name].lanes
        tokens, depth = self.kernel.buffer(name).shape[1::2]
        across = channels // lanes
        with b.loop(-(-rows * across // size), name="turn") as turn:
            index = b.let(turn * size + b.invocation)
            row, at = b.let(index // across), b.let(index % across * lanes)
            token, wanted = b.let(first + row), b.let(at + channel)
            mine = b.let(index < rows * across) if rows * across % size else None
            inside = both(mine, (token < tokens) if tokens % rows else None)
            inside = both(inside, (wanted < depth) if self.beyond(name, channels) else None)
            value = b.load(self.bound[name], self.place(name, token, wanted), lanes, where=inside)
            b.store(array, row * stride + at, value, where=mine)

    def allowed(self, score: Expr, queries: Sequence[Expr], keys: Sequence[Expr]) -> Expr:
        """Scores of queries and keys, one in each lane, with the mask; far below all others where
        nobody may look."""
        b, many = self.b, vector_type(score.type).lanes
        found = score * self.kernel.option("scale")
        lowest = number(2 * LOWEST, score.type)
        known = self.keys % self.schedule.keys == 0
        if self.masked:
            n, h, s, t = self.kernel.buffer("mask").strides
            at, added = b.let(b.group[2] * n + b.group[1] * h), []
            for query, key in zip(queries, keys):
                here = None if known else key < self.keys
                here = both(here, (query < self.queries) if t and self.ragged else None)
                added.append(b.let(b.load(self.bound["mask"], at + key * s + query * t,
                                          where=here)))
            found = b.let(found + vector(*added))
            found = select(found < 2 * LOWEST, lowest, found)
        if not known:
            found = select(vector(*keys) < spread(number(self.keys, U32), many), found, lowest)
        if self.causal:
            found = select(vector(*keys) <= vector(*queries), found, lowest)
        return b.let(found)

    def write(self, token: Expr, channel: Expr, value: Expr, channels: int,
              where: Expr | None) -> None:
        """`WIDE` results of a token, as far as it is there; those of `channels` may be too many."""
        b, out = self.b, self.bound["out"]
        where = both((token < self.queries) if self.ragged else None, where)
        ragged = self.beyond("out", channels)
        if out.lanes == WIDE:
            where = both(where, (channel < self.width) if ragged else None)
            b.store(out, self.place("out", token, channel), value, where=where)
            return
        for lane in range(WIDE):
            here = both(where, (channel + lane < self.width) if ragged else None)
            b.store(out, self.place("out", token, channel + lane), value.lane(lane), where=here)


def wide(buffer: Buffer) -> bool:
    """Whether a head's channels lie side by side, from multiples of `WIDE` elements on."""
    *outer, last = buffer.strides
    return (last == 1 or buffer.shape[3] == 1) and not any(
        n % WIDE for n in (*outer, buffer.shape[3]))
