"""Chooses the first schedule of a kernel for a CPU, by rules, from its shape and the CPU's limits.

Rules, each with its reason:
* a staged patch and the sums of a tile stay in half of the second-level cache;
* a panel's weights for one chunk stay in the first-level cache or stream from the second;
* work that is large enough is cut into at least `TILES_PER_THREAD` tiles a thread;
* a tile of a matrix product has few rows and many channels, and so many panels that staging costs
  little and all threads are evenly busy;
* pixels of a row are divided evenly, so that no micro-kernel is left with only a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from smalti.graph.quantised import FORMATS, Format
from smalti.kernel.form import (
    ELEMENT_BYTES,
    Kernel,
    affine,
    functions,
    loads,
    paired_weights,
    rounded_weights,
)
from smalti.schedule.merge import (
    access,
    bytes_shift,
    contraction_extents,
    in_place,
    in_place_source,
    in_planes,
    integer_sums,
    map_axes,
    reduction_axes,
    weights_batched,
    weights_bound,
)
from smalti.schedule.schedule import (
    BLOCKS,
    FACTOR_CHANNELS,
    INTEGER_WEIGHTS,
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    InPlace,
    Limits,
    MapSchedule,
    MomentsSchedule,
    Planar,
    ReductionSchedule,
    Schedule,
    group_registers,
)
from smalti.schedule.winograd import (
    TILES_PER_THREAD,
    even,
    weights_dtype,
    winograd_fits,
    winograd_schedule,
)

TILE_FLOPS_MIN = 2_000_000
"""Panels are added to a tile until it has so many operations: about 10 us of a core, so that the
cost of fetching a tile does not matter. A guess."""
IN_PLACE_ROWS, IN_PLACE_ROWS_OF_BYTES = 0.75, 0.6
"""Rows of a register tile that reads its input in place, as a share of those of one that stages it,
from which on that is faster: a guess; and of bytes on x86, of which a matrix product with GELU
takes 1 % less time with 9 or 10 rows in place than with 14 staged (measured on Zen 4)."""
ATTENTION_KEYS_FEW, ATTENTION_KEYS = 64, 256
"""Blocks of fewer keys than the first would be bound by the sums, which each of them loads and
stores; they are of up to so many as the second, as a quarter of the second-level cache holds.
Measured on Zen 4 for 1280 tokens of 8 heads of 128 channels: 3 % less time with 256 keys than with
44 (bf16) and 28 (f32). With 40 or 64 channels, of which the first-level cache holds 72 to 108 keys,
more make no difference. A causal mask leaves fewer keys out where blocks are larger, and no CPU of
AArch64 was timed: both keep to the first-level cache."""
ATTENTION_GROUPS = 8
"""The most groups of queries for which the keys and values of a block are staged only once.
Measured for attention of 64 x 64 pixels: from 158 to 204 GFLOP/s of a core with all eight."""
MAP_TILE_ELEMENTS = 16_384
"""Results of a map in a tile, 64 KiB of f32: a guess; fetching a tile costs little."""
TILE_CYCLES = 500
"""Cycles to fetch a tile and to compute its addresses, measured within a factor of two."""
SHARED_BYTES_A_CYCLE = 32
"""Bytes that a core reads in a cycle from the caches beyond its first-level one: a guess."""
REDUCTION_TILE_VECTORS = 4096
"""Vectors that a tile of a reduction reads, 256 KiB at 512 bits: a guess, like that of maps."""
PIXELS_MAX = 256
"""The most pixels in a tile of a convolution: a guess, by which the patch and the sums of common
layers stay in the second-level cache; `space.py` offers others."""
ROWS_MAX = 128
"""The most rows of a matrix in a tile: beside more, fewer channels would fit in a chunk, and sums
are loaded and stored once for each chunk. Measured together with the next two constants: matrix
products of 77 to 8192 rows take 6 to 13 % less time."""
CHUNK_BYTES = 3072
"""The most bytes of a pixel's channels in a chunk, divided by the pixels of the window: 768
channels of a matrix product in f32."""
STAGE_PANELS, LATE = 0.35, 0.15
"""The constants of the cost model of `panel_block`: what staging a patch costs, in units of
computing a panel, and how long threads wait for the last one, in tiles."""
NARROW_LANES = 8
"""Lanes of which panels are half as wide as those of AVX-512, and multiplied in half the clocks: a
matrix product then has twice as many of them in a tile, so that it is staged no more often, and
their sums may take half of the second-level cache. Measured on Zen 3: 3 to 4 % less time."""
LINE_BYTES, L1_SETS, LINES_OF_A_SET = 64, 64, 4
"""First-level caches have lines of 64 bytes, in 64 sets of 8 to 12. Pixels that lie far apart may
fall into few sets, so a micro-kernel that reads them in place may use 4 lines of each set."""
TRANSCENDENTAL_REGISTERS, ROUNDING_REGISTERS = 8, 6
"""Vector registers reserved for a function (exp, tanh …) of an epilogue, and for rounding to bf16
if there is no instruction for it: a guess that keeps sums from being spilled."""
PAIRS_REGISTERS = 2
"""Vector registers for a product of bytes where pairs are added in 16 bits, and for the ones by
which these become sums of 32 bits."""
ARITHMETIC = {"add", "sub", "mul", "div", "max", "min", "neg", "abs", "relu", "sqrt"}
"""Functions that need no registers other than those of their operands and result."""
FEW_CHANNELS_LANES = 8
"""Channels are few where they fill at most half a vector, or half of so many lanes: vectors of four
lanes are filled by four channels, but a channel of them has a step of its own."""
BY_LANE_VECTORS, FEW_PIXELS_VECTORS = (3, 2, 4), (8, 6, 4)
"""Vectors of a panel where products take factors by lane, the best first: 7 x 3, 9 x 2 and 5 x 4
sums fill 32 registers, and have 4.4, 4.2 and 3.8 products for each load. With few pixels wide
panels give sums enough that none waits for the one before, where no registers are needed to make
factors of words."""
BLOCK_TILES = {4: 6, 3: 6, 2: 10}
"""Vectors and rows of a panel where an instruction multiplies two rows by two columns, the best
first: 8.0, 6.0 and 4.0 products for each instruction that brings two rows together, which takes a
unit that multiplies."""
HELD_TAPS_MAX, HELD_READS = 9, 3
"""The most weights of a depthwise convolution that are kept in registers for several rows of
pixels, and registers for what is read of the input meanwhile."""
SLIDING_READS, SLIDING_MOST = 2, 8
"""The same registers where a window slides; and how many are kept from sums, at most, where there
is an epilogue, which runs while the sums of other rows are kept: by these no register of any
epilogue of MobileNets is spilled."""
WINOGRAD_MAX = 4
"""The largest m of an F(m) for which there are transforms."""
WINOGRAD_BLOCKS_MIN = 4
"""The fewest blocks of 4 x 4 pixels for which Winograd's algorithm pays: a guess."""
BY_TILE_PIXELS_MAX = 1024
"""For images of up to so many pixels each tile transforms the plain weights that it needs.
Measured: a step of the UNet of Stable Diffusion 1.5 at 512 x 512 takes 3.03 s instead of 3.47 s
with this for images up to 32 x 32."""


def choose(kernel: Kernel, limits: Limits, precision: str = "f32",
           winograd: int = WINOGRAD_MAX, growth_max: int | None = None) -> Schedule:
    """The first schedule of `kernel`.

    With `precision` "bf16" weights are stored as bf16, and products are of pairs of bf16 if the CPU
    has instructions for that; with "f32" weights are stored as they are given. `winograd` is the
    largest m of an F(m) that a contraction may use: 4, 2, or 0 for none. `growth_max` is how many
    more bytes than plain weights the transformed ones may take, None for any number.
    """
    if kernel.form == "contraction":
        return _contraction(kernel, limits, precision, winograd, growth_max)
    return _FORMS[kernel.form](kernel, limits, precision)


def _contraction(kernel: Kernel, limits: Limits, precision: str,
                 winograd: int, growth_max: int | None) -> ContractionSchedule:
    direct = _staged(kernel, limits, precision)
    if winograd and worth_winograd(kernel, limits):
        e = contraction_extents(kernel)
        return winograd_schedule(kernel, direct, limits, winograd, e.y * e.x <= BY_TILE_PIXELS_MAX,
                                 growth_max)
    return _direct(kernel, direct, limits)


def _direct(kernel: Kernel, staged: ContractionSchedule, limits: Limits) -> ContractionSchedule:
    """The direct sum's schedule: planar, in place or staged, in tiles that keep threads busy."""
    e = contraction_extents(kernel)
    direct = planar(kernel, staged, limits) or unstaged(kernel, staged, limits) or staged
    in_line = (weights_batched(kernel) or e.y == 1) and not isinstance(direct.algorithm, Planar)
    return balanced(e, direct, limits, in_line)


def _staged(kernel: Kernel, limits: Limits, precision: str) -> ContractionSchedule:
    """The schedule of the direct sum of a staged patch."""
    e = contraction_extents(kernel)
    images, lines = (1, 1) if weights_batched(kernel) else (e.b, e.y)
    pixels = images * lines * e.x
    products, weights = factor_dtypes(kernel, limits, precision)
    blocks = limits.blocks and (products, weights) in BLOCKS
    if products in INTEGER_WEIGHTS and weights in FORMATS:
        vectors, rows = group_tile(pixels, e.o, limits, FORMATS[weights])
    else:
        vectors, rows = micro_tile(pixels, e.o, limits, weights in FORMATS, blocks)
        if products == "u8" and limits.integers == "words":
            rows = min(rows, limits.rows(vectors, PAIRS_REGISTERS))
    width = vectors * limits.lanes
    panels = -(-e.o // width)
    tile_x, tile_y, tile_b = pixel_tile(images, lines, e.x)
    chunk = channel_chunk(e.c, (tile_b, tile_y, tile_x), e, limits, products, weights)
    tiles = (-(-e.b // tile_b)) * (-(-e.y // tile_y)) * (-(-e.x // tile_x))
    per_panel = 2 * tile_b * tile_y * tile_x * width * e.c * e.r * e.s * e.parts
    narrow = products == "f32" and limits.lanes == NARROW_LANES
    sums = max(1, limits.l2_bytes // 4 // (4 * tile_b * tile_y * tile_x * width * e.parts))
    if e.r == e.s == lines == 1:
        most, staging = (2 * sums, 2 * STAGE_PANELS) if narrow else (sums, STAGE_PANELS)
        block = panel_block(tiles, panels, most, limits.threads, staging)
    else:
        block = max(1, min(panels // -(-TILES_PER_THREAD * limits.threads // tiles), sums))
    block = max(block, min(panels, -(-TILE_FLOPS_MIN // per_panel)))
    block = -(-panels // (-(-panels // block)))
    unroll = math.gcd(4, chunk // (2 if weights == "bf16" else FACTOR_CHANNELS[products]))
    return ContractionSchedule(tile_b, tile_y, tile_x, block, chunk, rows, vectors, unroll,
                               products, weights=weights)


def factor_dtypes(kernel: Kernel, limits: Limits, precision: str) -> tuple[str, str]:
    """The dtypes of the factors of a contraction, and of its packed weights."""
    if integer_sums(kernel):
        quads = multiplied_as_bytes(kernel, limits)
        given = kernel.buffer("weight").dtype
        if quads and given in FORMATS and limits.integers == "quads":
            return "u8", given
        return ("u8" if quads else "i16"), INTEGER_WEIGHTS["u8" if quads else "i16"]
    weights = weights_dtype(kernel, precision)
    pairs = limits.pairs and precision == "bf16" and (weights == "bf16" or weights in FORMATS)
    return ("bf16" if pairs else "f32"), weights


def multiplied_as_bytes(kernel: Kernel, limits: Limits) -> bool:
    """True if a CPU of `limits` multiplies the factors of a contraction of integers as bytes: four
    of them with sums of 32 bits, or in pairs where these fit 16 bits."""
    return bytes_shift(kernel) is not None and (
        limits.integers == "quads" or limits.integers == "words" and paired_weights(kernel))


def algorithms(kernel: Kernel, limits: Limits, precision: str,
               winograd: int) -> list[ContractionSchedule]:
    """A schedule for each algorithm by which a contraction can be computed, and for each way to
    store its weights; none if there is only one choice.

    `winograd` is the largest m of an F(m), as in `choose`.
    """
    if not winograd or kernel.form != "contraction" or not worth_winograd(kernel, limits):
        return []
    staged = _staged(kernel, limits, precision)
    found = [_direct(kernel, staged, limits)]
    for size in (2, 4):
        if size <= winograd:
            for by_tile, growth in ((False, None), (False, 0), (True, None)):
                found.append(winograd_schedule(kernel, staged, limits, size, by_tile, growth))
    return list(dict.fromkeys(found))


def worth_winograd(kernel: Kernel, limits: Limits) -> bool:
    """True if a contraction can be computed by Winograd's algorithm, and is large enough for it."""
    e = contraction_extents(kernel)
    return winograd_fits(kernel, limits) and e.b * e.y * e.x >= 16 * WINOGRAD_BLOCKS_MIN


def planar(kernel: Kernel, direct: ContractionSchedule,
           limits: Limits) -> ContractionSchedule | None:
    """The schedule that stages a plane for each channel; None unless there are few channels, stored
    as planes."""
    e, (patch, *_) = contraction_extents(kernel), kernel.stages
    rows = min(direct.rows, limits.rows(direct.vectors, 0),
               (limits.vectors - registers(kernel, limits)) // direct.vectors)
    row = 4 * e.c * (e.x * e.stride_x + e.s * e.dilation_x)
    bordered = any(index.terms[0][0] == "x" for index, _ in patch.guards)
    tile_x = e.x if bordered else direct.tile_x
    tile_y = even(e.y, max(1, 2 * PIXELS_MAX // tile_x))
    high = (tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1
    if (direct.weights in FORMATS or direct.integers or not in_planes(kernel)
            or not weights_bound(kernel) or e.parts > 1
            or 2 * e.c > max(limits.lanes, FEW_CHANNELS_LANES) or 4 * rows < 3 * direct.rows
            or high * row > limits.l2_bytes // 2):
        return None
    return replace(direct, tile_b=1, tile_y=tile_y, tile_x=tile_x, chunk=1, unroll=1, rows=rows,
                   dtype="f32", weights="f32", algorithm=Planar())


def unstaged(kernel: Kernel, direct: ContractionSchedule,
             limits: Limits) -> ContractionSchedule | None:
    """The schedule that reads its input in place; None if it has to be staged, or better is."""
    e, source = contraction_extents(kernel), in_place_source(kernel)
    pair = 2 if direct.weights == "bf16" else FACTOR_CHANNELS[direct.dtype]
    least = 2 * pair if limits.blocks and direct.blocks else pair
    if not in_place(kernel, direct.dtype) or e.parts > 1 or e.c % least:
        return None
    assert source is not None, kernel
    rows = min(direct.rows, (limits.vectors - registers(kernel, limits)) // direct.vectors)
    size = ELEMENT_BYTES[direct.dtype]
    step = size * e.stride_x * access(kernel, source).stride("x")
    sets = {i * step // LINE_BYTES % L1_SETS for i in range(rows)}
    made = direct.weights in FORMATS and not direct.by_group
    held = 4 if made else ELEMENT_BYTES[direct.weights]
    weights = held * e.c * e.r * e.s * direct.vectors * limits.lanes
    pixels = limits.l2_bytes // 2 // (size * e.c)  # in cache, as each panel reads them again
    of_bytes = direct.dtype == "u8" and not limits.by_lane
    if (rows < (IN_PLACE_ROWS_OF_BYTES if of_bytes else IN_PLACE_ROWS) * direct.rows
            or len(sets) * LINES_OF_A_SET < rows or weights > limits.l2_bytes // 2
            or direct.tile_b * direct.tile_y * direct.tile_x > pixels):
        return None
    return replace(direct, chunk=e.c, unroll=math.gcd(4, e.c // pair), rows=rows,
                   algorithm=InPlace())


def registers(kernel: Kernel, limits: Limits) -> int:
    """How many vector registers the epilogue of a contraction needs besides those of its sums."""
    result = kernel.stages[-1].value
    read = {load for load in loads(result) if load.buffer != "sum"}
    rounding = 0
    if kernel.buffer("out").dtype == "bf16":
        rounding = 1 if limits.pairs else ROUNDING_REGISTERS
    scales = int(rounded_weights(kernel))
    return len(read) + 1 + scales + rounding + max((
        TRANSCENDENTAL_REGISTERS for name in functions(result) if name not in ARITHMETIC),
        default=0)


def balanced(e, direct: ContractionSchedule, limits: Limits,
             in_line: bool) -> ContractionSchedule:
    """The schedule `direct` with other tile sizes, if there are few tiles, so that all threads are
    busy to the end: with three tiles and two threads one waits, with a hundred hardly.

    Tiles are cut smaller along rows of pixels if `in_line`, else into fewer rows.
    """
    panels = -(-e.o // (direct.vectors * limits.lanes))

    def counts(s: ContractionSchedule) -> int:
        return e.b // s.tile_b * -(-e.y // s.tile_y) * -(-e.x // s.tile_x) * -(-panels // s.panels)

    def time(s: ContractionSchedule) -> float:
        return _tile_cycles(e, s, limits) * (-(-counts(s) // limits.threads) + 0.25)

    few = TILES_PER_THREAD * limits.threads
    if counts(direct) >= few:
        return direct
    tiles = {(direct.tile_y, direct.tile_x)}
    for parts in range(1, few + 1):
        if in_line:
            tiles.add((1, even(e.x, -(-e.x // parts))))
        else:
            tiles.add((even(e.y, -(-e.y // parts)), direct.tile_x))
    blocks = {-(-panels // parts) for parts in range(1, few + 1)}
    in_place = isinstance(direct.algorithm, InPlace)
    most = panels if in_place else direct.panels  # sums of staged ones lie in memory
    found = [replace(direct, tile_y=y, tile_x=x, panels=block)
             for y, x in sorted(tiles) if y * x <= direct.tile_y * direct.tile_x
             for block in sorted(blocks) if block <= most]
    return min((direct, *found), key=time)


def _tile_cycles(e, s: ContractionSchedule, limits: Limits) -> float:
    """Estimated cycles of a tile: two vector products or two loads a cycle, weights at
    `SHARED_BYTES_A_CYCLE` from shared caches, and some for all that is not products."""
    pixels, products = s.tile_b * s.tile_y * s.tile_x, e.r * e.s * e.c
    products //= FACTOR_CHANNELS[s.dtype] if s.integers else 1
    runs = s.tile_b * s.tile_y * -(-s.tile_x // s.rows)
    size = pixels / runs
    micro = products * max(size * s.vectors, size + s.vectors) / 2 + 3 * size * s.vectors + 30
    staging = 0 if isinstance(s.algorithm, InPlace) else pixels * (2 * -(-e.c // limits.lanes) + 8)
    weights = 4 * products * s.panels * s.vectors * limits.lanes / SHARED_BYTES_A_CYCLE
    return e.parts * (runs * s.panels * micro + weights) + staging + TILE_CYCLES


def micro_tile(pixels: int, channels: int, limits: Limits,
               unpacked: bool = False, blocks: bool = False) -> tuple[int, int]:
    """(vectors of output channels, pixels) of the register tile of a micro-kernel; `unpacked` says
    that it may make its factors of words, for which it needs registers, `blocks` that it multiplies
    such.

    >>> wide, narrow = Limits(lanes=16, vectors=32), Limits(lanes=8, vectors=16)
    >>> micro_tile(4096, 320, wide), micro_tile(4096, 320, narrow), micro_tile(4096, 3, wide)
    ((2, 14), (2, 6), (1, 28))
    >>> lanes = Limits(lanes=4, vectors=32, by_lane=True)
    >>> micro_tile(4096, 384, lanes), micro_tile(4096, 320, lanes), micro_tile(2, 320, lanes)
    ((3, 7), (2, 9), (8, 2))
    >>> micro_tile(4096, 320, lanes, blocks=True)
    (4, 6)
    """
    if channels <= limits.lanes:
        return 1, max(1, min(limits.rows(1, 2), pixels))
    if limits.by_lane:
        return _by_lane_tile(pixels, channels, limits, unpacked, blocks)
    for vectors in (4, 2):
        rows = limits.rows(vectors, 1)
        if pixels <= rows or vectors == 2:
            return vectors, max(1, min(rows, pixels))
    raise AssertionError("unreachable")


def group_tile(pixels: int, channels: int, limits: Limits, form: Format) -> tuple[int, int]:
    """(vectors of output channels, pixels) of the register tile of a micro-kernel that multiplies
    bytes by the codes of `form`: the one with the fewest products and loads for each result.

    >>> wide, narrow = Limits(lanes=16, vectors=32), Limits(lanes=8, vectors=16)
    >>> [group_tile(77, 320, each, FORMATS["q8"]) for each in (wide, narrow)]
    [(4, 3), (2, 3)]
    >>> [group_tile(77, 320, each, FORMATS["q4_min"]) for each in (wide, narrow)]
    [(4, 3), (2, 2)]
    >>> group_tile(1, 320, wide, FORMATS["q8"])
    (4, 1)
    """
    def instructions(tile: tuple[int, int]) -> float:
        vectors, rows = tile
        return ((2 if form.minimum else 1) * rows + vectors) / (rows * vectors)

    fitting = [(vectors, min(rows, pixels)) for vectors in (2, 4, 3, 1)
               if (vectors - 1) * limits.lanes < channels
               for rows in range(1, limits.vectors)
               if group_registers(form, rows, vectors, limits.by_lane) <= limits.vectors]
    return min(fitting, key=instructions)


def _by_lane_tile(pixels: int, channels: int, limits: Limits, unpacked: bool,
                  blocks: bool) -> tuple[int, int]:
    """The same where products take factors by lane: wide panels for few pixels, else the panels of
    `BY_LANE_VECTORS` or `BLOCK_TILES` that leave the fewest lanes without a channel."""
    for vectors in FEW_PIXELS_VECTORS[-1:] if unpacked else FEW_PIXELS_VECTORS:
        if pixels <= limits.rows(vectors, 1) and vectors * limits.lanes <= channels:
            return vectors, pixels
    vectors = min(BLOCK_TILES if blocks else BY_LANE_VECTORS,
                  key=lambda n: -(-channels // (n * limits.lanes)) * n)
    rows = BLOCK_TILES[vectors] if blocks else limits.rows(vectors, 1)
    return vectors, max(1, min(rows, pixels))


def panel_block(tiles: int, panels: int, most: int, threads: int,
                staging: float = STAGE_PANELS) -> int:
    """How many panels of a matrix product a tile has, at most `most`.

    `tiles` is the number of tiles of pixels, `panels` that of all panels. A tile costs its panels
    and `staging` for staging its patch; the number is the one for which all threads are done first,
    if each waits `LATE` of a tile for the last one.

    >>> panel_block(1, 24, 32, 2), panel_block(8, 96, 16, 2), panel_block(1, 96, 32, 2)
    (6, 16, 12)
    """
    def cost(block: int) -> float:
        rounds = -(-tiles * -(-panels // block) // threads)
        return (rounds + LATE) * (block + staging)

    return min(range(1, min(panels, most) + 1), key=lambda block: (cost(block), block))


def pixel_tile(b: int, y: int, x: int) -> tuple[int, int, int]:
    """(x, y, b) extents of a tile of pixels: whole rows if these are short."""
    most = PIXELS_MAX // 4 if y > 1 else ROWS_MAX
    tile_x = x if x <= PIXELS_MAX // 4 or y == 1 and x <= most else even(x, most)
    tile_y = even(y, max(1, PIXELS_MAX // tile_x))
    whole = tile_x == x and tile_y == y
    tile_b = b if whole and b * tile_y * tile_x <= PIXELS_MAX else 1
    return tile_x, tile_y, tile_b


def channel_chunk(channels: int, tile: tuple[int, int, int], e, limits: Limits,
                  products: str, weights: str) -> int:
    """How many channels are staged at a time.

    `products` is the dtype of the staged factors, `weights` that in which weights are stored.
    """
    step = FORMATS[weights].group if weights in FORMATS else 8 if weights == "bf16" else 4
    if products in INTEGER_WEIGHTS and weights not in FORMATS:
        step = FACTOR_CHANNELS[products] * (2 if limits.blocks else 1)
    size = ELEMENT_BYTES[products]
    tile_b, tile_y, tile_x = tile
    patch = tile_b * ((tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1) * (
        (tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1)
    least = max(2 * limits.lanes, step)
    most = max(least, limits.l2_bytes * 3 // 8 // (patch * size))
    most = min(most, max(least, CHUNK_BYTES // size // (e.r * e.s)))
    if channels <= most:
        return -(-channels // step) * step
    whole = (*FORMATS, *INTEGER_WEIGHTS.values())
    fits = [n for n in range(limits.lanes, most + 1, limits.lanes)
            if channels % n == 0 and (n % step == 0 or weights not in whole)]
    return fits[-1] if fits else -(-channels // step) * step


def _depthwise(kernel: Kernel, limits: Limits, precision: str) -> DepthwiseSchedule:
    """The schedule whose tiles keep all threads busy to the end, at two products a cycle."""
    _, total, _ = kernel.stages
    (_, b), (_, y), (_, x), (_, o) = total.axes
    taps = math.prod(extent for _, extent in total.reduced)
    vectors, cycles = max(1, o // limits.lanes), taps // 2 + 4

    def time(tile: tuple[int, int]) -> float:
        rows, many = tile
        tiles = b * -(-y // rows) * -(-vectors // many)
        one = rows * x * many * cycles + TILE_CYCLES
        return one * (-(-tiles // limits.threads) + 0.25)  # as if a thread started late

    block = _depthwise_block(kernel, limits)
    step = 1 if block.sliding else block.rows
    tiles = {(-(-even(y, rows) // step) * step, even(vectors, many)) for rows in range(1, y + 1)
             for many in range(1, vectors + 1)}
    rows, many = min(sorted(tiles), key=time)
    return replace(block, tile_y=rows, vectors=many)


def _depthwise_block(kernel: Kernel, limits: Limits) -> DepthwiseSchedule:
    """What is kept in registers, for a tile of all rows: where all reads are instructions of their
    own, what reads the fewest vectors; else a row, whose multiply-adds read by themselves."""
    _, total, _ = kernel.stages
    _, (_, y), (_, x), _ = total.axes
    taps = math.prod(extent for _, extent in total.reduced)
    if not limits.by_lane or kernel.form != "depthwise" or taps > HELD_TAPS_MAX:
        return DepthwiseSchedule(y, 1, even(x, max(1, limits.vectors - 10)))
    _, down, right, _ = affine(next(loads(total.value)))
    reach_y, reach_x = (index.coefficient(axis) * (extent - 1) + 1 for index, (axis, extent) in zip(
        (down, right), total.reduced, strict=True))
    step, free = down.coefficient("y"), limits.vectors - taps

    def read(block: DepthwiseSchedule) -> int:
        groups, runs = 1 if block.sliding else -(-y // block.rows), -(-x // block.pixels)
        across = (x - runs) * right.coefficient("x") + runs * reach_x
        return ((y - groups) * step + groups * reach_y) * across + groups * runs * taps

    sums, seen = free - HELD_READS, (reach_y - 1) // step + 1
    blocks = [DepthwiseSchedule(rows, 1, even(x, sums // rows), rows)
              for rows in range(1, min(y, sums) + 1)]
    behind = registers(kernel, limits)
    sums = free - (SLIDING_READS if behind == 1 else min(SLIDING_READS + behind, SLIDING_MOST))
    if step <= reach_y and seen <= sums:
        blocks.append(DepthwiseSchedule(y, 1, even(x, sums // seen), seen, sliding=True))
    return min(blocks, key=read)


def _reduction(kernel: Kernel, limits: Limits, precision: str) -> ReductionSchedule:
    axes = reduction_axes(kernel)
    results = math.prod(extent for _, extent in axes.kept)
    points = math.prod(extent for _, extent in axes.reduced)
    last = axes.kept[-1][1] if axes.kept else 1
    if axes.across:
        vectors = -(-points // limits.lanes)
    else:
        vectors, results, last = points, -(-results // limits.lanes), last // limits.lanes
    share = -(-results // (TILES_PER_THREAD * limits.threads))
    grain = max(share, REDUCTION_TILE_VECTORS // vectors, 1)
    return ReductionSchedule(even(max(1, last), grain), 4)


def _map(kernel: Kernel, limits: Limits, precision: str) -> MapSchedule:
    axes, _ = map_axes(kernel)
    extents = [1, *(extent for _, extent in axes)]
    whole, inner = extents.pop(), 1
    while len(extents) > 2 and whole * extents[-1] <= MAP_TILE_ELEMENTS:
        whole, inner = whole * extents.pop(), inner + 1
    grain = max(1, min(extents[-1], MAP_TILE_ELEMENTS // whole))
    return MapSchedule(even(extents[-1], grain), inner=inner)


def _group(kernel: Kernel, limits: Limits, precision: str) -> MomentsSchedule:
    pixels = kernel.buffer("x").shape[2]
    parts = max(n for n in range(1, min(64, pixels) + 1) if pixels % n == 0 and
                (n == 1 or pixels // n >= 16))
    return MomentsSchedule(parts, 1)


def _layer(kernel: Kernel, limits: Limits, precision: str) -> MomentsSchedule:
    rows, channels = kernel.buffer("x").shape
    return MomentsSchedule(1, even(rows, max(1, MAP_TILE_ELEMENTS // channels)))


def _rms(kernel: Kernel, limits: Limits, precision: str) -> MomentsSchedule:
    _, rows, heads, channels = kernel.buffer("x").shape
    return MomentsSchedule(1, even(rows, max(1, MAP_TILE_ELEMENTS // (heads * channels))))


def _attention(kernel: Kernel, limits: Limits, precision: str) -> AttentionSchedule:
    """The schedule by which the keys and values of a block, their scores and the queries of a group
    stay in the first-level cache, where enough of them do, and the queries and sums of all groups
    in part of the second."""
    (batch, queries, heads, depth), (_, keys, _, _) = (kernel.buffer(n).shape for n in "qk")
    width = kernel.buffer("v").shape[3]
    vectors = BY_LANE_VECTORS[0] if limits.by_lane else 2
    rows = limits.rows(vectors, 1)
    products = "bf16" if precision == "bf16" and limits.pairs else "f32"
    size = 2 if products == "bf16" else 4
    lanes = vectors * limits.lanes
    most = limits.l1_bytes // (size * (depth + width) + 4 * lanes)
    if most < ATTENTION_KEYS_FEW and not limits.by_lane and not kernel.option("causal"):
        most = max(most, min(ATTENTION_KEYS, limits.l2_bytes // 4 // (size * (depth + width))))
    block = even(keys, max(2 * rows, most // rows * rows))
    block = min(keys, -(-block // 4) * 4)
    wanted = TILES_PER_THREAD * limits.threads
    groups = min(ATTENTION_GROUPS, limits.l2_bytes // 4 // (4 * lanes * (depth + width)),
                 batch * heads * queries // (lanes * wanted), -(-queries // lanes))
    return AttentionSchedule(vectors, block, rows, max(1, groups), products)


_FORMS: dict[str, Callable[[Kernel, Limits, str], Schedule]] = {
    "depthwise": _depthwise, "pooling": _depthwise, "reduction": _reduction, "map": _map,
    "group_scale_shift": _group, "layer_scale_shift": _layer, "rms_scale": _rms,
    "attention": _attention}
