"""The schedules of contractions on GPUs, and about how long each takes.

`schedules` lists what a device can run; `clocks` ranks it, by what bounds a product on a compute
unit: its multiply-adds, what invocations issue besides, shared memory, device memory, and the
latency of the chunks of one work-group. The rates are those of common devices, a guess for any one
of them: a tuner measures the best few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from smalti.errors import IllegalSchedule
from smalti.kernel.form import ELEMENT_BYTES, Kernel, Load, functions, loads
from smalti.schedule.group import GroupContraction, GroupLimits, MatrixShape
from smalti.schedule.merge import Extents, contraction_extents, weights_batched, weights_bound

UNITS = 32
"""Compute units of a device that does not tell how many it has."""
TILES = (16, 32, 64, 128)
BLOCKS = ((8, 8), (4, 8), (8, 4), (4, 4), (2, 4), (1, 4))
MATRIX_BLOCKS = ((64, 64), (64, 32), (32, 64), (32, 32), (16, 32), (32, 16), (16, 16))
INVOCATIONS = (32, 256)
SUMS_MAX = 64
"""Of an invocation: with more, registers are spilled."""
SPLITS = (2, 4, 8, 16)
DIRECT_ROWS = (1, 2, 4, 8)
WAYS = (8, 16, 32)
SIMPLE = {"add", "sub", "mul", "div", "max", "min", "neg", "abs", "relu"}

FACTORS_A_CLOCK, MATRIX_A_CLOCK = 128, 1024
"""Multiply-adds of a unit in a clock, and of its matrix unit."""
SHARED_A_CLOCK, MEMORY_A_CLOCK = 128, 8
"""Bytes of a unit in a clock."""
ISSUED_FOR_A_VECTOR, ISSUED_FOR_A_FUNCTION = 12, 14
CHUNK_LATENCY, CHUNK_LATENCY_AHEAD, BARRIER = 900, 300, 60
START, LAUNCH = 1500, 5000
"""Clocks until the first chunk and for the result of a work-group, and for a step more."""


def schedules(kernel: Kernel, limits: GroupLimits, precision: str = "f32"
              ) -> Iterator[GroupContraction]:
    """The schedules of a contraction that a device can run, without those that are never best."""
    e, bound = contraction_extents(kernel), weights_bound(kernel)
    weights = weights_dtype(kernel, precision)
    dtype = "f16" if precision == "f16" and limits.f16 else "f32"
    found = list(_tiles(e, dtype, weights))
    if bound:
        found += _direct(e, weights)
    shape = best_matrix(limits, precision)
    if shape is not None:
        found += _matrices(e, shape, weights, limits)
    for each in found:
        for schedule in (each, *_split(each, e), *_prepared(each, kernel, limits)):
            try:
                schedule.check(limits)
            except IllegalSchedule:
                continue
            if schedule.shared_bytes(e.parts) <= limits.shared_bytes:
                yield schedule


def weights_dtype(kernel: Kernel, precision: str) -> str:
    """What packed weights are held in: no less than they are given in, in f32."""
    given = kernel.buffer("weight").dtype
    if given in ("f16", "bf16"):
        return given
    return precision


def best_matrix(limits: GroupLimits, precision: str) -> MatrixShape | None:
    """The largest matrices with f32 sums for factors of a precision."""
    fitting = [m for m in limits.matrices if m.factors == precision != "f32" and m.sums == "f32"]
    return max(fitting, key=lambda m: (m.rows * m.columns * m.depth, m), default=None)


def _tiles(e: Extents, dtype: str, weights: str) -> Iterator[GroupContraction]:
    for tile_m in TILES:
        for tile_n in TILES:
            for block_m, block_n in BLOCKS:
                size = tile_m // block_m * (tile_n // block_n)
                if not INVOCATIONS[0] <= size <= INVOCATIONS[1] or (
                        block_m * block_n * e.parts > SUMS_MAX):
                    continue
                for buffers in (1, 2):
                    yield GroupContraction(tile_m, tile_n, 16, block_m, block_n, dtype=dtype,
                                           weights=weights, ahead=True, buffers=buffers)


def _direct(e: Extents, weights: str) -> Iterator[GroupContraction]:
    """Few rows: invocations along the channels, and sets of them along the depth."""
    rows = e.b * e.y * e.x
    for tile_m in DIRECT_ROWS:
        if tile_m == 1 or tile_m < 2 * rows <= 32:
            for ways in WAYS:
                for tile_n in (16, 32, 64):
                    if ways * tile_n // 4 <= INVOCATIONS[1]:
                        yield GroupContraction(tile_m, tile_n, 16 * ways, tile_m, 4, ways=ways,
                                               direct=True, weights=weights)


def _matrices(e: Extents, shape: MatrixShape, weights: str,
              limits: GroupLimits) -> Iterator[GroupContraction]:
    text = f"{shape.rows}x{shape.columns}x{shape.depth}"
    subgroup = max(limits.subgroup_min, min(limits.subgroup_max, 32))
    for tile_m in TILES:
        for tile_n in TILES:
            for block_m, block_n in MATRIX_BLOCKS:
                if block_m * block_n * e.parts > 64 * subgroup * 2:
                    continue
                for buffers in (1, 2):
                    yield GroupContraction(
                        tile_m, tile_n, max(32, shape.depth), block_m, block_n, pad=8,
                        dtype=shape.factors, weights=weights, ahead=True, buffers=buffers,
                        matrix=text, subgroup=subgroup)


def _split(s: GroupContraction, e: Extents) -> Iterator[GroupContraction]:
    chunks = -(-e.r * e.s * e.c // s.tile_k)
    for split in SPLITS:
        if chunks >= 4 * split and not s.direct:
            yield replace(s, split=split)


def _prepared(s: GroupContraction, kernel: Kernel,
              limits: GroupLimits) -> Iterator[GroupContraction]:
    patch = kernel.stages[0]
    if s.direct or isinstance(patch.value, Load):
        return
    size = math.prod(n for _, n in patch.axes) * ELEMENT_BYTES[s.dtype]
    if size <= limits.buffer_range:
        yield replace(s, prepared=True)


def clocks(kernel: Kernel, s: GroupContraction, limits: GroupLimits) -> float:
    """About how many clocks of a compute unit a contraction takes under a schedule."""
    e, units = contraction_extents(kernel), limits.units or UNITS
    batch, rows = (e.b * e.y, e.x) if weights_batched(kernel) else (1, e.b * e.y * e.x)
    depth = e.r * e.s * e.c
    groups = batch * -(-rows // s.tile_m) * -(-e.o // s.tile_n) * s.split
    chunks = -(-(-(-depth // s.tile_k)) // s.split)
    step, latency = _chunk(kernel, s, e)
    alone = START + chunks * max(latency, step)
    busy = -(-groups // units) * (START / 4 + chunks * step)
    size = ELEMENT_BYTES.get(s.weights, 4)
    read = (batch * depth * e.parts * e.o * size * min(-(-rows // s.tile_m), 4)
            + batch * rows * e.c * 4 + batch * rows * e.o * 4)
    memory = read / (MEMORY_A_CLOCK * min(groups, units))
    total = max(alone, busy, memory)
    if s.split > 1:
        total += LAUNCH + 8 * s.split * batch * rows * e.parts * e.o / (MEMORY_A_CLOCK * units)
    if s.prepared:
        points = math.prod(n for _, n in kernel.stages[0].axes)
        work = points * (_prologue(kernel) + ISSUED_FOR_A_VECTOR / 4) / FACTORS_A_CLOCK
        moved = points * 2 * ELEMENT_BYTES[s.dtype] / MEMORY_A_CLOCK
        total += LAUNCH + max(work, moved) / units
    return total


def _chunk(kernel: Kernel, s: GroupContraction, e: Extents) -> tuple[float, float]:
    """Clocks of a chunk of a work-group while others are at work too, and when it is alone."""
    columns = s.tile_n * e.parts
    products = s.tile_m * columns * s.tile_k
    block_n = s.block_n * e.parts
    size = 4 if s.dtype == "f32" else 2
    shared = products * (1 / s.block_m + 1 / block_n) * size / SHARED_A_CLOCK
    if s.matrix:
        arithmetic = products / MATRIX_A_CLOCK
    else:
        arithmetic = products / FACTORS_A_CLOCK * (1 + 1 / s.block_m / block_n * 8)
    if s.direct:
        shared = s.tile_m * s.tile_k * columns / 4 * size / SHARED_A_CLOCK
    staged = s.tile_m * s.tile_k * (ISSUED_FOR_A_VECTOR / 4)
    if not s.prepared:
        staged += s.tile_m * s.tile_k * _prologue(kernel)
    staged += columns * s.tile_k * ISSUED_FOR_A_VECTOR / 4
    work = max(arithmetic, shared) + staged / FACTORS_A_CLOCK + BARRIER * (3 - s.buffers)
    few = max(1.0, 4 * 32 / s.invocations)
    latency = CHUNK_LATENCY_AHEAD if s.ahead else CHUNK_LATENCY
    return work, latency + work * few


def _prologue(kernel: Kernel) -> float:
    """Instructions of the prologue for an element of the patch."""
    value = kernel.stages[0].value
    if isinstance(value, Load):
        return 0.0
    read = sum(1 for _ in loads(value)) - 1
    return read + sum(1 if name in SIMPLE else ISSUED_FOR_A_FUNCTION for name in functions(value))
