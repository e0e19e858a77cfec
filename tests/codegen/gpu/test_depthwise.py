"""Depthwise convolutions and pooling as group programs, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from examples import examples
from group_kernels import LIMITS, check_graph, check_kernel, execute, regions
from hypothesis import given, note
from hypothesis import strategies as st

from smalti.codegen.gpu.form import GroupLoad, Loop, expressions, statements
from smalti.codegen.gpu.lower import lower
from smalti.errors import IllegalSchedule
from smalti.graph import Graph
from smalti.kernel.form import Call, Kernel
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupDepthwise

EXAMPLES = 40


@dataclass(frozen=True)
class Case:
    """A convolution of every channel by itself."""

    channels: int
    height: int
    width: int
    window: tuple[int, int] = (3, 3)
    batch: int = 1
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    behind: str = ""

    def graph(self) -> Graph:
        g, c = Graph("depthwise"), self.channels
        x = g.input("x", (self.batch, c, self.height, self.width))
        w = g.parameter("w", (c, 1, *self.window))
        bias = [g.parameter("b", (c,))] if self.behind else []
        y = g.apply("conv", x, w, *bias, strides=self.strides, dilations=self.dilations,
                    pads=self.pads, group=c)
        if self.behind == "relu6":
            y = g.apply("min", g.apply("relu", y), g.constant(1.0))
        elif self.behind == "residual":
            y = g.apply("silu", y + g.input("r", y.shape))
        elif self.behind == "turned":
            y = y + g.input("r", (y.shape[0], y.shape[2], y.shape[1],
                                  y.shape[3])).transpose(0, 2, 1, 3)
        elif self.behind == "itself":
            y = y * x
        g.output("y", y)
        return g


CASES = [
    Case(32, 12, 12, behind="relu6"), Case(5, 6, 5, (5, 5), pads=(2, 2, 2, 2)),
    Case(40, 7, 9, dilations=(2, 2), pads=(2, 2, 2, 2), behind="residual"),
    Case(24, 9, 11, strides=(2, 2), pads=(0, 0, 1, 1)), Case(3, 9, 70, behind="turned"),
    Case(16, 1, 1, behind="itself"), Case(17, 33, 30, (7, 7), strides=(3, 3), pads=(3, 3, 3, 3)),
    Case(8, 3, 2, (5, 5), pads=(6, 7, 8, 9), batch=2), Case(9, 5, 5, pads=(0, 0, 0, 0)),
    Case(20, 4, 40, (1, 9), pads=(0, 0, 0, 4)), Case(12, 6, 4, behind="itself"),
    Case(4, 3, 70, (1, 37), pads=(0, 18, 0, 18), behind="relu6"),
]
POOLS = [  # shape, window, steps, pads, dilations, whether the last window may reach beyond
    ((1, 8, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 0),
    ((2, 19, 13, 17), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    ((1, 20, 10, 10), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 0),
    ((1, 17, 12, 12), (3, 2), (1, 2), (1, 0, 2, 1), (2, 1), 1),
    ((1, 24, 14, 14), (13, 13), (1, 1), (6, 6, 6, 6), (1, 1), 0),
    ((1, 3, 4, 40), (1, 3), (1, 2), (0, 0, 0, 1), (1, 1), 0),
]


def kernel_of(graph: Graph, form: str = "depthwise") -> Kernel:
    (kernel,) = [p.kernel for p in regions(graph) if p.kernel.form == form]
    return kernel


def pooled(operation: str, case: tuple, **more: int) -> Graph:
    shape, kernel, strides, pads, dilations, ceil_mode = case
    g = Graph("pooled")
    y = g.apply(operation, g.input("x", shape), kernel_shape=kernel, pads=pads, strides=strides,
                dilations=dilations, ceil_mode=ceil_mode, **more)
    g.output("y", g.apply("relu", y) + g.input("r", y.shape))
    return g


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise(case: Case, dtype: str) -> None:
    check_graph(case.graph(), "depthwise", dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pooling(case: tuple, dtype: str) -> None:
    check_graph(pooled("max_pool", case), "pooling", dtype)
    for counted in (0, 1):
        check_graph(pooled("average_pool", case, count_include_pad=counted), "pooling", dtype)


RANDOM = st.builds(
    Case, channels=st.sampled_from([2, 3, 8, 12]), height=st.integers(1, 8),
    width=st.integers(1, 20), window=st.tuples(*[st.sampled_from([1, 2, 3, 5])] * 2),
    batch=st.integers(1, 2), strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2), pads=st.tuples(*[st.integers(0, 5)] * 4),
    behind=st.sampled_from(["", "relu6", "residual", "turned", "itself"]))


def fitting(case: Case) -> Case:
    """The case with pads large enough for its window; multiplied by itself only where that fits."""
    reach = [d * (k - 1) for d, k in zip(case.dilations, case.window, strict=True)]
    top, left = (max(pad, n) for pad, n in zip(case.pads, reach, strict=False))
    behind = "" if case.behind == "itself" else case.behind
    return replace(case, pads=(top, left, *case.pads[2:]), behind=behind)


@examples(EXAMPLES)
@given(RANDOM.map(fitting), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 4]))
def test_random_depthwise_under_any_schedule(case: Case, lanes: int, pixels: int) -> None:
    note(str(case))
    lanes = lanes if case.channels % lanes == 0 else 1
    check_kernel(kernel_of(case.graph()), GroupDepthwise(32, lanes, pixels))


def test_what_is_computed_in_front_of_a_window_is_not_seen_beyond_borders() -> None:
    kernel = kernel_of(Case(8, 5, 6, behind="relu6").graph())
    patch = replace(kernel.stages[0], value=Call("cos", (kernel.stages[0].value,)))
    kernel = replace(kernel, stages=(patch, *kernel.stages[1:]))
    for pixels in (1, 4):
        check_kernel(kernel, GroupDepthwise(32, 4, pixels))


def test_weights_that_are_computed_are_read_where_they_are() -> None:
    g = Graph("computed")
    w = g.apply("silu", g.input("w", (8, 1, 3, 3)))
    g.output("y", g.apply("conv", g.input("x", (1, 8, 5, 5)), w, pads=(1, 1, 1, 1), group=8))
    kernel = kernel_of(g)
    assert lower(kernel, GroupDepthwise(32, 4, 2), LIMITS).packed is None
    check_kernel(kernel, GroupDepthwise(32, 4, 2))


def test_columns_are_read_once_for_all_pixels_that_see_them() -> None:
    kernel = kernel_of(Case(8, 8, 8, pads=(0, 0, 0, 0)).graph())
    reads = []
    for pixels in (1, 2, 3):
        body = lower(kernel, GroupDepthwise(32, 4, pixels), LIMITS).steps[0].body
        reads.append(sum(isinstance(e, GroupLoad) and e.buffer == "x0" for e in expressions(body)))
    assert reads == [9, 12, 15]


def test_large_windows_are_loops() -> None:
    for case, loops in ((POOLS[0], 0), (POOLS[4], 1), (((1, 4, 40, 40), (1, 40), (1, 1), (0,) * 4,
                                                       (1, 1), 0), 1)):
        kernel = kernel_of(pooled("max_pool", case), "pooling")
        body = lower(kernel, GroupDepthwise(32), LIMITS).steps[0].body
        assert sum(isinstance(s, Loop) for s in statements(body)) == loops


def test_a_maximum_with_nan_is_nan() -> None:
    g = Graph("nan")
    g.output("y", g.apply("max_pool", g.input("x", (1, 8, 4, 4)), kernel_shape=(2, 2),
                          strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)))
    kernel = kernel_of(g, "pooling")
    x = np.zeros((1, 4, 4, 8), np.float32)
    x[0, 1, 2] = np.nan
    shape = kernel.buffer("x0").shape
    found, _ = execute(kernel, choose_group(kernel, LIMITS), {
        "x0": x if shape == x.shape else x.transpose(0, 3, 1, 2)})
    bad = np.isnan(found["out"])
    assert bad[0, 0, 1].all() and bad.sum() == 8


@pytest.mark.parametrize("schedule, why", [
    (GroupDepthwise(64, 4), "4 lanes along 6 channels"), (GroupDepthwise(64, 1, 0), "0 pixels"),
    (GroupDepthwise(300), "300 invocations")])
def test_impossible_schedules_are_refused(schedule: GroupDepthwise, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel_of(Case(6, 4, 4).graph()), schedule, LIMITS)
