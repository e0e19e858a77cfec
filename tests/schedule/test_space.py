"""The space of schedules of a kernel: legal, without repetition, correct."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_strategies import GRAPHS, inputs_for, regions
from native_regions import LEVELS, PieceRunner, arrays_for, relative_error, run_regions

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.graph import Graph, evaluate
from smalti.kernel.form import Kernel
from smalti.schedule import Limits, Schedule, arithmetic, choose
from smalti.schedule.space import space

CPU = limits(level(LEVELS[-1]), 2, 48 << 10, 1 << 20)


def test_a_space_begins_with_the_first_choice_and_holds_each_once() -> None:
    forms = set()
    for region in regions():
        first = choose(region.kernel, CPU)
        same, every = (space(region.kernel, CPU, first, algorithms) for algorithms in (False, True))
        assert same[0] == every[0] == first and len(set(every)) == len(every)
        assert set(same) <= set(every)
        assert {arithmetic(region.kernel, s) for s in same} == {arithmetic(region.kernel, first)}
        if len(every) > 1:
            forms.add(region.kernel.form)
    assert forms >= {"map", "contraction", "attention", "group_scale_shift", "layer_scale_shift"}


def test_all_algorithms_are_in_a_space() -> None:
    g = Graph("convolution")
    g.output("y", g.apply("conv", g.input("x", (1, 64, 16, 16)),
                          g.parameter("w", (64, 64, 3, 3)), pads=(1,) * 4))
    from smalti.fuse import partition

    (region,) = partition(g).regions
    found = space(region.kernel, CPU, choose(region.kernel, CPU), algorithms=True)
    assert {s.winograd_size for s in found} == {0, 2, 4}
    assert {s.vectors for s in found} >= {1, 2}
    assert {s.winograd.shared for s in found if s.winograd} == {True, False}
    assert all(lower(region.kernel, s, level(LEVELS[-1])).steps for s in found[::29])


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_members_compute_what_the_reference_does(name: str, build) -> None:
    graph = build()
    _, parameters = arrays_for(graph)
    inputs = inputs_for(graph)
    expected = evaluate(graph, inputs, parameters)
    turns = np.random.default_rng(0)

    def pick(kernel: Kernel, bounds: Limits, precision: str) -> Schedule:
        every = space(kernel, bounds, choose(kernel, bounds, precision), algorithms=True)
        return every[turns.integers(len(every))]

    for _ in range(2):
        found = run_regions(graph, inputs, PieceRunner(parameters, name, pick=pick))
        for output, array in expected.items():
            assert relative_error(found[output], array) < 2e-5
