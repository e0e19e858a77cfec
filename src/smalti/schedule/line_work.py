"""The schedules of attention whose invocations hold whole queries (`line_attention.py`), and what a
tile of keys takes of a work-group: clocks, barriers, registers.

`space_attention.py` makes an order of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupLimits, MatrixShape
from smalti.schedule.group_work import ISSUED_FOR_A_VECTOR, LINE_READ, WIDE
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.space_group import can_run, matrix_subgroup

SETS, ACROSS, BLOCKS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16), (1, 2, 4)
KEYS, CHUNKS = (16, 32, 64, 128), (0, 32, 64, 128)
"""Sets of subgroups, subgroups of a set, matrices of queries of a subgroup, keys of a tile, and
channels that are staged at a time, 0 all: what is tried."""
ALL_KEYS_MAX = 160
"""Keys that are tried as one tile, at most: there is no top of earlier keys then."""
INVOCATIONS = 256
"""Invocations of a work-group, at most: what every device runs."""
ISSUED_FOR_A_SCORE = 6
"""Instructions from a score to its weight: top, difference, power, sum, rounding, and a move to
where the factor has it."""
ISSUED_FOR_A_TOP = 110
"""Those of an invocation for a tile, whatever is in it: the top of a query, whether it moves, the
loop, addresses. By the listings of Intel's compiler 114 to 117, of tiles of 16 and 32 keys."""
ISSUED_FOR_A_CHUNK = 30
"""Those for a chunk beside the first: where it is, and where what is read of it."""
BESIDE, BESIDE_SHARED, BESIDE_CHUNKS = 41, 9, 10
"""Registers of an invocation beside sums, queries, scores and weights: factors of keys and values,
and addresses; more where queries are in shared memory, and for chunks. Fitted to what Intel's
compiler says of eleven schedules of heads of 40 to 160 channels: within 9 registers."""
BESIDE_SCORES, BESIDE_SUMS, BESIDE_READ = 8, 15, 25
"""The same where all keys are in one tile and no set divides it, so that nothing goes from turn to
turn and sums come after scores: beside scores and queries, beside weights and sums, and more where
queries are in shared memory. Intel's compiler takes 112, 119 and 135 registers for 80 keys of 40,
64 and 80 channels: within 1; and 113 for 40 whose queries are in shared memory, of which 120 are
expected."""
AHEAD = 2.5
"""Registers for each word that is ahead: what is loaded, and where it goes. Intel's compiler takes
1.6 for heads of 64 channels and 2.5 for those of 80."""


def line_schedules(kernel: Kernel, limits: GroupLimits,
                   shape: MatrixShape) -> Iterator[GroupLineAttention]:
    """The schedules of an attention that a device can run which says who holds which lines."""
    if not limits.right_lines == limits.sum_lines == "columns" or shape.factors != "f16":
        return
    words = limits.left_words and all(
        each.dtype == "f16" and each.shape[3] % WIDE == 0 and each.strides[3] == 1
        and not any(n % WIDE for n in each.strides[:3])
        for each in (kernel.buffer("k"), kernel.buffer("v"))) and (
        2 * matrix_subgroup(shape, limits) == shape.depth)
    depth, width = kernel.buffer("q").shape[3], kernel.buffer("v").shape[3]
    subgroup, keys_of_all = matrix_subgroup(shape, limits), kernel.buffer("v").shape[1]
    all_keys = -(-keys_of_all // shape.depth) * shape.depth
    tiles = dict.fromkeys((*KEYS, *((all_keys,) if all_keys <= ALL_KEYS_MAX else ())))
    for sets, across, blocks, keys, channels, held, ahead in product(
            SETS, ACROSS, BLOCKS, tiles, CHUNKS, (False, True), (False, True)):
        if sets * across * subgroup > INVOCATIONS or ahead and keys >= keys_of_all:
            continue
        if channels and (channels >= max(depth, width) or held or ahead):
            continue
        found = GroupLineAttention(sets * across, blocks, keys, shape.text, subgroup,
                                   shape.factors, across, channels, held, ahead,
                                   words)
        if found.shared_bytes(depth, width) <= limits.shared_bytes and can_run(found, limits):
            yield found


def line_tile(s: GroupLineAttention, depth: int, width: int, several: bool,
              limits: GroupLimits) -> tuple[float, int]:
    """Clocks of a tile of keys of a work-group, and barriers of the group in it; `several`: there
    are more tiles than one."""
    rates, lines, each = limits.rates, s.token_lines, s.shape[2]
    key_width, value_width = s.padded(depth, width)
    matrix = s.queries * s.keys * (key_width + value_width) / rates.matrix
    tokens = s.subgroups * (s.keys // (s.across * lines) * (key_width // each)
                            + value_width // (s.across * lines) * (s.keys // each))
    again = 1 if s.keeps else value_width // (s.across * lines)
    queries = s.subgroups * s.blocks * ((0 if s.held else key_width // each)
                                        + (again * s.keys // each if s.across > 1 else 0))
    moved = 2 * each * (tokens * lines + queries * s.query_lines)
    moved += 2 * s.keys * (key_width + value_width)
    if s.across > 1:
        moved += s.queries * (2 * s.keys + 4 * s.across * (s.across + 1))
    words = lines * each / 2 / s.subgroup  # of a factor that an invocation has
    plain: float = s.queries * (s.keys * ISSUED_FOR_A_SCORE + s.across * ISSUED_FOR_A_TOP)
    plain += s.keys * (depth + width) / 4 * ISSUED_FOR_A_VECTOR
    if s.words:
        words /= 4  # of which four are one vector
    loaded = s.subgroup * (tokens * 2 * words + queries * (1 + LINE_READ * rates.read))
    if limits.few_registers and several:  # sums are copied from turn to turn
        plain += s.queries * value_width
    issued = (plain + loaded) / rates.factors
    cached = 2 * s.keys * (depth + width) / rates.cache
    chunks = (key_width + value_width) // s.channels if s.channels else 1
    issued += (chunks - 1) * s.size * ISSUED_FOR_A_CHUNK / rates.factors
    barriers = 2 * chunks + (2 if s.across > 1 else 0)
    work = (max(matrix + issued, moved / rates.shared, cached) if rates.exclusive else
            max(matrix, issued, moved / rates.shared, cached) + issued / 4)
    return work, barriers


def line_registers(s: GroupLineAttention, depth: int, width: int, several: bool) -> float:
    """Registers that an invocation wants; `several`: there are more tiles of keys than one."""
    key_width, value_width = s.padded(depth, width)
    sums = s.blocks * value_width / s.across
    queries = s.blocks * key_width / 2 if s.held else 0.0
    scores = s.blocks * s.keys / s.across
    weights = s.blocks * s.keys / 2 if s.keeps else 0.0
    if not several and s.across == 1 and not s.channels:
        return (0 if s.held else BESIDE_READ) + max(  # queries and scores are gone before sums
            queries + scores + BESIDE_SCORES, weights + sums + BESIDE_SUMS)
    ahead = AHEAD * s.keys * (depth + width) / 2 / s.size if s.ahead else 0.0
    beside = BESIDE + (0 if s.held else BESIDE_SHARED) + (BESIDE_CHUNKS if s.channels else 0)
    return beside + sums + queries + max(scores, weights) + ahead
