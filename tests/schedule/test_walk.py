"""Walks: what tiles of some rows and those behind them read, and how far they have written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from native_regions import LEVELS, PieceRunner

from smalti.codegen.cpu.lower import lower
from smalti.fuse import Region, View, partition
from smalti.graph import Graph, Value
from smalti.kernel.form import Kernel
from smalti.schedule import Limits, Schedule, choose
from smalti.schedule.choose import WINOGRAD_MAX
from smalti.schedule.walk import walk


def conv(x: Value, channels: int, window: int = 3, **attributes) -> Value:
    g, name = x.graph, f"w{len(x.graph.parameters)}"
    weight = g.parameter(name, (channels, x.shape[1], window, window))
    return g.apply("conv", x, weight, **attributes)


def same(x: Value, channels: int) -> Value:
    return conv(x, channels, pads=(1, 1, 1, 1))


def enlarged(x: Value) -> Value:
    return x.graph.apply("resize", x, scales=(1, 1, 2, 2))


def behind_a_norm(x: Value) -> Value:
    g, c = x.graph, x.shape[1]
    return g.apply("silu", g.apply("group_normalization", x, g.parameter("s", (c,)),
                                   g.parameter("b", (c,)), num_groups=2))


def tokens(x: Value) -> Value:
    n, c, h, w = x.shape
    x = x.reshape(n, c, h * w).transpose(0, 2, 1)
    return x.graph.apply("mat_mul", x, x.graph.parameter("m", (c, 40)))


CASES = {
    "3x3": ((1, 32, 70, 24), lambda x: same(x, 40)),
    "3x3 of two images": ((2, 16, 37, 40), lambda x: same(x, 16)),
    "3x3 behind a norm, residual": ((1, 32, 50, 40), lambda x: same(behind_a_norm(x), 32) + x),
    "enlarged": ((1, 16, 24, 20), lambda x: same(enlarged(x), 24)),
    "1x1": ((1, 48, 40, 33), lambda x: conv(x, 24, 1)),
    "1x1 of two images, residual": ((2, 24, 30, 20), lambda x: conv(x, 24, 1) + x),
    "in steps of 2": ((1, 16, 81, 40), lambda x: conv(x, 24, strides=(2, 2), pads=(0, 0, 1, 1))),
    "dilated": ((1, 16, 60, 40), lambda x: conv(x, 24, dilations=(2, 2), pads=(2, 2, 2, 2))),
    "few channels": ((1, 3, 64, 40), lambda x: same(x, 24)),
    "a row": ((1, 16, 1, 700), lambda x: conv(x, 24, pads=(1, 1, 1, 1))),
    "tokens": ((2, 24, 20, 20), tokens),
}


def region_of(case: str) -> Region:
    shape, build = CASES[case]
    g = Graph("walked")
    g.output("y", build(g.input("x", shape)))
    return next(p for p in partition(g).regions if p.kernel.form == "contraction")


def elements(runner: PieceRunner, view: View) -> np.ndarray:
    """All of the storage behind a view, from its first element on."""
    return runner.block(view.storage).bytes.view(np.float32)[view.offset:]


class Walked:
    """A region that is run in part; its operands are random."""

    def __init__(self, region: Region, name: str, pick: Callable) -> None:
        self.region, self.name, self.pick = region, name, pick
        rng = np.random.default_rng(0)
        self.values = {view.storage: rng.standard_normal(view.storage.size).astype(np.float32)
                       for buffer, view in region.views.items() if buffer != "out"}
        runner = self.runner()
        schedule = pick(region.kernel, runner.bounds, "f32")
        self.tiles = lower(region.kernel, schedule, runner.level).steps[-1].tiles
        self.walk = walk(region.kernel, schedule)

    def runner(self) -> PieceRunner:
        """What runs it, from new memory."""
        named = {storage.name: values for storage, values in self.values.items()
                 if storage.kind == "parameter"}
        return PieceRunner(named, self.name, pick=self.pick)

    def run(self, first: int, end: int, dead: bool = False) -> np.ndarray:
        """The storage of the result after rows `first` to `end`, NaN where nothing was written.

        With `dead`, what they and those behind them do not read is NaN.
        """
        runner, each = self.runner(), self.walk
        for name, view in self.region.views.items():
            if name != "out" and view.storage.kind != "parameter":
                found = elements(runner, view)
                found[:] = self.values[view.storage][view.offset:]
                if dead and name in each.read:
                    found[:each.read[name][first]] = np.nan
        runner.run(self.region, [(block + each.tiles * first, block + each.tiles * end)
                                for block in range(0, self.tiles, each.rows * each.tiles)])
        return elements(runner, self.region.views["out"]).copy()


def picked(kernel: Kernel, bounds: Limits, precision: str, winograd: int) -> Schedule:
    """Small tiles, so that there are many rows of them."""
    small = Limits(bounds.lanes, bounds.vectors, 16 << 10, 128 << 10, 2, bounds.pairs)
    return choose(kernel, small, precision, winograd)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("winograd", [0, 2, WINOGRAD_MAX])
@pytest.mark.parametrize("case", CASES)
def test_code_reads_and_writes_what_the_walk_says(case: str, winograd: int, name: str) -> None:
    walked = Walked(region_of(case), name, partial(picked, winograd=winograd))
    rows = walked.walk.rows
    whole = walked.run(0, rows)
    assert rows > 1 and np.isfinite(whole).all()
    assert walked.walk.written[-1] == len(whole)
    for first in sorted({1, rows // 2, rows - 1}):
        begun = walked.run(0, first)
        at = walked.walk.written[first - 1]
        assert np.isnan(begun[at:]).all()
        ended = walked.run(first, rows, dead=True)
        made = ~np.isnan(ended)
        assert (made ^ ~np.isnan(begun)).all()
        np.testing.assert_array_equal(np.where(made, ended, begun), whole)


def test_only_contractions_whose_tiles_read_in_order_walk() -> None:
    region = region_of("3x3")
    schedule = choose(region.kernel, Limits(16, 32, threads=1))
    assert walk(region.kernel, schedule) is not None
    g = Graph("others")
    x = g.input("x", (1, 16, 8, 8))
    g.output("y", g.apply("reduce_mean", behind_a_norm(x), axes=(2, 3)))
    for other in partition(g).regions:
        assert walk(other.kernel, choose(other.kernel, Limits(16, 32))) is None
