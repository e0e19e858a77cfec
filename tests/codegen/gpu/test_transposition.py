"""Maps whose operands lie across their results, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from group_kernels import LIMITS, check_graph, check_kernel, narrowed, regions
from hypothesis import given
from hypothesis import strategies as st

from smalti.codegen.gpu.lower import lower
from smalti.errors import IllegalSchedule
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupMap, GroupTransposition
from smalti.schedule.merge import crossed


def turned(shape: tuple[int, ...], *order: int) -> Kernel:
    """x, its axes in another order, times y, which has that order."""
    g = Graph("turned")
    x = g.input("x", shape).transpose(*order)
    g.output("z", x * g.input("y", x.shape) + g.parameter("s", x.shape[-1:]))
    (region,) = [p for p in regions(g) if p.kernel.form == "map"]
    return region.kernel


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, order", [
    ((33, 70), (1, 0)), ((2, 20, 40), (0, 2, 1)), ((16, 3, 50), (2, 1, 0))],
    ids=str)
def test_transpositions(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    kernel = narrowed(turned(shape, *order), dtype)
    assert isinstance(check_kernel(kernel), GroupTransposition)
    for size, tile in ((64, 8), (32, 16), (256, 32)):
        check_kernel(kernel, GroupTransposition(size, tile))


@examples(40)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.data())
def test_random_orders(shape: list[int], data: st.DataObject) -> None:
    kernel = turned(tuple(shape), *data.draw(st.permutations(range(len(shape)))))
    size, tile = data.draw(st.sampled_from([(32, 4), (64, 8), (24, 5)]))
    if crossed(kernel):
        check_kernel(kernel, GroupTransposition(size, tile))


def test_elements_are_read_and_written_side_by_side() -> None:
    kernel = turned((64, 96), 1, 0)
    axis, staged = crossed(kernel)
    assert dict(kernel.stages[0].axes)[axis] == 96 and len(staged) == 1
    step = lower(kernel, GroupTransposition(256, 32), LIMITS).steps[0]
    assert np.prod(step.groups) == 6 and [a.elements for a in step.shared] == [32 * 33]


def test_several_operands_across() -> None:
    g = Graph("several")
    a, b = (g.input(n, (40, 24)).transpose(1, 0) for n in "ab")
    g.output("z", g.apply("max", a, b) * g.input("c", (24, 40)))
    (schedule,) = check_graph(g, "map")
    kernel = regions(g)[0].kernel
    assert isinstance(schedule, GroupTransposition) and len(crossed(kernel)[1]) == 2
    tight = replace(LIMITS, shared_bytes=8 << 10)
    assert isinstance(choose_group(kernel, tight), GroupMap)
    with pytest.raises(IllegalSchedule, match="shared"):
        lower(kernel, GroupTransposition(64, 32), tight)


def test_short_axes_and_what_lies_in_order_are_plain_maps() -> None:
    for shape, order in (((3, 70), (1, 0)), ((70, 4), (1, 0)), ((5, 70), (0, 1))):
        assert isinstance(choose_group(turned(shape, *order), LIMITS), GroupMap)
    with pytest.raises(IllegalSchedule, match="no operand lies across"):
        lower(turned((5, 70), 0, 1), GroupTransposition(64, 8), LIMITS)


def test_more_work_groups_than_an_axis_of_the_grid_has() -> None:
    check_kernel(turned((3, 20, 40), 0, 2, 1), GroupTransposition(64, 8),
                 limits=replace(LIMITS, grid=(7, 65535, 65535)))
