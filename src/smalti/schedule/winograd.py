"""Chooses schedules by Winograd's algorithm: how a layer is cut into tiles of blocks.

A block is the m x m outputs of one transform F(m); a point is one element of a transformed block,
for which there is a matrix product over channels; V are the transformed inputs, U the transformed
weights.

Rules, each with its reason:
* a tile has `BLOCKS` blocks, so that weights are read once for many of them; half as many where the
  transformed inputs then stay in the second-level cache;
* a tile computes all panels, so that its inputs are transformed once; if that leaves threads
  without work, the inputs are transformed in a step of their own before;
* if each tile transforms its weights, two panels are computed at a time, so that the transformed
  inputs, which are far more than a thread's caches hold, are read half as often; unless threads
  would have to wait because of that.
"""

from __future__ import annotations

import math
from dataclasses import replace

from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.schedule.merge import (
    Extents,
    contraction_extents,
    halved,
    integer_sums,
    weights_bound,
)
from smalti.schedule.schedule import BINDING, RUN, TILE, ContractionSchedule, Limits, Winograd

BLOCKS, BLOCKS_X = 64, 8
"""Blocks in a tile, and in a row of a tile: each weight that is read is multiplied 64 times, and a
tile is about as high as wide, so that its halo is small."""
V_SHARE = 1.25
"""How much of the second-level cache the transformed inputs V of half a tile may fill: measured on
a Zen 5 with 1 MiB; more than all of it, because the points of V are read one after the other."""
V_FAR = 4
"""Pairs of panels pay if the transformed inputs of a tile are larger than so many second-level
caches: measured with the layers of 32 x 32 of the UNet of Stable Diffusion 1.5, which then take 0.6
to 0.75 of the time."""
PATCH_SHARE, U_SHARE = 1 / 3, 0.6
"""Shares of the second-level cache that the staged patch and the transformed weights of a chunk may
take, where a step has both of them: a guess."""
TILES_PER_THREAD = 6
"""With so many tiles a thread it does not matter which thread gets the last tile: a guess."""
PAIR_TURNS = 1.1
"""How much longer the busiest thread may take with pairs of panels than with single ones."""
CARRIERS = 4
"""Vector registers kept free for what the transforms spill. They are kept free in the micro-kernel
of the same function, too, because sums that do not fit beside them would be in memory. Measured
with 16 registers: 4 rows of sums instead of 6 take 1.5 to 1.9 times less time."""

CHANNELS_MIN = 8
"""The fewest channels of an input for which the products that are saved outweigh the transforms of
results, of which there are as many whatever the channels: a guess, for vectors of four lanes."""


def even(extent: int, most: int) -> int:
    """The tile of at most `most` that divides `extent` most evenly: ceil(extent / tiles).

    >>> even(77, 256), even(512, 200), even(64, 14)
    (77, 171, 13)
    """
    return -(-extent // -(-extent // most))


def winograd_fits(kernel: Kernel, limits: Limits) -> bool:
    """True if a contraction is a 3 x 3 convolution that Winograd's algorithm can compute, and whose
    input has at least a vector of channels, and at least `CHANNELS_MIN`.

    Few output channels are no reason against it: the direct algorithm computes a whole panel, too.
    Weights that are computed are excluded, because each run would have to transform them, and
    integers, because transformed ones are no bytes any more.
    """
    e = contraction_extents(kernel)
    window = (e.r, e.s, e.stride_y, e.stride_x, e.dilation_y, e.dilation_x)
    return window == (3, 3, 1, 1, 1, 1) and e.parts == 1 \
        and e.c >= max(limits.lanes, CHANNELS_MIN) \
        and weights_bound(kernel) and not integer_sums(kernel)


def points(size: int, folded: bool) -> int:
    """The number of points of F(size): products of a block of size x size outputs and one channel.

    >>> points(4, False), points(2, False), points(4, True), points(2, True)
    (36, 16, 25, 9)
    """
    return (size + 1 if folded else size + 2) ** 2


def winograd_schedule(kernel: Kernel, direct: ContractionSchedule, limits: Limits, size: int,
                      by_tile: bool, growth_max: int | None = None) -> ContractionSchedule:
    """The schedule by F(size) of a kernel for which `winograd_fits`. A nearest enlargement in front
    of it is folded in.

    If `by_tile`, weights are transformed in each tile. Else they are transformed in each run if
    they are quantised, or if transformed weights would take over `growth_max` bytes more than plain
    ones; otherwise once, while they are bound.
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
    growth = weights_growth(e, direct.weights, size, folded)
    too_large = form is not None or growth_max is not None and growth > growth_max
    transformed = TILE if by_tile else RUN if too_large else BINDING
    weights = "f32" if transformed == BINDING else direct.weights
    unit = 8 if weights == "bf16" else 4  # channels of an iteration, unrolled by 4; bf16 in pairs
    whole = -(-e.c // unit) * unit
    fits = [n for n in range(limits.lanes, most + 1, limits.lanes)
            if e.c % n == 0 and n % unit == 0 and (form is None or n % form.group == 0)]
    chunk = whole if e.c <= most or not fits else fits[-1]
    rows = min(carried_rows(limits, vectors), tile_b * block_y * block_x)
    return replace(direct, tile_b=tile_b, tile_y=block_y * size, tile_x=block_x * size,
                   panels=block, chunk=chunk, rows=rows, vectors=vectors,
                   unroll=math.gcd(4, chunk), dtype="f32", weights=weights,
                   algorithm=Winograd(size, group, folded, shared, transformed))


def carried_rows(limits: Limits, vectors: int) -> int:
    """Rows of a micro-kernel of `vectors` vectors, so that `CARRIERS` registers stay free.

    >>> carried_rows(Limits(16, 32), 2), carried_rows(Limits(8, 16), 2)
    (12, 4)
    """
    return limits.rows(vectors, CARRIERS)


def weights_growth(e: Extents, plain: str, size: int, folded: bool) -> int:
    """How many bytes more transformed weights take than plain ones of the dtype `plain`."""
    return 4 * e.c * e.o * points(size, folded) - int(9 * e.c * e.o * ELEMENT_BYTES[plain])


def weights_dtype(kernel: Kernel, precision: str) -> str:
    """The dtype in which plain weights of a contraction are stored.

    With `precision` "bf16" that is bf16, unless they are quantised; else the dtype in which a
    parameter is given, and f32 for weights that are computed.
    """
    weight = kernel.buffer("weight")
    if precision == "bf16" and weight.dtype not in FORMATS:
        return "bf16"
    return weight.dtype if weight.role == "parameter" else "f32"


def growth_of(kernel: Kernel, schedule: ContractionSchedule, precision: str) -> int:
    """How many bytes more than plain weights those bound for `schedule` take."""
    winograd = schedule.winograd
    if winograd is None or winograd.transformed != BINDING:
        return 0
    e = contraction_extents(kernel)
    return weights_growth(e, weights_dtype(kernel, precision), winograd.size, winograd.folded)


def block_tile(e: Extents, limits: Limits, size: int, folded: bool,
               by_tile: bool) -> tuple[int, int, int]:
    """(images, rows, columns) of a tile, the latter two in blocks."""
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
