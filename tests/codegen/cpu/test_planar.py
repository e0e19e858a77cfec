"""Contractions of few channels that are stored as planes, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, check_graph

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.schedule import ContractionSchedule, choose
from smalti.schedule.schedule import Planar

EXAMPLES = 60


def stem(channels: int, size: tuple[int, int], out: int, window: int = 3, stride: int = 1,
         dilation: int = 1, pads: tuple[int, int, int, int] = (1, 1, 1, 1), batch: int = 1,
         scaled: bool = True) -> Graph:
    """The first convolution of a model; `scaled` pixels are shifted, so that pads differ from 0."""
    g = Graph("stem")
    x = g.input("x", (batch, channels, *size))
    y = g.apply("conv", x * 2.0 + 1.0 if scaled else x,
                g.parameter("w", (out, channels, window, window)), g.parameter("b", (out,)),
                strides=(stride, stride), dilations=(dilation, dilation), pads=pads)
    g.output("y", g.apply("relu", y))
    return g


CASES = {
    "tiny": stem(3, (32, 32), 8), "mobile": stem(3, (21, 48), 32, 3, 2, 1, (0, 0, 1, 1), 2),
    "one channel": stem(1, (9, 9), 5, 5, pads=(2, 2, 2, 2)),
    "without borders": stem(4, (8, 70), 33, pads=(0, 0, 0, 0), scaled=False),
    "one row": stem(3, (1, 300), 8),
    "one pixel": stem(2, (5, 6), 20, 1, pads=(0, 0, 0, 0), batch=3),
    "more border than image": stem(4, (2, 3), 16, 3, 3, 2, (4, 5, 6, 7)),
    "large window": stem(1, (22, 51), 9, 20, 1, 1, (0, 3, 0, 2)),
    "patches": stem(3, (32, 32), 40, 8, 8, 1, (0, 0, 0, 0)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_stem(case: str, name: str, precision: str) -> None:
    runner = check_graph(CASES[case], name, precision)
    roomy = precision == "f32" or level(name).pairs  # rounding by integers takes registers
    assert not roomy or [schedule.algorithm for schedule in runner.schedules] == [
        Planar()]
    check_graph(CASES[case], name, precision, weights="f16")


STEMS = st.builds(
    stem, channels=st.integers(1, 4), size=st.tuples(st.integers(3, 12), st.integers(3, 40)),
    out=st.sampled_from([1, 8, 17, 40]), window=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 3), dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(2, 5)] * 2, *[st.integers(0, 5)] * 2), batch=st.integers(1, 2))


@examples(EXAMPLES)
@given(STEMS, st.sampled_from(LEVELS), st.integers(1, 13), st.integers(1, 3), st.data())
def test_any_legal_schedule_computes_the_same(graph: Graph, name: str, tile_y: int, panels: int,
                                              data: st.DataObject) -> None:
    note(f"{name}\n{graph}")
    vectors = data.draw(st.sampled_from([1, 2, 4]))
    rows = data.draw(st.integers(1, limits(level(name)).rows(vectors, 0)))

    def pick(kernel, *rest):
        if kernel.form != "contraction":
            return choose(kernel, *rest)
        width = dict(kernel.stages[1].axes)["x"]
        return ContractionSchedule(1, tile_y, width, panels, 1, rows, vectors, 1,
                                   algorithm=Planar())

    runner = check_graph(graph, name, pick=pick)
    assert runner.schedules[-1].algorithm == Planar()


def test_impossible_schedules_are_refused() -> None:
    kernel = partition(CASES["tiny"]).regions[0].kernel
    schedule = ContractionSchedule(1, 4, 32, 1, 1, 4, 2, 1, algorithm=Planar())
    assert lower(kernel, schedule, level(LEVELS[0])).scratch_bytes > 0
    for change, why in (({"tile_x": 16}, "as wide as it is"), ({"chunk": 3}, "one channel")):
        with pytest.raises(IllegalSchedule, match=why):
            lower(kernel, replace(schedule, **change), level(LEVELS[0]))
    deep = partition(stem(8, (5, 5), 16)).regions[0].kernel
    with pytest.raises(IllegalSchedule, match="no planes"):
        lower(deep, replace(schedule, tile_x=5), level(LEVELS[0]))


def test_code_does_not_grow_with_the_window() -> None:
    """Windows over sound are hundreds of samples wide."""
    counts = []
    for window in (16, 32):
        kernel = partition(stem(1, (32, 300), 8, window, pads=(0, 0, 0, 0))).regions[0].kernel
        schedule = ContractionSchedule(1, 1, 300 - window + 1, 1, 1, 4, 1, 1, algorithm=Planar())
        (step,) = lower(kernel, schedule, level(LEVELS[0])).steps
        counts.append(step.code.instructions)
    assert counts[1] < 1.2 * counts[0]
