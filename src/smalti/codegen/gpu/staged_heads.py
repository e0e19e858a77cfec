"""Heads whose keys and values are staged tile by tile for the matrix unit."""

from __future__ import annotations

from typing import TypeVar

from smalti.codegen.gpu.form import F32, U32, Expr, Shared, number, op, select
from smalti.codegen.gpu.heads import VECTOR, WIDE, Ahead, Heads, TokenTile, wide
from smalti.codegen.gpu.types import vector_type
from smalti.kernel.form import Buffer
from smalti.schedule.group import GroupMatrixAttention
from smalti.schedule.line_attention import GroupLineAttention

Staged = TypeVar("Staged", GroupMatrixAttention, GroupLineAttention)
SLACK = 8.0
"""How far, to the base 2, scores may exceed the top of their row: weights are at most 256, which
is far from the largest f16, and the digits of weights and sums are the same at every size."""


class StagedHeads(Heads[Staged]):
    """What both ways to compute attention in the matrix unit share: a tile of keys [key][channel]
    and one of values [channel][key]."""

    arrays: dict[str, Shared]
    key_width: int
    value_width: int
    counts: bool
    """Whether values are 1 in the first place behind the last channel."""

    def at_once(self, buffer: Buffer) -> int:
        if buffer.name == "k" and buffer.dtype == self.schedule.dtype and wide(buffer, WIDE):
            return WIDE
        return super().at_once(buffer)

    def array(self, name: str, elements: int) -> Shared:
        """A shared array: of keys as words, where they are moved as such."""
        b, s = self.b, self.schedule
        if name == "key" and self.bound["k"].lanes == WIDE:
            return b.shared(name, "u32", elements // 2, VECTOR)
        return b.shared(name, s.dtype if name not in ("score", "top") else "f32", elements, VECTOR)

    def tiles(self) -> tuple[TokenTile, TokenTile]:
        """What brings keys and values, whole or by chunks. Whole ones leave alone what is behind
        the last channel, and is 0, but for the channel that counts."""
        s, long = self.schedule, self.schedule.stride(self.schedule.keys)
        if s.channels:
            stage = self.arrays["stage"]
            return (self.tile("k", stage, s.stride(s.channels), s.keys, s.channels),
                    self.tile("v", stage, long, s.keys, s.channels, by_columns=True))
        keys, values, wide = self.arrays["key"], self.arrays["value"], s.stride(self.key_width)
        halves = 2 if keys.dtype == "u32" else 1
        behind = self.width + self.counts
        self.fill(keys, wide // halves, range(s.keys),
                  range(self.depth // halves, self.key_width // halves))
        self.fill(values, long, range(self.width, behind), range(s.keys), 1.0)
        self.fill(values, long, range(behind, self.value_width), range(s.keys))
        return (self.tile("k", keys, wide, s.keys, self.depth),
                self.tile("v", values, long, s.keys, self.width, by_columns=True))

    def stage(self, key: Expr, first: Expr, keys: TokenTile, values: TokenTile,
              ahead: list[Ahead]) -> None:
        """Bring a tile, of the keys from `key` on, that begins with `first`; load the next one."""
        b, s = self.b, self.schedule
        b.barrier()
        if not ahead:
            keys.bring(first)
            values.bring(first)
        for each in ahead:
            each.put()
        b.barrier()
        for each in ahead:  # behind the last tile one is loaded again: nobody reads it
            following = key + s.keys
            each.renew(b.let(op("min", following, number(self.keys - s.keys, U32))
                             if self.overlapping else
                             select(following < self.keys, following, 0)))

    def anywhere(self, condition: Expr) -> Expr:
        """Whether a condition holds for any invocation of a subgroup, which then knows it."""
        return self.b.let(op("subgroup_max", select(condition, number(1.0, F32), 0.0)) > 0.0)


def fold(vector: Expr, instruction: str) -> Expr:
    """The lanes of a named vector, folded."""
    found = vector.lane(0)
    for lane in range(1, vector_type(vector.type).lanes):
        found = op(instruction, found, vector.lane(lane))
    return found
