"""Schedules of the same arithmetic give the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import LEVELS, PieceRunner, arrays_for, run_regions

from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule import Limits, Schedule, arithmetic, choose
from smalti.schedule.schedule import BINDING, RUN, TILE, ContractionSchedule


def convolution(channels: int, size: int, window: int) -> Graph:
    g = Graph("convolution")
    x = g.input("x", (2, channels, size, size))
    pad = (window // 2,) * 4
    out = g.apply("conv", g.apply("silu", x), g.parameter("w", (40, channels, window, window)),
                  g.parameter("bias", (40,)), pads=pad)
    g.output("y", out)
    return g


def run(graph: Graph, name: str, change) -> tuple[Kernel, Schedule, np.ndarray]:
    """The contraction of `graph`, its schedule with the changes, and the result."""
    inputs, parameters = arrays_for(graph)
    found = next(p.kernel for p in partition(graph).regions if p.kernel.form == "contraction")

    def pick(kernel: Kernel, bounds: Limits, precision: str) -> Schedule:
        return change(choose(kernel, bounds, precision)) if kernel == found else choose(
            kernel, bounds, precision)

    runner = PieceRunner(parameters, name, pick=pick)
    result = run_regions(graph, inputs, runner)["y"]
    return found, next(s for s, p in zip(runner.schedules, partition(graph).regions, strict=True)
                       if p.kernel == found), result


def changed(schedule: ContractionSchedule, changes: dict) -> ContractionSchedule:
    """The schedule with other fields, of its algorithm too."""
    inner = changes.get("algorithm", {})
    return replace(schedule, **{**changes, "algorithm": replace(schedule.algorithm, **inner)})


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("graph, changes, same", [
    (convolution(32, 9, 1), {"tile_y": 1, "tile_x": 5, "tile_b": 1}, True),
    (convolution(32, 9, 1), {"chunk": 16, "rows": 3}, True),
    (convolution(32, 9, 1), {"vectors": 1, "panels": 1}, True),
    (convolution(32, 9, 1), {"unroll": 1}, True),
    (convolution(32, 9, 5), {"tile_y": 2, "tile_x": 4, "tile_b": 1, "panels": 1}, True),
    (convolution(32, 9, 5), {"chunk": 8}, False),
    (convolution(32, 12, 3), {"tile_y": 4, "tile_x": 8, "tile_b": 1}, True),
    (convolution(32, 12, 3), {"panels": 1, "algorithm": {"group": 1, "shared": True}}, True),
    (convolution(32, 12, 3), {"algorithm": {"transformed": RUN}}, True),
    (convolution(32, 12, 3), {"algorithm": {"transformed": BINDING}}, True),
    (convolution(32, 12, 3), {"chunk": 16, "algorithm": {"transformed": TILE}}, True),
    (convolution(32, 12, 3), {"vectors": 1, "panels": 1, "algorithm": {"group": 1}}, True),
])
def test_bytes_are_the_same_where_the_arithmetic_is(name: str, graph: Graph, changes: dict,
                                                    same: bool) -> None:
    kernel, before, expected = run(graph, name, lambda s: s)
    _, after, found = run(graph, name, lambda s: changed(s, changes))
    assert (arithmetic(kernel, before) == arithmetic(kernel, after)) is same
    assert np.array_equal(expected, found) is same
