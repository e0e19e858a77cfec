"""The schedules of contractions on GPUs, and about how long each takes.

`schedules` lists what a device can run; `GroupWork.clocks` ranks it, by what bounds a product on a
compute unit: its multiply-adds, what invocations issue besides, shared memory, caches, device
memory, and the latency of the chunks of one work-group. The rates are those of common devices, a
guess for any one of them: a tuner measures the best few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from smalti.errors import IllegalSchedule
from smalti.kernel.form import ELEMENT_BYTES, Expr, Kernel, Load, functions, loads
from smalti.schedule.group import GroupContraction, GroupLimits, MatrixShape
from smalti.schedule.merge import Extents, contraction_extents, weights_batched, weights_bound

UNITS = 32
"""Compute units of a device that does not tell how many it has."""
TILES, MATRIX_TILES = (16, 32, 64, 128), (16, 32, 64, 128, 256)
"""Rows and columns of the tile of a work-group, without matrix units and with them."""
BLOCKS = ((8, 8), (4, 8), (8, 4), (4, 4), (2, 4), (1, 4))
"""Rows and columns of the register tile of an invocation."""
MATRIX_BLOCKS = ((64, 64), (64, 32), (32, 64), (32, 32), (16, 32), (32, 16), (16, 16))
"""Rows and columns of the sums of a subgroup of matrix units."""
SUMS_SHARE = 1 / 4
"""Share of the registers of an invocation that sums of matrices take at most. The rest is for
factors, of which compilers load many ahead of the products, for the next chunk and for places: with
half as sums, the compilers of AMD and Intel spill."""
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
SIMPLE = {"add", "sub", "mul", "div", "max", "min", "neg", "abs", "relu"}

FACTORS_A_CLOCK, MATRIX_A_CLOCK = 128, 1024
"""Multiply-adds of a unit in a clock, and of its matrix unit."""
SHARED_A_CLOCK, CACHE_A_CLOCK, MEMORY_A_CLOCK = 128, 32, 8
"""Bytes of a unit in a clock: from its own memory, the cache of all units, and main memory."""
FULL = 128
"""Invocations that a unit has to have in order to be busy."""
ISSUED_FOR_A_VECTOR, ISSUED_FOR_A_FUNCTION = 12, 14
"""Instructions of an invocation to stage a vector, and those of a function of the prologue."""
REGISTERS, REGISTERS_BESIDE, SHARED_OF_A_UNIT = 1 << 16, 40, 2
"""Registers of a unit, those of an invocation beside what it multiplies and stages, and the shared
memory of a unit over what a work-group may have."""
CHUNK_LATENCY, CHUNK_LATENCY_AHEAD, BARRIER, STALL = 900, 300, 30, 250
"""Clocks of a chunk of a work-group that is alone, beside its work, and of a barrier: those that
everybody pays, and those that another work-group can fill."""
START, LAUNCH = 1500, 5000
"""Clocks until the first chunk and for the result of a work-group, and for a step more."""


def schedules(kernel: Kernel, limits: GroupLimits, precision: str = "f32"
              ) -> Iterator[GroupContraction]:
    """The schedules of a contraction that a device can run, without those that are never best."""
    e, bound = contraction_extents(kernel), weights_bound(kernel)
    weights = weights_dtype(kernel, precision)
    shape = best_matrix(limits, precision)
    found = [] if shape is None or e.c % 2 else [  # factors are staged in words of two halves
        s for s in _matrices(e, shape, weights, limits) if allowed(s, limits)]
    if not found:
        halves = precision == "f16" and limits.f16
        found = [s for dtype in ("f32", "f16")[:1 + halves] for s in _tiles(e, dtype, weights)]
    if bound:
        found += _direct(e, weights)
    work = GroupWork.of(kernel, limits)
    for each in found:
        fits = each.shared_bytes(e.parts) <= limits.shared_bytes and all(
            n <= most for n, most in zip(work.grid(each), limits.grid, strict=True))
        if fits and allowed(each, limits):
            yield from (each, *_split(each, e), *_prepared(each, kernel, limits))


def allowed(schedule: GroupContraction, limits: GroupLimits) -> bool:
    """True if a device can run a schedule."""
    try:
        schedule.check(limits)
    except IllegalSchedule:
        return False
    return True


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


def matrix_subgroup(shape: MatrixShape, limits: GroupLimits) -> int:
    """The size of subgroups for products in the matrix unit. Where matrices have 8 rows, as
    Intel's, each invocation holds a column of the result."""
    wanted = shape.columns if shape.rows == 8 else 32
    return max(limits.subgroup_min, min(limits.subgroup_max, wanted))


def issued_for(value: Expr) -> float:
    """Instructions for a point of an expression, beside the first load.

    >>> from smalti.kernel.form import Call, axis
    >>> issued_for(Call("exp", (Load("x", (axis("i"),)),)))
    14
    """
    if isinstance(value, Load):
        return 0.0
    names = list(functions(value))
    simple = sum(name in SIMPLE for name in names)
    return (len(list(loads(value))) - 1 + simple + ISSUED_FOR_A_FUNCTION * (len(names) - simple))


def _tiles(e: Extents, dtype: str, weights: str) -> Iterator[GroupContraction]:
    for tile_m, tile_n, (block_m, block_n) in product(TILES, TILES, BLOCKS):
        size = tile_m // block_m * (tile_n // block_n)
        if INVOCATIONS[0] <= size <= INVOCATIONS[1] and block_m * block_n * e.parts <= SUMS_MAX:
            yield GroupContraction(tile_m, tile_n, 16, block_m, block_n, dtype=dtype,
                                   weights=weights, ahead=True, buffers=2)


def _direct(e: Extents, weights: str) -> Iterator[GroupContraction]:
    """Few rows: invocations along the channels, and sets of them along the depth."""
    rows = e.b * e.y * e.x
    for tile_m in DIRECT_ROWS:
        if rows <= DIRECT_ROWS_MAX and (tile_m == 1 or tile_m < 2 * rows):
            for ways in WAYS:
                for tile_n in (16, 32, 64):
                    if ways * tile_n // 4 <= INVOCATIONS[1]:
                        yield GroupContraction(tile_m, tile_n, 16 * ways, tile_m, 4, ways=ways,
                                               direct=True, weights=weights)


def _matrices(e: Extents, shape: MatrixShape, weights: str,
              limits: GroupLimits) -> Iterator[GroupContraction]:
    text = f"{shape.rows}x{shape.columns}x{shape.depth}"
    subgroup, sums = matrix_subgroup(shape, limits), limits.registers * SUMS_SHARE
    chunks = dict.fromkeys((max(32, shape.depth), shape.depth))
    for tile_m, tile_n, (block_m, block_n), tile_k in product(
            MATRIX_TILES, MATRIX_TILES, MATRIX_BLOCKS, chunks):
        blocks = tile_m * tile_n // (block_m * block_n)
        if not tile_m % block_m and not tile_n % block_n and (
                blocks * subgroup <= INVOCATIONS[1]
                and block_m * block_n * e.parts <= sums * subgroup):
            yield GroupContraction(
                tile_m, tile_n, tile_k, block_m, block_n, pad=8, dtype=shape.factors,
                weights=weights, ahead=True, matrix=text, subgroup=subgroup)


def _split(s: GroupContraction, e: Extents) -> Iterator[GroupContraction]:
    chunks = -(-e.r * e.s * e.c // s.tile_k)
    for split in SPLITS:
        if chunks >= 4 * split and (split - 1) * -(-chunks // split) < chunks and not s.direct:
            yield replace(s, split=split)


def _prepared(s: GroupContraction, kernel: Kernel,
              limits: GroupLimits) -> Iterator[GroupContraction]:
    patch = kernel.stages[0]
    if s.direct or isinstance(patch.value, Load):
        return
    size = math.prod(n for _, n in patch.axes) * ELEMENT_BYTES[s.dtype]
    if size <= limits.buffer_range:
        yield replace(s, prepared=True)


@dataclass(frozen=True)
class GroupWork:
    """What a contraction takes on a device, whatever its schedule.

    `prologue` are instructions for an element of the patch, which has `points` of them and reads
    so many `loads`. `registers` is what an invocation may have.
    """

    batch: int
    rows: int
    columns: int
    parts: int
    channels: int
    depth: int
    points: int
    prologue: float
    loads: int
    units: int
    shared: int
    registers: int

    @classmethod
    def of(cls, kernel: Kernel, limits: GroupLimits) -> GroupWork:
        """The work of a kernel."""
        e, patch = contraction_extents(kernel), kernel.stages[0]
        batch, rows = (e.b * e.y, e.x) if weights_batched(kernel) else (1, e.b * e.y * e.x)
        read = len(set(loads(patch.value)))
        prologue = issued_for(patch.value)
        return cls(batch, rows, e.o, e.parts, e.c, e.r * e.s * e.c,
                   math.prod(n for _, n in patch.axes), prologue, read, limits.units or UNITS,
                   SHARED_OF_A_UNIT * limits.shared_bytes, limits.registers)

    def grid(self, s: GroupContraction) -> tuple[int, int, int]:
        """The work-groups of a schedule: along columns, rows, and the batch and parts of the depth.
        """
        return -(-self.columns // s.tile_n), -(-self.rows // s.tile_m), self.batch * s.split

    def clocks(self, s: GroupContraction) -> float:
        """About how many clocks of a compute unit this takes under a schedule."""
        grid = self.grid(s)
        groups, tiles = math.prod(grid), grid[1]
        steps = -(-self.depth // s.tile_k)
        chunks = -(-steps // s.split)
        step, latency = self._chunk(s)
        alone = START + chunks * max(latency, step)
        each = -(-groups // self.units)
        stall = STALL * (3 - s.buffers)
        shown = max(step, (step + stall) / min(each, self.resident(s)))
        busy = each * (START / 4 + chunks * shown)
        size, sums = ELEMENT_BYTES.get(s.weights, 4), self.batch * self.rows * self.columns
        read = (self.batch * self.depth * self.parts * self.columns * size * min(tiles, 4)
                + 4 * self.batch * self.rows * self.channels + 4 * sums)
        total = max(alone, busy, read / (MEMORY_A_CLOCK * min(groups, self.units)))
        if s.split > 1:
            total += LAUNCH + 8 * s.split * sums * self.parts / (MEMORY_A_CLOCK * self.units)
        if s.prepared:
            work = self.points * (self.prologue + ISSUED_FOR_A_VECTOR / 4) / FACTORS_A_CLOCK
            moved = self.points * 2 * ELEMENT_BYTES[s.dtype] / MEMORY_A_CLOCK
            total += LAUNCH + max(work, moved) / self.units
        return total

    def resident(self, s: GroupContraction) -> int:
        """Work-groups that a unit holds at a time, by registers and shared memory."""
        held = min(self.held(s), self.registers)
        registers = REGISTERS / (held * s.invocations)
        return max(1, int(min(registers, self.shared / s.shared_bytes(self.parts))))

    def held(self, s: GroupContraction) -> float:
        """Registers that an invocation wants: sums, factors, and what is loaded ahead, which is f32
        for each load of a prologue."""
        sums = s.block_m * s.block_n * self.parts / (s.subgroup if s.matrix else 1)
        word = ELEMENT_BYTES[s.dtype] / 4
        if s.matrix:
            depth = min(s.tile_k, 2 * s.shape[2])
            factors = word * depth * (s.block_m + s.block_n * self.parts) / s.subgroup
        else:
            factors = 4 * s.block_m + s.block_n * self.parts
        staged = 0.0
        if s.ahead:
            plain = s.prepared or not self.prologue
            staged = s.tile_k * (s.tile_m * (word if plain else self.loads)
                                 + word * s.tile_n * self.parts) / s.invocations
        return sums + factors + staged + REGISTERS_BESIDE

    def _chunk(self, s: GroupContraction) -> tuple[float, float]:
        """Clocks of a chunk of a work-group while others are at work too, and when it is alone."""
        columns, block_n = s.tile_n * self.parts, s.block_n * self.parts
        products = s.tile_m * columns * s.tile_k
        size, weight = ELEMENT_BYTES[s.dtype], ELEMENT_BYTES.get(s.weights, 4)
        shared = products * (1 / s.block_m + 1 / block_n) * size / SHARED_A_CLOCK
        if s.matrix:
            arithmetic = products / MATRIX_A_CLOCK
        else:
            loaded = 1 / s.block_m + 1 / block_n  # f16 is widened by an instruction for each
            more = 8 / s.block_m / block_n + (loaded if s.dtype == "f16" else 0)
            arithmetic = products / FACTORS_A_CLOCK * (1 + more)
        if s.direct:
            shared = s.tile_m * s.tile_k * columns / 4 * size / SHARED_A_CLOCK
        cached = s.tile_k * (s.tile_m * size + columns * weight) / CACHE_A_CLOCK
        staged = s.tile_k * (s.tile_m + columns) * (ISSUED_FOR_A_VECTOR / 4)
        if not s.prepared:
            staged += s.tile_m * s.tile_k * self.prologue
        work = max(arithmetic, shared, cached) + staged / FACTORS_A_CLOCK
        work += BARRIER * (3 - s.buffers)
        spilled = max(0.0, self.held(s) - self.registers)
        work += 2 * 4 * spilled * s.invocations / SHARED_A_CLOCK
        few = max(1.0, FULL / s.invocations)
        latency = CHUNK_LATENCY_AHEAD if s.ahead else CHUNK_LATENCY
        return work, latency + work * few
