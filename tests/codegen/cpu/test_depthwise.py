"""Depthwise and grouped convolutions as machine code, against the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, PieceRunner, check_graph

from smalti.codegen.cpu.depthwise import runs
from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.schedule import DepthwiseSchedule, choose

EXAMPLES = 60


@dataclass(frozen=True)
class Case:
    """A convolution in `groups` groups; every channel is one where `groups` is `channels`."""

    channels: int
    height: int
    width: int
    window: tuple[int, int] = (3, 3)
    batch: int = 1
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    before: str = ""
    behind: str = ""
    groups: int = 0
    multiple: int = 1

    def graph(self) -> Graph:
        g, c = Graph("depthwise"), self.channels
        x = g.input("x", (self.batch, c, self.height, self.width))
        if self.before == "cos":
            x = g.apply("cos", x)
        elif self.before == "turned":
            x = g.input("t", (self.batch, self.width, c, self.height)).transpose(0, 2, 3, 1)
        elif self.before == "slice":
            both = g.apply("concat", g.apply("silu", x), x, axis=1)
            x = g.apply("slice", both, axis=1, start=c // 2, end=c // 2 + c)
        groups = self.groups or c
        w = g.parameter("w", (self.multiple * c, c // groups, *self.window))
        bias = [g.parameter("b", (self.multiple * c,))] if self.behind else []
        y = g.apply("conv", x, w, *bias, strides=self.strides, dilations=self.dilations,
                    pads=self.pads, group=groups)
        if self.behind == "relu6":
            y = y * g.parameter("s", (y.shape[1], 1, 1)) + g.parameter("h", (y.shape[1], 1, 1))
            y = g.apply("min", g.apply("relu", y), g.constant(1.0))
        elif self.behind == "residual":
            y = g.apply("silu", y + g.input("r", y.shape))
        elif self.behind == "turned":
            y = y + g.input("r", (y.shape[0], y.shape[2], y.shape[1],
                                  y.shape[3])).transpose(0, 2, 1, 3)
        elif self.behind == "tokens":
            y = y.reshape(*y.shape[:2], -1).transpose(0, 2, 1) * 2.0
        g.output("y", y)
        return g


CASES = [
    Case(32, 12, 12, behind="relu6"), Case(5, 6, 5, (5, 5), pads=(2, 2, 2, 2)),
    Case(40, 7, 9, dilations=(2, 2), pads=(2, 2, 2, 2), behind="residual"),
    Case(24, 9, 11, strides=(2, 2), pads=(0, 0, 1, 1), before="slice"),
    Case(3, 9, 70, before="cos", behind="turned"), Case(16, 1, 1), Case(18, 5, 4, before="turned"),
    Case(17, 33, 30, (7, 7), strides=(3, 3), pads=(3, 3, 3, 3), behind="relu6"),
    Case(8, 3, 2, (5, 5), pads=(6, 7, 8, 9), batch=2, behind="tokens"),
    Case(9, 5, 5, pads=(0, 0, 0, 0)), Case(20, 4, 40, (1, 9), pads=(0, 0, 0, 4)),
]


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise(case: Case, name: str, precision: str) -> None:
    runner = check_graph(case.graph(), name, precision)
    assert any(isinstance(schedule, DepthwiseSchedule) for schedule in runner.schedules)
    check_graph(case.graph(), name, precision, weights="f16")


DEPTHWISE = st.builds(
    Case, channels=st.sampled_from([2, 3, 8, 15, 16, 33, 48]), height=st.integers(1, 12),
    width=st.integers(1, 40), window=st.tuples(*[st.sampled_from([1, 2, 3, 5])] * 2),
    batch=st.integers(1, 2), strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2), pads=st.tuples(*[st.integers(0, 5)] * 4),
    before=st.sampled_from(["", "cos", "turned", "slice"]),
    behind=st.sampled_from(["", "relu6", "residual", "turned", "tokens"]))


def sliding(case: Case, tile_y: int, vectors: int, pixels: int, name: str) -> DepthwiseSchedule:
    """A schedule by which windows slide, of pixels for which there are registers."""
    rows = (case.window[0] - 1) * case.dilations[0] // case.strides[0] + 1
    most = max(1, (level(name).vectors - 2) // rows)
    return DepthwiseSchedule(tile_y, vectors, min(pixels, most), rows, sliding=True)


def slides(case: Case, name: str) -> bool:
    """Whether windows can slide: where factors are taken by lane, and no row is stepped over."""
    reach = (case.window[0] - 1) * case.dilations[0]
    return level(name).by_lane and case.strides[0] <= reach + 1


def _fitting(case: Case) -> Case:
    """The case with pads large enough for its window."""
    reach = [d * (k - 1) for d, k in zip(case.dilations, case.window, strict=True)]
    top, left = (max(pad, n) for pad, n in zip(case.pads, reach, strict=False))
    return replace(case, pads=(top, left, *case.pads[2:]))


@examples(EXAMPLES)
@given(DEPTHWISE.map(_fitting), st.sampled_from(LEVELS), st.integers(1, 5), st.integers(1, 5),
       st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from(["f32", "bf16"]))
def test_random_depthwise_under_any_schedule(case: Case, name: str, tiles_y: int, vectors: int,
                                             pixels: int, rows: int, down: bool,
                                             precision: str) -> None:
    note(f"{name} {precision}\n{case.graph()}")
    schedule = DepthwiseSchedule(rows * tiles_y, vectors, -(-pixels // rows), rows)
    if down and slides(case, name):
        schedule = sliding(case, tiles_y, vectors, pixels, name)
    runner = check_graph(case.graph(), name, precision, pick=lambda kernel, *rest: (
        schedule if kernel.form == "depthwise" else choose(kernel, *rest)))
    assert schedule in runner.schedules


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", [
    Case(12, 6, 7, groups=3, behind="relu6"), Case(8, 5, 5, groups=4, behind="residual"),
    Case(40, 6, 6, groups=2, multiple=2, before="cos"), Case(3, 4, 4, groups=3, multiple=5),
    Case(16, 9, 9, groups=2, before="turned", behind="tokens"),
    Case(16, 5, 5, groups=4, behind="relu6"), Case(4, 6, 7, groups=2, multiple=3),
], ids=str)
def test_groups(case: Case, name: str) -> None:
    runner = check_graph(case.graph(), name)
    assert not any(isinstance(schedule, DepthwiseSchedule) for schedule in runner.schedules)


def test_what_lies_outside_of_the_image_counts_as_zero() -> None:
    """A window of ones over an image of ones counts its pixels."""
    g = Graph("count")
    x, w = g.input("x", (1, 16, 3, 4)), g.parameter("w", (16, 1, 3, 3))
    g.output("y", g.apply("conv", x, w, pads=(1, 1, 1, 1), group=16))
    runner = PieceRunner({"w": np.ones((16, 1, 3, 3), np.float32)}, LEVELS[0])
    found = partition(g)
    runner.array(found.inputs["x"])[...] = 1
    runner.run(found.regions[0])
    expected = np.array([[4, 6, 6, 4], [6, 9, 9, 6], [4, 6, 6, 4]])
    assert (runner.array(found.outputs["y"]) == expected).all()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", [Case(5, 9, 8), Case(8, 7, 6, (2, 3), pads=(2, 0, 1, 3)),
                                  Case(4, 11, 5, strides=(2, 1), dilations=(1, 2))], ids=str)
def test_rows_that_are_computed_together_change_no_byte(case: Case, name: str) -> None:
    found = partition(case.graph())
    w = np.full((case.channels, 1, *case.window), -1.0, np.float32)
    schedules = [DepthwiseSchedule(2 * rows, 1, 3, rows) for rows in (1, 2, 3, 4)]
    if slides(case, name):
        schedules += [sliding(case, tile_y, 1, 3, name) for tile_y in (1, 4, 9)]
    bits = []
    for schedule in schedules:
        runner = PieceRunner({"w": w}, name, pick=lambda kernel, *rest, schedule=schedule: (
            schedule if kernel.form == "depthwise" else choose(kernel, *rest)))
        x = runner.array(found.inputs["x"])
        x[...] = np.random.default_rng(0).integers(-1, 2, x.shape)  # products that are -0, too
        for region in found.regions:
            runner.run(region)
        bits.append(runner.array(found.outputs["y"]).tobytes())
    assert len(set(bits)) == 1


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(1, 2),
       st.integers(1, 5), st.integers(-5, 0), st.integers(1, 40))
def test_runs_cover_a_row_once(width: int, most: int, stride: int, dilation: int, columns: int,
                               first: int, extent: int) -> None:
    x = 0
    for run in runs(width, most, stride, dilation, columns, first, extent):
        assert 1 <= run.size <= most
        for _ in range(run.count):
            for p in range(run.size):
                for s in range(columns):
                    exists = 0 <= (x + p) * stride + s * dilation + first < extent
                    assert ((p, s) in run.outside) == (not exists)
            x += run.size
    assert x == width


def test_impossible_schedules_are_refused() -> None:
    kernel, here = partition(Case(32, 6, 6).graph()).regions[0].kernel, level(LEVELS[0])
    most = here.vectors
    with pytest.raises(IllegalSchedule, match=f"{most - 1} pixels need {most + 1} vector "
                                              f"registers, there are {most}"):
        lower(kernel, DepthwiseSchedule(1, 1, most - 1), here)
    with pytest.raises(IllegalSchedule, match=f"{4 * most} pixels need"):
        lower(kernel, DepthwiseSchedule(4, 1, most, 4), here)
    with pytest.raises(IllegalSchedule, match="tiles of 3 rows do not go by 2 rows"):
        lower(kernel, DepthwiseSchedule(3, 1, 2, 2), here)
    with pytest.raises(IllegalSchedule, match="windows do not slide over 3 rows of pixels"):
        lower(kernel, DepthwiseSchedule(3, 1, 2, 3, sliding=True), level("avx2"))
    with pytest.raises(IllegalSchedule, match="over 2 rows of pixels: .* these over 3"):
        lower(kernel, DepthwiseSchedule(3, 1, 2, 2, sliding=True), level("neon"))


@pytest.mark.parametrize("case, expected", [
    (Case(192, 28, 28), (3, 7, True)), (Case(64, 7, 7), (3, 7, True)),
    (Case(64, 56, 56, strides=(2, 2)), (2, 10, True)), (Case(8, 1, 40, (1, 9)), (1, 17, True)),
    (Case(64, 9, 9, strides=(4, 4)), (1, 3, False)),
    (Case(8, 28, 28, (5, 5), pads=(2, 2, 2, 2)), (1, 14, False)),
], ids=str)
def test_rows_share_what_they_read_where_reads_are_instructions(case: Case, expected) -> None:
    kernel = partition(case.graph()).regions[-1].kernel
    found = choose(kernel, limits(level("neon")))
    assert (found.rows, found.pixels, found.sliding) == expected
    assert found.sliding or found.tile_y % found.rows == 0
    other = choose(kernel, limits(level("avx2")))
    assert (other.rows, other.sliding) == (1, False)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("channels", [5, 40])
def test_weights_that_are_computed(name: str, precision: str, channels: int) -> None:
    g = Graph("computed")
    w = g.apply("tanh", g.parameter("w", (channels, 1, 3, 3)) * 2.0)
    y = g.apply("conv", g.input("x", (2, channels, 7, 6)), w, pads=(1, 1, 1, 1), group=channels)
    g.output("y", g.apply("relu", y))
    check_graph(g, name, precision)
