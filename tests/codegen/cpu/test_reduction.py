"""Sums, means and maxima as machine code, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, PieceRunner, check_graph
from reduction_graphs import OPERATIONS, reduced

from smalti.codegen.cpu.lower import lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.rewrite import rewrite
from smalti.schedule import ReductionSchedule, choose
from smalti.schedule.merge import reduction_axes

EXAMPLES = 60
SHAPES = [((1, 40, 7, 7), (2, 3)), ((2, 5, 6), (2,)), ((3, 70), (1,)), ((3, 70), (0,)),
          ((1, 8, 32, 32), (2, 3)), ((4, 4), (0, 1)), ((2, 3, 4, 5), (1,)),
          ((2, 33, 4, 5), (0, 3)), ((1, 1), (0,)), ((17,), (0,)), ((2, 1, 9), (1,))]


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape, axes", SHAPES, ids=str)
def test_reduction(shape: tuple[int, ...], axes: tuple[int, ...], operation: str,
                   name: str) -> None:
    runner = check_graph(reduced(shape, axes, operation, 0, "silu", "relu"), name)
    assert [type(schedule) for schedule in runner.schedules] == [ReductionSchedule]


@st.composite
def reductions(draw: st.DrawFn) -> Graph:
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 40]), min_size=1, max_size=4))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    before = draw(st.sampled_from(["", "silu", "turned", "scaled"]))
    return reduced(shape, axes, draw(st.sampled_from(OPERATIONS)), draw(st.integers(0, 1)), before,
                   draw(st.sampled_from(["", "relu", "residual"])))


@examples(EXAMPLES)
@given(reductions(), st.sampled_from(LEVELS), st.integers(1, 5), st.integers(1, 5),
       st.sampled_from(["f32", "bf16"]))
def test_random_reductions_under_any_schedule(graph: Graph, name: str, grain: int, ways: int,
                                              precision: str) -> None:
    note(f"{name} {precision}\n{graph}")
    schedule = ReductionSchedule(grain, ways)
    runner = check_graph(graph, name, precision, pick=lambda kernel, *rest: (
        schedule if kernel.form == "reduction" else choose(kernel, *rest)))
    assert schedule in runner.schedules


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("shape, axis", [((3, 77), 1), ((2, 4, 20), 1), ((5, 1), 1), ((33,), 0)])
def test_softmax(shape: tuple[int, ...], axis: int, name: str) -> None:
    g = Graph("softmax")
    g.output("y", g.apply("softmax", g.input("x", shape) * 30.0, axis=axis) * 2.0)
    check_graph(rewrite(g), name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_stays_nan(operation: str, axis: int, name: str) -> None:
    g = reduced((20, 20), (axis,), operation)
    found = partition(g)
    runner = PieceRunner({}, name)
    x = np.ones((20, 20), np.float32)
    x[3, 19] = np.nan
    runner.array(found.inputs["x"])[...] = x
    runner.run(found.regions[0])
    y = runner.array(found.outputs["y"]).reshape(-1)
    assert list(np.flatnonzero(np.isnan(y))) == [19 if axis == 0 else 3]


def test_lanes_run_where_numbers_lie_side_by_side() -> None:
    axes = {across: reduction_axes(partition(reduced(*case)).regions[0].kernel)
            for across, case in (
        (False, ((1, 32, 7, 7), (2, 3))), (True, ((6, 5, 40), (2,))))}
    assert all(found.across == across for across, found in axes.items())
    assert [extent for _, extent in axes[False].reduced] == [49]
    assert [extent for _, extent in axes[True].kept] == [30]


def test_impossible_schedules_are_refused() -> None:
    kernel = partition(reduced((4, 4), (1,))).regions[0].kernel
    with pytest.raises(IllegalSchedule, match="does nothing"):
        lower(kernel, ReductionSchedule(0, 1), level(LEVELS[0]))
