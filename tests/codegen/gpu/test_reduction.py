"""Sums, means and maxima as group programs, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from group_kernels import LIMITS, SUBGROUPS, check_graph, check_kernel, execute, regions
from hypothesis import given, note
from hypothesis import strategies as st
from reduction_graphs import OPERATIONS, reduced

from smalti.codegen.gpu.lower import lower
from smalti.errors import IllegalSchedule
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupReduction
from smalti.schedule.merge import reduction_axes

EXAMPLES = 40


def kernel_of(graph: Graph) -> Kernel:
    (kernel,) = [p.kernel for p in regions(graph) if p.kernel.form == "reduction"]
    return kernel


SHAPES = [((1, 40, 7, 7), (2, 3)), ((2, 5, 6), (2,)), ((3, 70), (1,)), ((3, 70), (0,)),
          ((1, 8, 32, 32), (2, 3)), ((4, 4), (0, 1)), ((2, 3, 4, 5), (1,)),
          ((2, 33, 4, 5), (0, 3)), ((1, 1), (0,)), ((17,), (0,)), ((2, 1, 9), (1,))]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape, axes", SHAPES, ids=str)
def test_reduction(shape: tuple[int, ...], axes: tuple[int, ...], operation: str,
                   dtype: str) -> None:
    check_graph(reduced(shape, axes, operation, 0, "silu", "relu"), "reduction", dtype)


@st.composite
def reductions(draw: st.DrawFn) -> Graph:
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 17, 40]), min_size=1, max_size=4))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    before = draw(st.sampled_from(["", "silu", "turned", "scaled"]))
    return reduced(shape, axes, draw(st.sampled_from(OPERATIONS)), draw(st.integers(0, 1)), before,
                   draw(st.sampled_from(["", "relu", "residual"])))


def schedules() -> st.SearchStrategy[GroupReduction]:
    return st.builds(GroupReduction, st.just(64), st.sampled_from([1, 2, 8, 32, 64]),
                     st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 7]),
                     st.sampled_from([0, *SUBGROUPS]))


@examples(EXAMPLES)
@given(reductions(), schedules(), st.sampled_from(["f32", "f16"]))
def test_random_reductions_under_any_schedule(graph: Graph, schedule: GroupReduction,
                                              dtype: str) -> None:
    note(f"{schedule} {dtype}\n{graph}")
    kernel, axes = kernel_of(graph), reduction_axes(kernel_of(graph))
    extent = dict((*axes.kept, *axes.reduced)).get(axes.lanes, 1)
    lanes = schedule.lanes if extent % schedule.lanes == 0 else 1
    limits = replace(LIMITS, subgroup_choice=True, subgroup_operations=True)
    shape = kernel.buffer("x0").shape  # of one sign: a sum near 0 has few digits in any order
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape)
    check_kernel(kernel, replace(schedule, lanes=lanes), {"x0": x}, limits)


@pytest.mark.sampled
@pytest.mark.parametrize("subgroup", SUBGROUPS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_through_subgroups(operation: str, subgroup: int) -> None:
    limits = replace(LIMITS, subgroup_choice=True, subgroup_operations=True,
                     subgroup_max=subgroup)
    (schedule,) = check_graph(reduced((5, 203), (1,), operation), "reduction", limits=limits)
    assert schedule.subgroup == subgroup
    kernel = kernel_of(reduced((5, 203), (1,)))
    without = lower(kernel, replace(schedule, share=subgroup), limits).steps[0]
    assert not without.shared and without.subgroup == subgroup


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_stays_nan(operation: str, axis: int) -> None:
    kernel = kernel_of(reduced((20, 20), (axis,), operation))
    x = np.ones(kernel.buffer("x0").shape, np.float32)
    x[3, 19] = np.nan
    for parts in (1, 2):
        found, _ = execute(kernel, GroupReduction(64, 4, 1, parts), {"x0": x})
        bad = np.flatnonzero(np.isnan(found["out"].reshape(-1)))
        assert list(bad) == [19 if axis == 0 else 3]


def test_few_results_of_many_points_are_made_by_many_work_groups() -> None:
    kernel = kernel_of(reduced((64, 64, 64), (0, 1, 2)))
    schedule = choose_group(kernel, LIMITS)
    first, second = lower(kernel, schedule, LIMITS).steps
    assert schedule.parts == np.prod(first.groups) == 16 and np.prod(second.groups) == 1


def test_more_work_groups_than_an_axis_of_the_grid_has() -> None:
    kernel = kernel_of(reduced((70, 3), (1,)))
    limits = replace(LIMITS, grid=(4, 65535, 65535))
    for schedule in (GroupReduction(8, 8), GroupReduction(8, 4, 1, 3)):
        check_kernel(kernel, schedule, limits=limits)
        steps = lower(kernel, schedule, limits).steps
        assert all(step.groups[0] <= 4 < step.groups[0] * step.groups[1] for step in steps)


@pytest.mark.parametrize("schedule, why", [
    (GroupReduction(64, 3), "3 of 64 invocations share a result"),
    (GroupReduction(512, 8), "a work-group of 512 invocations"),
    (GroupReduction(64, 8, 3), "3 lanes"), (GroupReduction(64, 8, 4), "4 lanes along an axis of 6"),
    (GroupReduction(64, 8, 1, 0), "0 parts"),
    (GroupReduction(64, 8, 1, 1, 32), "no full subgroups of 32")])
def test_impossible_schedules_are_refused(schedule: GroupReduction, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel_of(reduced((4, 6), (1,))), schedule, LIMITS)
