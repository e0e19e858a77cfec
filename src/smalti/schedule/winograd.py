"""Schedules by Winograd's algorithm: how a layer is cut into tiles of blocks.

Rules, each with its reason:
* a tile has `BLOCKS` blocks, so that weights are read once for many of them; half as many where the
  transformed inputs then stay in the second-level cache;
* a tile goes through all panels, so that its inputs are transformed once; where that leaves the
  threads without work, the inputs are transformed in a step of their own;
* where each tile transforms its weights, two panels are computed at a time, so that the transformed
  inputs, which are far more than a cache of a thread holds, are read half as often; not where
  threads would wait for that.
"""

from __future__ import annotations

import math
from dataclasses import replace

from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.schedule.merge import Extents, contraction_extents, halved, weights_bound
from smalti.schedule.schedule import BINDING, RUN, TILE, ContractionSchedule, Limits, Winograd

BLOCKS, BLOCKS_X = 64, 8
"""Blocks in a tile, and in a row of it: weights of a point are read once for 64 products of each
number, and a tile is about as high as wide, so that its halo is small."""
V_SHARE = 1.25
"""How much of the second-level cache the transformed inputs of half a tile may fill: measured on a
Zen 5 of 1 MiB, where each point of V is read in turn and the rest stays."""
V_FAR = 4
"""Second-level caches that the transformed inputs of a tile fill before pairs of panels pay:
measured with layers of 32 x 32 of the UNet of Stable Diffusion 1.5, which take 0.6 to 0.75 of the
time."""
PATCH_SHARE, U_SHARE = 1 / 3, 0.6
"""Shares of the second-level cache that the staged patch and the transformed weights of a chunk may
take, where a step has both of them: a guess."""
TILES_PER_THREAD = 6
"""Tiles a thread from which on it does not matter which of them takes the last: a guess."""
PAIR_TURNS = 1.1
"""What pairs of panels may cost the busiest thread, over single ones."""
CARRIERS = 4
"""Vector registers that carry what the transforms spill, in the micro-kernel of the same function,
too: sums that did not fit beside them would lie in memory. With 16 registers, 4 rows instead of 6
take 1.5 to 1.9 times less."""


def even(extent: int, most: int) -> int:
    """The tile of at most `most` that divides `extent` most evenly: ceil(extent / tiles).

    >>> even(77, 256), even(512, 200), even(64, 14)
    (77, 171, 13)
    """
    return -(-extent // -(-extent // most))


def winograd_fits(kernel: Kernel, limits: Limits) -> bool:
    """True if a contraction can be computed by Winograd's algorithm, and reads a vector of
    channels.

    With few output channels the direct algorithm computes a whole panel, too. Computed weights
    would be transformed by each run.
    """
    e = contraction_extents(kernel)
    window = (e.r, e.s, e.stride_y, e.stride_x, e.dilation_y, e.dilation_x)
    return window == (3, 3, 1, 1, 1, 1) and e.parts == 1 and e.c >= limits.lanes \
        and weights_bound(kernel)


def points(size: int, folded: bool) -> int:
    """Products of a block of size x size outputs.

    >>> points(4, False), points(2, False), points(4, True), points(2, True)
    (36, 16, 25, 9)
    """
    return (size + 1 if folded else size + 2) ** 2


def winograd_schedule(kernel: Kernel, direct: ContractionSchedule, limits: Limits, size: int,
                      by_tile: bool, growth_max: int | None = None) -> ContractionSchedule:
    """The schedule by F(`size`) of a kernel that it fits; an enlargement in front is folded in.

    Weights are transformed in each tile if `by_tile`; else by each run where that at binding would
    add more than `growth_max` bytes to the plain ones, and where these are quantised.
    """
    e = contraction_extents(kernel)
    folded = halved(kernel.stages[0]) is not None
    tile_b, block_y, block_x = block_tile(e, limits, size, folded, by_tile)
    tiles = e.b // tile_b * -(-e.y // (size * block_y)) * -(-e.x // (size * block_x))
    shared = tiles < TILES_PER_THREAD * limits.threads and tiles % limits.threads != 0
    vectors = min(direct.vectors, 2)
    panels = -(-e.o // (vectors * limits.lanes))
    wanted = -(-TILES_PER_THREAD * limits.threads // tiles) if shared else 1
    turns, pairs = (-(-panels * tiles // (n * limits.threads)) for n in (1, 2))
    far = 4 * points(size, folded) * tile_b * block_y * block_x * e.c > V_FAR * limits.l2_bytes
    group = 2 if by_tile and far and panels % 2 == 0 and 2 * pairs <= PAIR_TURNS * turns else 1
    block = max(n for n in range(group, panels + 1, group) if panels % n == 0 and (
        n * wanted <= panels or n == group))
    step = size // 2 if folded else size
    patch = (block_y * step + 2) * (block_x * step + 2) * 4
    u = points(size, folded) * vectors * limits.lanes * 4
    most = e.c if by_tile and shared else int(PATCH_SHARE * limits.l2_bytes) // patch
    if by_tile:
        most = min(most, int(U_SHARE * limits.l2_bytes) // u)
    most = max(limits.lanes, most)
    form = FORMATS.get(direct.weights)
    fits = [n for n in range(limits.lanes, most + 1, limits.lanes)
            if e.c % n == 0 and (form is None or n % form.group == 0)]
    growth = weights_growth(e, direct.weights, size, folded)
    too_large = form is not None or growth_max is not None and growth > growth_max
    transformed = TILE if by_tile else RUN if too_large else BINDING
    weights = "f32" if transformed == BINDING else direct.weights
    whole = -(-e.c // 8) * 8 if weights == "bf16" else -(-e.c // 4) * 4
    chunk = whole if e.c <= most or not fits else fits[-1]
    rows = min(carried_rows(limits, vectors), tile_b * block_y * block_x)
    return replace(direct, tile_b=tile_b, tile_y=block_y * size, tile_x=block_x * size,
                   panels=block, chunk=chunk, rows=rows, vectors=vectors,
                   unroll=math.gcd(4, chunk), dtype="f32", weights=weights,
                   algorithm=Winograd(size, group, folded, shared, transformed))


def carried_rows(limits: Limits, vectors: int) -> int:
    """Rows of a micro-kernel of `vectors` vectors that leave registers for spills.

    >>> carried_rows(Limits(16, 32), 2), carried_rows(Limits(8, 16), 2)
    (12, 4)
    """
    return (limits.vectors - CARRIERS - vectors - 1) // vectors


def weights_growth(e: Extents, plain: str, size: int, folded: bool) -> int:
    """How many more bytes transformed weights take than plain ones of the dtype `plain`."""
    return 4 * e.c * e.o * points(size, folded) - int(9 * e.c * e.o * ELEMENT_BYTES[plain])


def weights_dtype(kernel: Kernel, precision: str) -> str:
    """What plain weights of a contraction are held as: parameters that are halves stay so, and
    quantised ones whatever the precision."""
    weight = kernel.buffer("weight")
    if precision == "bf16" and weight.dtype not in FORMATS:
        return "bf16"
    return weight.dtype if weight.role == "parameter" else "f32"


def growth_of(kernel: Kernel, schedule: ContractionSchedule, precision: str) -> int:
    """How many more bytes the weights of a contraction take, once bound, than plain ones held in
    `precision`."""
    winograd = schedule.winograd
    if winograd is None or winograd.transformed != BINDING:
        return 0
    e = contraction_extents(kernel)
    return weights_growth(e, weights_dtype(kernel, precision), winograd.size, winograd.folded)


def block_tile(e: Extents, limits: Limits, size: int, folded: bool,
               by_tile: bool) -> tuple[int, int, int]:
    """Images, rows and columns of blocks in a tile."""
    most = BLOCKS
    if not by_tile and points(size, folded) * most // 2 * e.c * 4 <= V_SHARE * limits.l2_bytes:
        most //= 2
    rows, columns = -(-e.y // size), -(-e.x // size)
    block_x = even(columns, BLOCKS_X)
    block_y = even(rows, max(1, most // block_x))
    most *= 2 if by_tile else 1
    tile_b = max(n for n in range(1, e.b + 1) if e.b % n == 0 and (
        n == 1 or n * block_x * block_y <= most))
    return tile_b, block_y, block_x
