"""Contractions that read their input where it is, against the interpreter."""

from __future__ import annotations

import math
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
from smalti.schedule import ContractionSchedule, Limits, choose
from smalti.schedule.merge import in_place
from smalti.schedule.schedule import Direct, InPlace

EXAMPLES = 60


def pointwise(channels: int, size: tuple[int, int], out: int, behind: str = "", batch: int = 1,
              window: int = 1, stride: int = 1, sliced: bool = False) -> Graph:
    """A convolution without pads; `behind` is its epilogue."""
    g = Graph("pointwise")
    x = g.input("x", (batch, channels + 3 * sliced, *size))
    if sliced:  # the channels of a pixel are a part of those stored
        x = g.apply("slice", x, axis=1, start=2, end=2 + channels)
    w = g.parameter("w", (out, channels, window, window))
    y = g.apply("conv", x, w, g.parameter("b", (out,)), strides=(stride, stride))
    n, _, h, width = y.shape
    if behind == "relu6":
        y = g.apply("min", g.apply("relu", y * g.parameter("s", (out, 1, 1))), g.constant(0.5))
    elif behind == "residual":
        y = y + g.input("r", y.shape)
    elif behind == "silu":
        y = g.apply("silu", y)
    elif behind == "row":
        y = y * g.input("r", (h, width))
    elif behind == "turned":
        y = y + g.input("r", (n, h, out, width)).transpose(0, 2, 1, 3)
    elif behind == "tokens":
        y = y.reshape(n, out, h * width).transpose(0, 2, 1)
    g.output("y", y)
    return g


CASES = {
    "one pixel": pointwise(40, (1, 1), 1000), "few channels": pointwise(5, (9, 11), 3, "relu6"),
    "wide": pointwise(16, (30, 30), 96, "relu6"), "deep": pointwise(576, (7, 7), 40, "residual"),
    "half a panel": pointwise(24, (8, 9), 48, "row"), "transcendental": pointwise(
        32, (10, 10), 20, "silu"), "stride": pointwise(12, (9, 13), 33, "residual", 2, 1, 2),
    "window": pointwise(8, (9, 9), 20, "turned", 2, 3), "slice": pointwise(
        10, (5, 6), 17, "tokens", sliced=True),
}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_pointwise(case: str, name: str, precision: str) -> None:
    check_graph(CASES[case], name, precision)
    for weights in ("f16", "bf16"):
        check_graph(CASES[case], name, precision, weights=weights)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("case", ["one pixel", "wide", "half a panel", "deep", "slice"])
def test_the_input_is_not_staged(case: str, precision: str) -> None:
    """But for a pair of channels that is left where products are of blocks, of two pairs: staging
    adds a pair of zeros."""
    for name in [known for known in LEVELS if level(known).pairs or precision == "f32"][-1:]:
        runner = check_graph(CASES[case], name, precision)
        (schedule,) = runner.schedules
        channels = CASES[case].parameters["w"].shape[1]
        of_blocks = level(name).blocks and precision == "bf16"
        assert schedule.blocks or not of_blocks
        assert schedule.algorithm == (Direct() if of_blocks and channels % 4 else InPlace())


GRAPHS = st.builds(
    pointwise, channels=st.sampled_from([5, 6, 7, 8, 16, 20, 33]),
    size=st.tuples(st.integers(3, 9), st.integers(3, 20)), out=st.sampled_from([1, 7, 16, 33, 70]),
    behind=st.sampled_from(["", "relu6", "residual", "silu", "row", "turned", "tokens"]),
    batch=st.integers(1, 2), window=st.sampled_from([1, 1, 2, 3]), stride=st.integers(1, 2),
    sliced=st.booleans())


@examples(EXAMPLES)
@given(GRAPHS, st.sampled_from(LEVELS), st.data())
def test_any_legal_schedule_computes_the_same(graph: Graph, name: str, data: st.DataObject) -> None:
    note(f"{name}\n{graph}")
    vectors = data.draw(st.sampled_from([1, 2, 4]))
    shape = [data.draw(st.integers(1, most)) for most in (9, 40, 5)]
    rows = data.draw(st.integers(1, limits(level(name)).rows(vectors, 0)))

    def pick(kernel, bounds: Limits, precision: str):
        if kernel.form != "contraction":
            return choose(kernel, bounds, precision)
        assert in_place(kernel, "f32")
        channels = kernel.stages[0].axes[3][1]
        return ContractionSchedule(1, *shape, channels, rows, vectors, math.gcd(4, channels),
                                   algorithm=InPlace())

    check_graph(graph, name, pick=pick)


def test_what_has_to_be_staged_is_refused() -> None:
    g = Graph("padded")
    g.output("y", g.apply("conv", g.input("x", (1, 8, 5, 5)), g.parameter("w", (16, 8, 3, 3)),
                          pads=(1, 1, 1, 1)))
    schedule = ContractionSchedule(1, 4, 5, 1, 8, 4, 2, algorithm=InPlace())
    with pytest.raises(IllegalSchedule, match="has to be staged"):
        lower(partition(g).regions[0].kernel, schedule, level(LEVELS[0]))
    kernel = partition(pointwise(8, (5, 5), 16)).regions[0].kernel
    assert lower(kernel, schedule, level(LEVELS[0])).scratch_bytes == 0
    with pytest.raises(IllegalSchedule, match="a chunk of 4 in steps of 4 is not all 8 channels"):
        lower(kernel, replace(schedule, chunk=4), level(LEVELS[0]))
