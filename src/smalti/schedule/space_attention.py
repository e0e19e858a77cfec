"""The schedules of attention on GPUs, and about how long each takes.

`matrix_schedules` and `plain_schedules` list what a device can run. `AttentionWork.rank` orders it:
what fits into registers comes first, and then what takes the fewest clocks, by what bounds a tile
of keys on a compute unit, as `group_work` does for contractions: products, what is issued besides,
shared memory, caches, and barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from smalti.dataclass import dataclass
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.schedule.compute_units import known_unit
from smalti.schedule.group import (
    QUERIES,
    GroupAttention,
    GroupLimits,
    GroupMatrixAttention,
    MatrixShape,
)
from smalti.schedule.group_work import BARRIER, FULL, STALL, START
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.line_work import line_registers, line_schedules, line_tile
from smalti.schedule.residency import LANES, subgroups_of
from smalti.schedule.space_group import can_run, matrix_subgroup

AnyAttention = GroupAttention | GroupMatrixAttention | GroupLineAttention
"""The schedules of an attention."""
SETS, ACROSS, BLOCKS = (1, 2, 4, 6, 8, 16, 32), (1, 2, 4, 8, 16), (1, 2, 4)
TILE_KEYS, COLUMNS = (32, 64, 128), (1, 2, 4)
"""Sets of subgroups, subgroups of a set, rows of matrices of a subgroup, keys of a tile, and
matrices of scores at a time: what is tried in the matrix unit."""
WIDE_SETS = 8
"""Sets, and subgroups of a set, at most where subgroups are of 16 invocations and more. In those of
8 more of them share what is staged; on Xe2 the tiles of keys that leave room for 16 sets are so
short that a weight takes a quarter more instructions."""
ALL_KEYS_MAX = 160
"""Keys that are tried as one tile, at most: there is no top of earlier keys then."""
CHUNKS = (0, 32, 64, 80, 96, 128)
"""Channels that are staged at a time there, 0 all."""
ROWS, ROW_COLUMNS, EACH, PARTS = (1, 2, 4, 8, 16), (4, 8, 16, 32, 64), (1, 2, 4), range(1, 17)
"""Rows and columns of invocations, keys of each, and in how many parts channels are staged: what is
tried without."""
INVOCATIONS = 256
"""Invocations of a work-group, at most: what every device runs."""
STAGED_MAX = 256
"""Channels of a part, at most: shared memory of 16 KiB holds them for 16 keys."""
BESIDE, BESIDE_A_CHUNK, BESIDE_PLAIN = 48, 5, 52
"""Registers of an invocation beside sums, factors and scores, in the matrix unit, for each chunk of
channels, and without the unit: addresses, above all, and what compilers move ahead. Fitted to what
the compilers of AMD and Intel say of attentions of 40 to 512 channels."""
NARROW, NARROW_BLOCK, NARROW_COLUMN, NARROW_KEY, NARROW_CHUNKS = 52, 24, 6, 1 / 4, 8
"""Registers in the unit in subgroups of 8, as on Intel's Xe-HPG, beside sums and queries: of a
program, for each row of matrices of queries, for each matrix of scores that one computes beside the
first, for each key of a tile above 32 (six times as many in chunks), and for chunks. Fitted to 90
schedules of heads of 40, 80, 160 and 512 channels: within 10 registers where none are spilled."""
CHAIN = 1200
"""Clocks of a tile that a work-group waits where it is alone: what a subgroup does with a tile is a
chain of loads, products, exchanges and powers, each of which waits for the one before. A guess."""
DOUBLED = ("", "rdna3_big", "rdna3_small")
"""Architectures in which two invocations hold each element of a factor, and what may be one."""
IN_FLIGHT = 1.5
"""Registers for each that is brought from memory: what is loaded, and where it goes."""
ISSUED_FOR_A_SCORE = 8
"""Instructions from a score to its weight: load, top, difference, power, sum, round, store."""
ISSUED_FOR_A_VECTOR = 8
"""Instructions to stage a vector."""
WIDEST = 16
"""Invocations that read a matrix with as many instructions as `UnitRates.read` says, beside the
load: fewer read more words each, and have an address for each."""
KEY_READ, VALUE_READ = 1 / 4, 1 / 2
"""The part of these instructions that is left where an invocation reads the line that it holds as
vectors: of 16 bytes, and of the 8 in which values are."""


def matrix_schedules(kernel: Kernel, limits: GroupLimits,
                     shape: MatrixShape) -> Iterator[GroupMatrixAttention]:
    """The schedules of an attention in the matrix unit that a device can run."""
    depth, width = kernel.buffer("q").shape[3], kernel.buffer("v").shape[3]
    subgroup = matrix_subgroup(shape, limits)
    all_keys = -(-kernel.buffer("v").shape[1] // shape.depth) * shape.depth
    tiles = dict.fromkeys((*TILE_KEYS, *((all_keys,) if all_keys <= ALL_KEYS_MAX else ())))
    for sets, across, blocks, keys, columns, channels, held, ahead in product(
            SETS, ACROSS, BLOCKS, tiles, COLUMNS, CHUNKS, (False, True), (False, True)):
        if sets * across * subgroup > INVOCATIONS or held and columns > 1:
            continue
        if max(sets, across) > WIDE_SETS and subgroup >= 16:
            continue
        if ahead and keys >= kernel.buffer("v").shape[1]:  # there is no next tile
            continue
        if channels and (channels >= max(depth, width) or held or ahead):
            continue
        found = GroupMatrixAttention(sets * across, blocks, keys, shape.text, subgroup,
                                     shape.factors, across, columns, channels, held, ahead)
        if found.shared_bytes(depth, width) <= limits.shared_bytes and can_run(found, limits):
            yield found


def unit_schedules(kernel: Kernel, limits: GroupLimits, shape: MatrixShape
                   ) -> Iterator[GroupMatrixAttention | GroupLineAttention]:
    """All schedules in the matrix unit: scores go through shared memory, or stay in registers."""
    yield from matrix_schedules(kernel, limits, shape)
    yield from line_schedules(kernel, limits, shape)


def plain_schedules(kernel: Kernel, limits: GroupLimits, dtype: str,
                    subgroup: int) -> Iterator[GroupAttention]:
    """The schedules of an attention without the matrix unit that a device can run, in subgroups of
    `subgroup`, or of any size where that is 0."""
    depth, width = kernel.buffer("q").shape[3], kernel.buffer("v").shape[3]
    widest = max(depth, width)
    staged = dict.fromkeys(4 * -(-widest // (4 * parts)) for parts in PARTS)
    for rows, columns, each, channels in product(ROWS, ROW_COLUMNS, EACH, staged):
        if rows * columns > INVOCATIONS or channels > STAGED_MAX:
            continue
        whole = subgroup if subgroup >= columns and rows * columns % subgroup == 0 else 0
        found = GroupAttention(rows, columns, each, channels, dtype, whole)
        if found.shared_bytes(depth) <= limits.shared_bytes and can_run(found, limits):
            yield found


@dataclass(frozen=True)
class AttentionWork:
    """What an attention takes on a device, whatever its schedule."""

    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    limits: GroupLimits
    causal: bool = False

    @classmethod
    def of(cls, kernel: Kernel, limits: GroupLimits) -> AttentionWork:
        """The work of a kernel. Of a causal one, half of the keys are seen."""
        (batch, queries, heads, depth), keys = kernel.buffer("q").shape, kernel.buffer("v").shape[1]
        causal = bool(kernel.option("causal"))
        seen = -(-keys // 2) if causal else keys
        return cls(batch * heads, queries, seen, depth, kernel.buffer("v").shape[3], limits, causal)

    def several(self, s: AnyAttention) -> bool:
        """Whether a program goes through tiles of keys in turns: of a causal one it always does."""
        return self.causal or self.keys > s.keys

    def rank(self, s: AnyAttention) -> tuple[float, float]:
        """Smaller for a schedule that is better: one that wants more registers than there are is
        taken only where all do, and then the one that wants the fewest."""
        held = self.held(s)
        return self._spilled(s, held), self._clocks(s, held)

    def clocks(self, s: AnyAttention) -> float:
        """About how many clocks of a compute unit this takes under a schedule."""
        return self._clocks(s, self.held(s))

    def _clocks(self, s: AnyAttention, held: float) -> float:
        ahead = not isinstance(s, GroupAttention) and s.ahead
        step, barriers = self._tile(s)
        step += 8 * self._spilled(s, held) * s.size / self.limits.rates.shared + barriers * BARRIER
        tiles, groups = -(-self.keys // s.keys), self.heads * -(-self.queries // s.queries)
        each = -(-groups // self.limits.unit_count)
        stall = barriers * STALL / (2 if ahead else 1)
        alone = step * max(1.0, FULL / s.size) + CHAIN + stall
        shown = max(step, alone / min(each, self._resident(s, held)))
        once = s.queries * (self.depth + 2 * self.width) / 4 * ISSUED_FOR_A_VECTOR  # in and out
        begin = START + once / self.limits.rates.factors
        return max(begin + tiles * alone, each * (begin + tiles * shown))

    def resident(self, s: AnyAttention) -> int:
        """Work-groups that a unit holds at a time, by registers and shared memory."""
        return self._resident(s, self.held(s))

    def _resident(self, s: AnyAttention, held: float) -> int:
        held = min(held, self.registers(s))
        shared = (s.shared_bytes(self.depth) if isinstance(s, GroupAttention)
                  else s.shared_bytes(self.depth, self.width))
        unit, rates = known_unit(self.limits.architecture), self.limits.rates
        if unit is not None:
            subgroups = unit.resident(round(held), s.subgroup or LANES, s.size, shared)
            counted = LANES if unit.double else s.subgroup or LANES  # invocations of one
            groups = subgroups * unit.sharers // subgroups_of(s.size, counted)
            return max(1, min(groups, unit.shared_bytes // unit.taken(shared)))
        return max(1, int(min(rates.registers / (held * s.size), rates.shared_bytes / shared)))

    def registers(self, s: AnyAttention) -> int:
        """Registers that an invocation has. Where they are fewer than common, a subgroup shares a
        file of them: large ones have less for each invocation."""
        narrow = self.limits.subgroup_min
        return self.limits.registers * narrow // max(s.subgroup, narrow) if (
            self.limits.few_registers and isinstance(s, GroupAttention)) else self.limits.registers

    def _spilled(self, s: AnyAttention, held: float) -> float:
        """Registers that an invocation wants and has not."""
        return max(0.0, held - self.registers(s))

    def held(self, s: AnyAttention) -> float:
        """Registers that an invocation wants: sums, what it multiplies, and what is ahead."""
        if isinstance(s, GroupAttention):
            parts = -(-self.width // s.channels)
            used = QUERIES * s.each + 4 * QUERIES + 4 * s.each
            return parts * s.vectors * 4 * QUERIES + used + BESIDE_PLAIN
        if isinstance(s, GroupLineAttention):
            return line_registers(s, self.depth, self.width, self.several(s))
        return self._held_in_matrices(s)

    def _tile(self, s: AnyAttention) -> tuple[float, int]:
        """Clocks of a tile of keys of a work-group, and barriers of the group in it."""
        if isinstance(s, GroupLineAttention):
            return line_tile(s, self.depth, self.width, self.several(s), self.limits)
        return self._plain_tile(s) if isinstance(s, GroupAttention) else self._matrix_tile(s)

    def _held_in_matrices(self, s: GroupMatrixAttention) -> float:
        rows, columns, depth = s.shape
        twice = 2 if rows == 16 and self.limits.architecture in DOUBLED else 1
        a, b, c = (twice * rows * depth / 2 / s.subgroup, twice * depth * columns / 2 / s.subgroup,
                   rows * columns / s.subgroup)
        key_width, value_width = s.padded(self.depth, self.width)
        sums = s.blocks * value_width / (s.across * columns) * c
        queries = s.blocks * key_width / depth * a if s.held else 0.0
        if s.subgroup < 16:
            return self._held_in_narrow_matrices(s, sums, s.blocks * key_width / depth * a)
        scores = s.blocks * s.columns * c + b + (0 if s.held else s.blocks * a)
        staged = s.keys * (s.channels or self.depth + self.width) / 2 / s.size
        values = s.blocks * a + b
        chunks = (key_width + value_width) / 2 / s.channels if s.channels else 0
        beside = BESIDE + chunks * BESIDE_A_CHUNK
        if self.keys <= s.keys:  # no sums while there are queries, nothing from tile to tile
            return beside + max(queries + scores, s.keys / s.share, sums + values)
        weights = min(s.keys / s.share, 16) + 16
        ahead = 2 * staged if s.ahead else 0  # with the places where it goes
        return sums + queries + max(scores, values, weights, IN_FLIGHT * staged) + ahead + beside

    def _held_in_narrow_matrices(self, s: GroupMatrixAttention, sums: float,
                                 queries: float) -> float:
        """The same in subgroups of 8, of so many registers of sums and queries. These are held as
        well where a subgroup has several turns of scores: the compiler writes the turns out."""
        if not s.held and s.ways * s.keys == s.across * s.columns * s.shape[1]:
            queries = 0.0
        each = NARROW_KEY * (6 if s.channels else 1)
        beside: float = NARROW + s.blocks * (NARROW_BLOCK + NARROW_COLUMN * (s.columns - 1))
        beside += each * (s.keys - 32) + (NARROW_CHUNKS if s.channels else 0)
        if self.keys <= s.keys:  # no sums while there are queries
            return beside + max(sums, queries)
        ahead = s.keys * (self.depth + self.width) / s.size if s.ahead else 0.0
        return beside + sums + queries + ahead

    def _matrix_tile(self, s: GroupMatrixAttention) -> tuple[float, int]:
        """The same in the matrix unit, by way of shared memory."""
        rows, columns, depth = s.shape
        key_width, value_width = s.padded(self.depth, self.width)
        matrix = s.queries * s.keys * (key_width + value_width) / self.limits.rates.matrix
        tiles = s.ways * s.keys // (s.across * columns)
        steps, along = key_width // (depth * s.ways), s.keys // depth
        queries = 0 if s.held else s.blocks * steps * tiles / s.columns
        loads_a = s.subgroups * (queries + s.blocks * along)
        loads_k = s.subgroups * tiles * steps
        loads_v = s.subgroups * along * value_width / (s.across * columns)
        loads_b = loads_k + loads_v
        moved = 2 * depth * (loads_a * rows + loads_b * columns) + 14 * s.queries * s.keys + (
            2 * s.keys * (key_width + value_width))
        rates = self.limits.rates
        plain: float = s.queries * s.keys * ISSUED_FOR_A_SCORE
        plain += s.keys * (self.depth + self.width) / 4 * ISSUED_FOR_A_VECTOR
        read = rates.read * WIDEST / s.subgroup
        own, other = (KEY_READ, VALUE_READ) if (
            self.limits.right_lines == "columns" and s.subgroup == columns) else (1.0, 1.0)
        loaded = s.subgroup * (loads_a * (1 + read) + loads_k * (1 + own * read)
                               + loads_v * (1 + other * read))
        if self.limits.few_registers and self.keys > s.keys:  # sums are copied from turn to turn
            plain += s.queries * value_width
        issued = (plain + loaded) / rates.factors
        cached = 2 * s.keys * (self.depth + self.width) / rates.cache
        chunks = (key_width + value_width) // s.channels if s.channels else 1
        barriers = 2 * chunks + (2 if s.across > 1 else 0)
        work = (max(matrix + issued, moved / rates.shared, cached) if rates.exclusive else
                max(matrix, issued, moved / rates.shared, cached) + issued / 4)
        return work, barriers

    def _plain_tile(self, s: GroupAttention) -> tuple[float, int]:
        """The same without the matrix unit."""
        depth, parts = s.depth(self.depth), -(-self.width // s.channels)
        padded = parts * s.vectors * 4 * s.columns
        size, rates = ELEMENT_BYTES[s.dtype], self.limits.rates
        products = s.queries * s.keys * (depth + padded)
        loads = s.size * (depth / 4 * (QUERIES + s.each)
                          + s.keys * parts * (1 + s.vectors))  # vectors of 4
        scores = s.queries * s.keys * ISSUED_FOR_A_SCORE
        staged = s.keys * (self.depth + self.width) / 4 * ISSUED_FOR_A_VECTOR
        issued = (products + loads + scores + staged) / rates.factors
        cached = size * s.keys * (self.depth + self.width) / rates.cache
        barriers = 2 * (depth // s.channels + parts) + (0 if s.subgroup else 2)
        return max(issued, 4 * size * loads / rates.shared, cached), barriers
