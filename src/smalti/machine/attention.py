"""Time of attention in tiles with an online softmax on a GPU.

A work-group has a tile of queries of one head and goes through all keys, a block at a time. For
each block there are two products on the matrix units, and exponentials on the units for special
functions; both run at the same time, so the longer one counts. The channels of a head are padded to
a multiple of 32.
"""

from __future__ import annotations

import numpy as np

from smalti.machine.device import BYTES, DeviceModel
from smalti.machine.family import (
    ISSUE,
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
from smalti.machine.product import BUSY_SHARE

QUERIES = ((64, 2), (128, 1))
"""The kinds of tiles: (queries of a tile, tiles that a compute unit holds at a time)."""
KEYS = 64
"""Keys of a block, as in FlashAttention: a guess of what a vendor's kernel takes."""
HEAD_MULTIPLE = 32
"""Channels of a head are padded to a multiple of this, the depth of a step of matrix units."""
EXPONENTIALS_PER_CLOCK = 16
"""Exponentials that a unit computes in a clock: all NVIDIA GPUs from Volta to Blackwell."""


def attention(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing of self-attention without a mask, by the faster tile for each problem."""
    first, *others = (tiled(device, dtype, constants, sizes, queries, resident)
                      for queries, resident in QUERIES)
    for other in others:
        first = first.least(other)
    return first


def tiled(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes, queries: int,
          resident: int) -> Timing:
    """The timing with tiles of `queries` queries, of which a unit holds `resident`."""
    c, units = constants, device.units
    batch, length, heads, wide = (
        sizes[name] for name in ("batch", "sequence", "heads", "head_dim"))
    padded = np.ceil(wide / HEAD_MULTIPLE) * HEAD_MULTIPLE
    blocks, steps = batch * heads * np.ceil(length / queries), np.ceil(length / KEYS)
    products = 4 * queries * KEYS * padded / (device.rate(dtype) / units * c["matrix"])
    special = c["special"] * queries * KEYS / EXPONENTIALS_PER_CLOCK / device.clock
    start, least = c["start"] / device.clock, c["step"] / device.clock

    full, rest = waves(blocks, units, resident)
    busy = np.maximum(products, special)
    steady = full * (np.maximum(busy * resident, least) * steps + start) + np.where(
        rest > 0, np.maximum(busy * rest, least) * steps + start, 0)
    work = (full * resident + rest) * steps
    traffic = 4 * BYTES[dtype] * batch * length * heads * wide
    seconds, binds = binding((LATENCY, steady),
                             (MEMORY, traffic / (device.bandwidth * c["memory"])))
    busiest = np.where(products > special, MATRIX, ISSUE)
    binds = np.where((binds == LATENCY) & (work * busy > BUSY_SHARE * steady), busiest, binds)
    launch = device.launch + c["launch"] * 1e-6
    return Timing(seconds + launch, 4 * batch * heads * length**2 * wide, traffic,
                  np.where(seconds < launch, LAUNCH, binds))


CONSTANTS = {
    "matrix": 0.6,    # share of the rate of the matrix units
    "special": 1.0,   # exponentials for each score
    "step": 400.0,    # the fewest clocks of a step
    "start": 3000.0,  # clocks to load the queries, and to write the result
    "memory": 0.6,    # share of the bandwidth of the memory
    "launch": 2.0,    # microseconds beyond the device's own launch cost
}
FAMILY = KernelFamily("attention", ("batch", "sequence", "heads", "head_dim"), CONSTANTS, attention)
