"""Time of element-wise operations, softmax and normalisations of [rows, columns] on a GPU.

They are limited by bytes: from the last cache if it holds them, else from memory, but no faster
than the busy units can request them. An operation that reduces rows computes them in waves. The
host submits kernels while the device works: the longer of both times counts.
"""

from __future__ import annotations

import numpy as np

from smalti.machine.device import BYTES, DeviceModel
from smalti.machine.family import (
    CACHE,
    LATENCY,
    LAUNCH,
    MEMORY,
    Constants,
    KernelFamily,
    Sizes,
    Timing,
    binding,
)

PASSES = {
    "add": 3, "sub": 3, "mul": 3, "div": 3, "silu_mul": 3, "relu": 2, "gelu": 2, "tanh": 2,
    "silu": 2, "sigmoid": 2, "exp": 2, "addu": 2, "cast": 2, "copy": 2, "softmax": 2,
    "layer_normalization": 2, "rms_normalization": 2,
}
"""Elements read and written for each element of the result."""
REDUCING = ("softmax", "layer_normalization", "rms_normalization")
FLOPS = {"softmax": 5, "layer_normalization": 7, "rms_normalization": 4, "gelu": 8, "tanh": 6}
BLOCK_ELEMENTS = 1024
"""Elements that a work-group computes: a guess of what a vendor's kernel takes."""
HELD = 0.8
"""Bytes of a kernel are found in a cache if they take at most this share of it."""
RESIDENT_ROWS = 8
"""Rows that a unit computes at a time, one in each work-group: a guess."""


def rows(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing of kernels over `rows` times `columns` elements.

    `passes` are elements read and written for each of these; `reduces` is 1 if rows are reduced.
    """
    c, count, columns = constants, sizes["rows"], sizes["columns"]
    reduces = sizes["reduces"] > 0
    traffic = BYTES[dtype] * sizes["passes"] * count * columns
    blocks = np.where(reduces, count, np.ceil(count * columns / BLOCK_ELEMENTS))
    reach = c["reach"] * device.clock * np.minimum(device.units, blocks)
    memory = traffic / np.minimum(device.bandwidth * c["memory"], reach)
    cached = memory
    if device.last_cache:
        rate = np.minimum(device.last_cache.bandwidth * c["cache"], reach)
        cached = np.where(traffic < HELD * device.last_cache.bytes, traffic / rate, memory)
    waves = np.ceil(count / (device.units * RESIDENT_ROWS))
    latency = np.where(reduces, waves * c["row"] / device.clock, 0)
    kernel, binds = binding((CACHE, np.where(cached < memory, cached, 0)), (LATENCY, latency),
                            (MEMORY, np.where(cached < memory, 0, memory)))
    host = c["host"] * 1e-6
    seconds = np.maximum(cached + latency, host) + device.launch + c["launch"] * 1e-6
    return Timing(seconds, sizes["flops"] * count * columns, traffic,
                  np.where(kernel < seconds - kernel, LAUNCH, binds))


CONSTANTS = {
    "memory": 0.8,   # share of the bandwidth of the memory
    "cache": 0.8,    # share of the bandwidth of the last cache
    "reach": 40.0,   # bytes that one unit moves in a clock
    "row": 300.0,    # clocks of a wave of rows beyond its bytes
    "host": 0.5,     # microseconds that the host takes for a kernel, beside the device
    "launch": 0.5,   # microseconds beyond the device's own launch cost
}
FAMILY = KernelFamily("rows", ("rows", "columns", "passes", "reduces", "flops"), CONSTANTS, rows)
