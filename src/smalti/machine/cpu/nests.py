"""Counts the work of loop nests: maps, reductions, depthwise convolutions, pooling, statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from smalti.kernel.form import ELEMENT_BYTES, Kernel, loads
from smalti.kernel.traffic import touched
from smalti.machine.cpu.contraction import WORKSPACE
from smalti.machine.cpu.core import Core
from smalti.machine.cpu.work import Cost, Flow, Work, cost, nest, rounding, scaled, summed
from smalti.schedule.merge import map_axes, reduction_axes
from smalti.schedule.schedule import (
    DepthwiseSchedule,
    MapSchedule,
    MomentsSchedule,
    ReductionSchedule,
)

MOMENTS = Cost(1, 3)
"""Loads and instructions for a vector: a load, a difference, a sum and a square."""
MOMENTS_BLOCK = 6
"""Vectors of channels whose statistics are computed together, in one pass over the pixels."""
BLOCK_PACE = 1.5
"""Time of reading such blocks, which are not contiguous, over that of contiguous reads."""
ROW_CLOCKS = 60.0
"""Clocks at the end of a row: lanes are added up, then there are a root and a division."""
COMBINED = 4.0
"""Vector operations for each partial result when these are combined."""


@lru_cache(maxsize=4096)
def flows(kernel: Kernel) -> tuple[Flow, ...]:
    """The flows of a kernel that reads or writes each of its buffers once."""
    return tuple(Flow(name, float(count * ELEMENT_BYTES[kernel.buffer(name).dtype]),
                      written=kernel.buffer(name).role == "output")
                 for name, count in touched(kernel).items())


def mapped(kernel: Kernel, schedule: MapSchedule, core: Core) -> list[Work]:
    """The work of a map: tiles of `grain` steps of the axis outside of the inner ones."""
    axes, _ = map_axes(kernel)
    (stage,) = kernel.stages
    lane, extent = axes[-1]
    each = cost(kernel, stage.value, lane, core.lanes)
    rows = math.prod(n for _, n in axes[:-1])
    outside = [1, *(n for _, n in axes)][:-schedule.inner] if schedule.inner else [1]
    tiles = math.prod(outside[:-1]) * -(-outside[-1] // schedule.grain)
    whole = nest(core, each, rows, extent, rounding(kernel, core))
    if not loads(stage.value):
        whole = {"vectors": 0.0}
    return [Work(tiles, summed(scaled(whole, 1 / tiles), {"tiles": 1}), flows(kernel))]


def reduced(kernel: Kernel, schedule: ReductionSchedule, core: Core) -> list[Work]:
    """The work of a reduction: tiles of some results each."""
    axes = reduction_axes(kernel)
    total, out = kernel.stages
    results = math.prod(n for _, n in axes.kept)
    amount = math.prod(n for _, n in axes.reduced)
    each = cost(kernel, total.value, axes.lanes, core.lanes)
    behind = cost(kernel, out.value, axes.lanes, core.lanes, "total")
    last = axes.kept[-1][1] if axes.kept else 1
    outer = results // last
    if axes.across:
        inner = nest(core, Cost(each.loads, each.arithmetic + 1, each.functions), results, amount,
                     stores=0)
        written = {"vectors": results * (behind.clocks(core) + core.lanes / 2),
                   "functions": results * behind.functions}
        tiles = outer * -(-last // schedule.grain)
    else:
        vectors = outer * -(-last // core.lanes)
        inner = nest(core, Cost(each.loads, each.arithmetic + 1, each.functions), vectors,
                     amount * core.lanes, stores=0)
        written = nest(core, behind, outer, last)
        tiles = outer * -(-(last // core.lanes or 1) // schedule.grain)
    whole = scaled(summed(inner, written), 1 / tiles)
    return [Work(tiles, summed(whole, {"tiles": 1}), flows(kernel))]


def depthwise(kernel: Kernel, schedule: DepthwiseSchedule, core: Core) -> list[Work]:
    """The work of a depthwise convolution or a pooling, in tiles of rows and channels."""
    _, total, result = kernel.stages
    (_, b), (_, y), (_, x), (_, o) = total.axes
    taps = math.prod(n for _, n in total.reduced)
    whole, tail = divmod(o, core.lanes)
    blocks = -(-whole // schedule.vectors) + bool(tail)
    tiles = b * -(-y // schedule.tile_y) * blocks
    behind = cost(kernel, result.value, "o", core.lanes, "sum")
    vectors = b * y * x * (whole + bool(tail))
    runs = vectors / x * -(-x // schedule.pixels)
    clocks = {
        "products": vectors * taps / core.ports, "starts": runs,
        "vectors": vectors * behind.clocks(core) + vectors * rounding(kernel, core) / core.ports,
        "functions": vectors * behind.functions, "rows": runs * dict(total.reduced).get("r", 1)}
    return [Work(tiles, summed(scaled(clocks, 1 / tiles), {"tiles": 1}), flows(kernel))]


def group_moments(kernel: Kernel, schedule: MomentsSchedule, core: Core) -> list[Work]:
    """The work of the statistics of groups: parts of the pixels, then their combination."""
    x = kernel.buffer("x")
    batch, channels, pixels = x.shape
    vectors = -(-channels // core.lanes)
    parts = batch * schedule.parts
    each = Cost(MOMENTS.loads, MOMENTS.arithmetic + (2 if x.dtype == "bf16" else 0))
    summing = nest(core, each, 1, pixels / schedule.parts * vectors * core.lanes, stores=0)
    groups = kernel.option("groups")
    combining = {"vectors": COMBINED * schedule.parts * vectors / core.ports + 6 * channels,
                 "functions": 2 * 4.0 * groups, "rows": groups + vectors}
    used = {flow.buffer: flow for flow in flows(kernel)}
    workspace = 8.0 * parts * vectors * core.lanes
    passes = pixels / schedule.parts * -(-vectors // MOMENTS_BLOCK)
    return [
        Work(parts, summed(summing, {"rows": passes, "tiles": 1}),
             (replace(used["x"], pace=BLOCK_PACE if vectors > MOMENTS_BLOCK else 1.0),
              Flow(WORKSPACE, workspace, written=True))),
        Work(batch, summed(combining, {"tiles": 1}),
             (Flow(WORKSPACE, workspace, workspace, workspace),
              *(flow for name, flow in used.items() if name != "x")))]


def row_moments(kernel: Kernel, schedule: MomentsSchedule, core: Core) -> list[Work]:
    """The work of the statistics of rows, or of the heads of rows."""
    x = kernel.buffer("x")
    channels = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    outer = x.shape[0] if len(x.shape) == 4 else 1
    tiles = outer * -(-(rows // outer // (x.shape[2] if len(x.shape) == 4 else 1))
                      // schedule.grain)
    each = Cost(MOMENTS.loads, MOMENTS.arithmetic + (2 if x.dtype == "bf16" else 0))
    passes = 2 if kernel.form == "layer_scale_shift" else 1
    clocks = summed(nest(core, each, passes * rows, channels, stores=0),
                    {"functions": rows * ROW_CLOCKS})
    return [Work(tiles, summed(scaled(clocks, 1 / tiles), {"tiles": 1}), flows(kernel))]
