"""The schedules of contractions on GPUs that a device can run; `group_work.py` ranks them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel, Load
from smalti.schedule.group import (
    BYTES,
    WIDE_BYTES,
    WORD_OF_BYTES,
    GroupContraction,
    GroupLimits,
    GroupSchedule,
    MatrixShape,
)
from smalti.schedule.group_work import SURE, GroupWork
from smalti.schedule.merge import Extents, contraction_extents, integer_sums, weights_bound

TILES = (16, 32, 64, 128)
"""Rows and columns of the tile of a work-group, without matrix units."""
BLOCKS = ((8, 8), (4, 8), (8, 4), (4, 4), (2, 4), (1, 4))
"""Rows and columns of the register tile of an invocation."""
MATRIX_BLOCKS, BLOCKS_BESIDE = (8, 16, 32, 64), (1, 2, 3, 4, 5, 6, 8, 10, 16)
"""Rows, and columns, of the sums of a subgroup of matrix units, and how many of these are below or
beside each other in a tile."""
SUMS_SHARE = 1 / 4
"""Share of the registers of an invocation that sums of matrices take at most. The rest is for
factors, of which compilers load many ahead of the products, for the next chunk and for places: with
half as sums, the compilers of AMD and Intel spill."""
SUMS_SHARE_SHORT = 1 / 2
"""The same of a product of one chunk, where the matrix unit waits for other things: there is no
chunk after it to load, and nobody keeps places. Where it does not wait, on NVIDIA's, more sums are
only fewer subgroups: the first 3x3 of a UNet takes as many clocks, with 10 warps for 18."""
SHORT = 64
"""Depth of a product, at most, that is staged whole: once, with the addresses of a loop of several
chunks but without the loop, which drivers would write out anyway."""
DEEPER, EVENLY = (1, 2, 4), (3, 5, 6)
"""How many times as deep as others chunks are whose right matrices are read where they are: each of
them waits for its weights. The latter are tried where every invocation brings as many vectors of
the patch, and under no other does: of 128 channels of 16 pixels five subgroups bring 256 vectors in
two turns, and of 160 channels 320. Where registers are few, deeper ones only without a branch
around what some invocations bring: with it Intel's compiler loads all right matrices first, and
takes 139 registers of 128 where it takes 111 without (16 rows, 768 by 640)."""
PLACED_ACROSS = 2
"""Right matrices across a block of these, at least: to read a left one costs as much as a product,
which others have to share. By the listings of Intel's compiler two are bound at 83 % of the matrix
unit's rate where one was at 45 %."""
PLACED_ROWS = 256
"""Rows, at most, of products of several chunks whose right matrices are also tried where they are:
a weight is then used by few subgroups of the device, and none of a work-group shares it."""
INVOCATIONS = (32, 256)
"""Invocations of a work-group, at least and at most: a subgroup, and what every device runs."""
SUMS_MAX = 64
"""Sums of an invocation, at most: with more, registers are spilled."""
SPLITS = (2, 4, 8, 16)
"""Into how many parts the channels of a sum are split, each of its own work-group (split-K)."""
DIRECT_ROWS, DIRECT_ROWS_MAX = (1, 2, 4, 8), 16
"""Rows of the register tile of a product that stages nothing, and of a matrix for which that is
tried."""
WAYS = (8, 16, 32)
"""Invocations of a work-group that share a sum of such a product."""
PROMISING = 12
"""Tiles that are also tried with a split depth and a prepared patch: the fastest by themselves, and
of a device that has enough to do."""


def schedules(kernel: Kernel, limits: GroupLimits, precision: str = "f32"
              ) -> Iterator[GroupContraction]:
    """The schedules of a contraction that a device can run, without those that are never best."""
    e, bound = contraction_extents(kernel), weights_bound(kernel)
    weights = weights_dtype(kernel, precision)
    whole = integer_sums(kernel)
    if whole:
        precision = weights = BYTES
    shape, work = best_matrix(limits, precision), GroupWork.of(kernel, limits)
    found: list[GroupContraction] = []
    if shape is not None and e.c % 2 == 0:  # factors are staged in words of two halves
        found += _matrices(e, shape, weights, limits, work, bound)
    if not found or whole:  # sums of integers are the same by dot products
        halves = precision == "f16" and limits.f16
        dtypes = (BYTES,) if precision == BYTES else ("f32", "f16")[:1 + halves]
        found += [s for dtype in dtypes for s in _tiles(e, dtype, weights)]
    if bound:
        found += _direct(e, weights)
    fitting = [each for each in found
               if each.shared_bytes(e.parts) <= limits.shared_bytes and can_run(each, limits)
               and all(n <= most for n, most in zip(work.grid(each), limits.grid, strict=True))]
    yield from fitting
    promising = dict.fromkeys((*sorted(fitting, key=work.rank)[:PROMISING],
                               *sorted(fitting, key=work.throughput)[:PROMISING]))
    for each in promising:
        yield from (*_split(each, e), *_prepared(each, kernel, limits))


def can_run(schedule: GroupSchedule, limits: GroupLimits) -> bool:
    """Whether a device with these limits can run a schedule, as far as is known before lowering.

    >>> [can_run(GroupContraction(64, 64, 16, 4, block), GroupLimits()) for block in (4, 8)]
    [False, True]
    """
    try:
        schedule.check(limits)
    except IllegalSchedule:
        return False
    return True


def weights_dtype(kernel: Kernel, precision: str) -> str:
    """What packed weights are held in: no less than they are given in, in f32; what is quantised
    stays so."""
    given = kernel.buffer("weight").dtype
    if given in ("f16", "bf16") or given in FORMATS:
        return given
    return precision


def best_matrix(limits: GroupLimits, precision: str) -> MatrixShape | None:
    """The largest matrices for factors of a precision: with f32 sums, of integers with i32 ones."""
    sums = "i32" if precision == BYTES else "f32"
    fitting = [m for m in limits.matrices if m.factors == precision != "f32" and m.sums == sums]
    return max(fitting, key=lambda m: (m.rows * m.columns * m.depth, m), default=None)


def matrix_subgroup(shape: MatrixShape, limits: GroupLimits) -> int:
    """The size of subgroups for products in the matrix unit. Where matrices have 8 rows, as
    Intel's, each invocation holds a column of the result."""
    wanted = shape.columns if shape.rows == 8 else 32
    return max(limits.subgroup_min, min(limits.subgroup_max, wanted))


def _tiles(e: Extents, dtype: str, weights: str) -> Iterator[GroupContraction]:
    for tile_m, tile_n, (block_m, block_n) in product(TILES, TILES, BLOCKS):
        size = tile_m // block_m * (tile_n // block_n)
        if INVOCATIONS[0] <= size <= INVOCATIONS[1] and block_m * block_n * e.parts <= SUMS_MAX:
            deep = 16 * (WORD_OF_BYTES if dtype == BYTES else 1)
            yield GroupContraction(tile_m, tile_n, deep, block_m, block_n, dtype=dtype,
                                   weights=weights, ahead=True, buffers=2)


def _direct(e: Extents, weights: str) -> Iterator[GroupContraction]:
    """Few rows: invocations along the channels, and sets of them along the depth."""
    rows = e.b * e.y * e.x
    for tile_m in DIRECT_ROWS:
        if rows <= DIRECT_ROWS_MAX and (tile_m == 1 or tile_m < 2 * rows):
            for ways in WAYS:
                for tile_n in (16, 32, 64):
                    if ways * tile_n // 4 <= INVOCATIONS[1]:
                        whole = weights == BYTES
                        deep = 16 * ways * (WORD_OF_BYTES if whole else 1)
                        yield GroupContraction(tile_m, tile_n, deep, tile_m, 4, ways=ways,
                                               direct=True, dtype=BYTES if whole else "f32",
                                               weights=weights)


def _matrices(e: Extents, shape: MatrixShape, weights: str, limits: GroupLimits,
              work: GroupWork, bound: bool) -> list[GroupContraction]:
    """Those of the matrix unit, with as many sums as registers have room for."""
    found = [s for s in _blocks(e, shape, weights, limits, work, bound) if can_run(s, limits)]
    if work.depth > SHORT:
        return found
    few = limits.registers * SUMS_SHARE * matrix_subgroup(shape, limits)
    usual = [s for s in found if s.block_m * s.block_n * e.parts <= few]
    best = min(usual, key=work.rank, default=None)
    return found if best is None or work.matrix_unit_waits(best) else usual


def _blocks(e: Extents, shape: MatrixShape, weights: str, limits: GroupLimits,
            work: GroupWork, bound: bool) -> Iterator[GroupContraction]:
    """Blocks of sums of a subgroup, some of them down and some across a tile: any number, as 320
    channels are no power of two. Chunks are as deep as registers have room for, and deeper ones are
    tried where work-groups are so few that each only waits for its chunks.

    On Intel's units, which have matrices of 8 rows, chunks are not loaded ahead: registers of all
    invocations of a subgroup are one file there, and addresses of factors fill it. So a weight is
    not staged there that no two subgroups of a work-group share, where it can be read in place."""
    subgroup = matrix_subgroup(shape, limits)
    sums = limits.registers * (SUMS_SHARE_SHORT if work.depth <= SHORT else SUMS_SHARE)
    whole = shape.factors == BYTES
    least = max(shape.depth, WIDE_BYTES) if whole else shape.depth
    chunks = tuple(dict.fromkeys((max(WIDE_BYTES * 4 if whole else 32, least), least)))
    if work.depth <= SHORT:
        chunks = (-(-work.depth // least) * least,)
    placed = bound and weights == shape.factors and (
        work.depth <= SHORT or work.rows <= PLACED_ROWS)
    for block_m, block_n in product(MATRIX_BLOCKS, MATRIX_BLOCKS):
        if block_m % shape.rows or block_n % shape.columns or (
                block_m * block_n * e.parts > sums * subgroup):
            continue
        for down, across in product(BLOCKS_BESIDE, BLOCKS_BESIDE):
            beyond = (down - 1) * block_m >= work.rows or (across - 1) * block_n >= work.columns
            if beyond or not INVOCATIONS[0] <= down * across * subgroup <= INVOCATIONS[1]:
                continue
            found = [GroupContraction(
                down * block_m, across * block_n, tile_k, block_m, block_n, pad=4 if whole else 8,
                dtype=shape.factors, weights=weights, ahead=shape.rows != 8, matrix=shape.text,
                subgroup=subgroup) for tile_k in chunks]
            if placed and (down == 1 or work.depth <= SHORT) and (
                    work.columns % (across * block_n) == 0):
                if block_n >= PLACED_ACROSS * shape.columns:
                    placing = [replace(found[0], direct=True, tile_k=n * found[0].tile_k)
                               for n in DEEPER if n * found[0].tile_k < 2 * work.depth]
                    if not any(map(work.even, placing)):
                        others = (replace(found[0], direct=True, tile_k=n * found[0].tile_k)
                                  for n in EVENLY)
                        placing += [s for s in others
                                    if work.channels % s.tile_k == 0 and work.even(s)]
                    yield from [s for s in placing if work.held(s) <= SURE * limits.registers
                                and not (limits.few_registers and s.tile_k > found[0].tile_k
                                         and work.partial(s))]
                if down == 1 and not found[0].ahead:
                    continue
            fitting = [s for s in found if work.held(s) <= SURE * limits.registers]
            yield fitting[0] if fitting else found[-1]
            deeper = replace(found[0], tile_k=2 * found[0].tile_k)
            if fitting and work.rows >= shape.rows and work.groups(deeper) <= work.units and (
                    work.held(deeper) <= SURE * limits.registers):
                yield deeper


def _split(s: GroupContraction, e: Extents) -> Iterator[GroupContraction]:
    chunks = -(-e.r * e.s * e.c // s.tile_k)
    for split in SPLITS:
        if chunks >= 4 * split and chunks % split == 0 and (s.matrix or not s.direct):
            yield replace(s, split=split)


def _prepared(s: GroupContraction, kernel: Kernel,
              limits: GroupLimits) -> Iterator[GroupContraction]:
    patch = kernel.stages[0]
    if s.direct and not s.matrix or isinstance(patch.value, Load) or s.dtype == BYTES:
        return
    size = math.prod(n for _, n in patch.axes) * ELEMENT_BYTES[s.dtype]
    if size <= limits.buffer_range:
        yield replace(s, prepared=True)


