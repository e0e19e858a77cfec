"""The schedule of an attention in the matrix unit whose invocations hold whole queries."""

from __future__ import annotations

import math

from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.schedule.group_limits import GroupLimits, check_group, sizes_of

KEPT_KEYS = 64
"""Keys of a tile whose weights a subgroup keeps that has them from others: of more, it reads them
again for each of its sums."""
WORDS_PAD = 4
"""Words between rows of words, so that rows begin in different banks, at multiples of 16 bytes."""


@dataclass(frozen=True, slots=True)
class GroupLineAttention:
    """An attention in the matrix unit, by work-groups of `subgroups` subgroups of `subgroup`, each
    of whose invocations holds the columns of matrices that belong to its own queries: their scores
    become weights, and these a factor, without leaving its registers.

    Scores are [key][query] and results [channel][query]. Sets of `across` subgroups share `blocks`
    matrices of queries: each computes the weights of its part of the `keys` of a tile, which are
    exchanged then, and the sums of its part of the channels. Keys and values are staged whole, or
    `channels` at a time if that is not 0; as `words`, in the order in which invocations read the
    words of left factors that they hold. Queries wait in shared memory, or are `held` in registers;
    with `ahead`, so is the next tile. `matrix`, `dtype`: as of a `GroupMatrixAttention`.

    >>> GroupLineAttention(16, 1, 32, "8x8x16", 8, held=True).shared(40, 40)
    {'key': 1792, 'value': 1600}
    """

    subgroups: int
    blocks: int
    keys: int
    matrix: str
    subgroup: int
    dtype: str = "f16"
    across: int = 1
    channels: int = 0
    held: bool = False
    ahead: bool = False
    words: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of `matrix`."""
        return sizes_of(self.matrix)

    @property
    def query_lines(self) -> int:
        """Queries of a matrix."""
        return self.shape[1]

    @property
    def token_lines(self) -> int:
        """Keys, or channels of values, of a matrix."""
        return self.shape[0]

    @property
    def size(self) -> int:
        """Invocations of a work-group."""
        return self.subgroups * self.subgroup

    @property
    def queries(self) -> int:
        """Queries of a work-group."""
        return self.subgroups // self.across * self.blocks * self.query_lines

    @property
    def keeps(self) -> bool:
        """Whether a subgroup keeps the weights of all keys of a tile in registers."""
        return self.across == 1 or self.keys <= KEPT_KEYS

    def padded(self, depth: int, width: int) -> tuple[int, int]:
        """Channels of keys, and of values, in whole matrices or chunks."""
        whole = (self.channels,) * 2 if self.channels else (
            self.shape[2], self.across * self.token_lines)
        return -(-depth // whole[0]) * whole[0], -(-width // whole[1]) * whole[1]

    def stride(self, elements: int) -> int:
        """From one row of factors to the next: they begin at multiples of 16 bytes."""
        return elements + 8

    def tile(self, rows: int, columns: int) -> int:
        """Halves of a tile [row][column], of which two of a column make a word if it has those."""
        return rows * (columns + WORDS_PAD) if self.words else columns * self.stride(rows)

    def shared(self, depth: int, width: int) -> dict[str, int]:
        """Elements of each shared array, for heads of so many channels."""
        key_width, value_width = self.padded(depth, width)
        arrays = {}
        if self.across > 1:
            arrays["top"] = self.across * self.queries
            arrays["weight"] = self.queries * self.stride(self.keys)
        if not self.held:
            arrays["query"] = self.queries * self.stride(key_width)
        if self.channels:
            arrays["stage"] = max(self.tile(self.channels, self.keys),
                                  self.tile(self.keys, self.channels))
        else:
            arrays["key"] = self.tile(key_width, self.keys)
            arrays["value"] = self.tile(self.keys, value_width)
        return arrays

    def shared_bytes(self, depth: int, width: int) -> int:
        """Bytes of shared memory, for heads of so many channels."""
        return sum(n * (4 if name == "top" else 2)
                   for name, n in self.shared(depth, width).items())

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        depth, tokens = self.shape[2], self.token_lines
        if not limits.right_lines == limits.sum_lines == "columns" or (
                self.words > limits.left_words):
            raise IllegalSchedule("invocations that hold lines: of this device that is not known")
        if self.dtype != "f16" or not limits.f16 or not any(
                (m.text, m.factors, m.sums) == (self.matrix, self.dtype, "f32")
                for m in limits.matrices):
            raise IllegalSchedule(f"invocations do not compute {self.matrix} of {self.dtype}")
        check_group(self.size, 1, limits)
        known = limits.subgroup_choice or limits.subgroup_min == limits.subgroup_max
        if self.subgroup != self.query_lines or not (
                known and limits.subgroup_min <= self.subgroup <= limits.subgroup_max):
            raise IllegalSchedule(f"subgroups of {self.subgroup} for {self.query_lines} queries of "
                                  "a matrix, or they cannot be asked for")
        if self.words and 2 * self.subgroup != depth:
            raise IllegalSchedule(f"{depth // 2} words of a row of {self.subgroup} invocations")
        if min(self.blocks, self.across) < 1 or self.subgroups % self.across:
            raise IllegalSchedule(f"sets of {self.across} of {self.subgroups} subgroups share "
                                  f"{self.blocks} matrices of queries")
        if depth % tokens or tokens % 4 or self.keys < 1 or self.keys % depth or self.keys % (
                self.across * (depth if self.across == 1 else tokens)):
            raise IllegalSchedule(f"{self.keys} keys of {self.across} subgroups in {self.matrix}")
        if self.channels % math.lcm(self.across * tokens, depth) or self.channels and (
                self.held or self.ahead):
            raise IllegalSchedule(f"{self.channels} channels at a time in {self.matrix}, of which "
                                  "nothing waits in registers")
