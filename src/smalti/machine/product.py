"""Time of a matrix product on a GPU, from its tiles, their waves, and the traffic that they cause.

A [m, k] times [k, n] product is cut into tiles of the result, and a long k into parts whose sums
are added afterwards. Tiles run in waves: as many at a time as registers and shared memory can hold.
A tile goes along k in steps of 128 bytes; a step takes at least the latency that nothing hides.
Caches and memory need their own time besides; the longest time counts. The timing is that of the
best tile, as a library would choose it.

Method: tile and wave quantisation as in NVIDIA's "Matrix Multiplication Background User's Guide",
bandwidth by active units as in AMD's Origami (rocm-libraries). The usual values of the constants
are fitted to 1,600 published timings of A100, H100, B200 and Arc Pro B60 (`bench/machine.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from smalti.machine.device import BYTES, DeviceModel
from smalti.machine.family import (
    CACHE,
    LATENCY,
    LAUNCH,
    MATRIX,
    MEMORY,
    Constants,
    KernelFamily,
    Sizes,
    Timing,
    binding,
    waves,
)

STEP_BYTES = 128
"""Bytes of a row of operands in a step along k: a cache line."""
STAGES = 3
"""Steps whose operands are in shared memory at a time (a pipeline of loads)."""
ACCUMULATOR_SHARE = 1.5
"""Registers of a tile, as a multiple of those for its sums."""
RESIDENT_MAX = 8
"""The most tiles that a unit holds at a time: a guess."""
CACHE_AHEAD = 1.5
"""Bytes that a unit can read from the caches in a clock, as a multiple of those from memory."""
BUSY_SHARE = 0.5
"""The limit is arithmetic, not latency, if it takes more than this share of the time."""
MERGE_BYTES = 8
"""Bytes of each partial sum, written and read again, if k is cut into parts."""


class Tiles(NamedTuple):
    """Kinds of tiles: rows m and columns n of the result, and parts of k; an array [tiles] each."""

    m: np.ndarray
    n: np.ndarray
    parts: np.ndarray

    def along(self, axes: int) -> Tiles:
        """The tiles as arrays [tiles, 1, …] with `axes` axes of 1, to broadcast with problems."""
        return Tiles(*(each.reshape(-1, *(1,) * axes) for each in self))


SHAPES = ((16, 64), (32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128),
          (64, 256), (128, 256), (256, 128), (256, 256))
"""Rows and columns of the tiles that vendors' libraries have kernels for."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of parts into which these libraries cut k."""
TILES = Tiles(*np.array([(m, n, parts) for m, n in SHAPES for parts in PARTS]).T)


def tiled(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes,
          tile: Tiles) -> Timing:
    """The timing of products with each kind of tile: [tiles, problems]; infinite seconds if k is
    too short to be cut into its parts."""
    c, batch, m, n, k = constants, sizes["batch"], sizes["m"], sizes["n"], sizes["k"]
    size, units, parts = BYTES[dtype], device.units, tile.parts
    deep = STEP_BYTES // size
    steps = np.ceil(k / (parts * deep))
    rows, columns = np.ceil(m / tile.m), np.ceil(n / tile.n)
    blocks = rows * columns * batch * parts
    resident = np.floor(np.clip(np.minimum(
        device.registers / (4 * ACCUMULATOR_SHARE * tile.m * tile.n),
        device.shared / (STAGES * STEP_BYTES * (tile.m + tile.n))), 1, RESIDENT_MAX))

    rate = device.rate(dtype) / units * c["matrix"] / (1 + c["edge"] * (1 / tile.m + 1 / tile.n))
    step = 2 * tile.m * tile.n * deep / rate
    start = c["start"] / device.clock

    def wave(each: np.ndarray) -> np.ndarray:
        return np.maximum(each * step, c["step"] / device.clock) * steps + start

    full, rest = waves(blocks, units, resident)
    busy = full * wave(resident) + np.where(rest > 0, wave(rest), 0)
    arithmetic = full * resident * step * steps + rest * step * steps

    cached = blocks * steps * STEP_BYTES * (tile.m + tile.n)
    once = size * batch * (m * k + k * n + m * n)
    traffic = np.clip(_again(device, tile, sizes, size, blocks, resident, rows, columns, once),
                      once, np.maximum(cached, once))
    reach = c["reach"] * device.clock * np.minimum(blocks, units)
    cache = _cache_rate(device, c, reach * CACHE_AHEAD)
    memory = traffic / np.minimum(device.bandwidth * c["memory"], reach) + start
    seconds, binds = binding((LATENCY, busy), (CACHE, cached / cache + start), (MEMORY, memory))
    binds = np.where((binds == LATENCY) & (arithmetic > BUSY_SHARE * busy), MATRIX, binds)
    merged = seconds + MERGE_BYTES * parts * batch * m * n / cache + c["merge"] * 1e-6
    seconds = np.where(parts == 1, seconds, np.where(steps >= 2, merged, np.inf))
    launch = device.launch + c["launch"] * 1e-6
    return Timing(seconds + launch, 2 * batch * m * n * k, traffic,
                  np.where(seconds < launch, LAUNCH, binds))


def _again(device: DeviceModel, tile: Tiles, sizes: Sizes, size: int, blocks: np.ndarray,
           resident: np.ndarray, rows: np.ndarray, columns: np.ndarray,
           once: np.ndarray) -> np.ndarray:
    """Bytes from and to memory, if the tiles of a wave, arranged nearly as a square, share what
    they read but waves do not. If the last cache holds all of a product's operands, they are read
    once."""
    at_once = np.minimum(blocks, device.units * resident) / tile.parts
    across = np.clip(np.round(np.sqrt(at_once * tile.n / tile.m)), 1, rows)
    along = np.minimum(columns, np.ceil(at_once / across))
    across = np.minimum(rows, np.ceil(at_once / along))
    passes = np.ceil(rows / across) * np.ceil(columns / along)
    m, n, k, batch = sizes["m"], sizes["n"], sizes["k"], sizes["batch"]
    read = passes * (np.minimum(across * tile.m, m) + np.minimum(along * tile.n, n)) * k
    held = device.last_cache.bytes if device.last_cache else 0
    return np.where(once > held, size * batch * (read + m * n), once)


def _cache_rate(device: DeviceModel, constants: Constants, reach: np.ndarray) -> np.ndarray:
    """Bytes a second from the nearest shared cache, or from memory if there is none; at most
    `reach`."""
    best = device.caches[0].bandwidth if device.caches else device.bandwidth
    return np.minimum(best * constants["cache"], reach)


def product(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing of products, with the best tile for each."""
    tiles = TILES.along(max(map(np.ndim, sizes.values())))
    found = np.broadcast_arrays(*tiled(device, dtype, constants, sizes, tiles))
    best = found[0].argmin(0)[None]
    return Timing(*(np.take_along_axis(each, best, 0)[0] for each in found))


CONSTANTS = {
    "matrix": 0.9,    # share of the rate of the matrix units that large products reach
    "edge": 8.7,      # overhead of a step, as rows or columns added to its tile
    "step": 165.0,    # clocks of latency that a step cannot hide
    "start": 940.0,   # clocks until the first step, and for writing the tile
    "memory": 0.83,   # share of the bandwidth of the memory
    "cache": 1.4,     # share of the bandwidth of the nearest shared cache
    "reach": 68.0,    # bytes that one unit reads from memory in a clock
    "launch": 0.9,    # microseconds beyond the device's own launch cost
    "merge": 2.7,     # microseconds to add the parts of a k that is cut
}
FAMILY = KernelFamily("product", ("batch", "m", "n", "k"), CONSTANTS, product)
