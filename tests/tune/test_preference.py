"""The timing model overrules the first choice where it expects far less time."""

from __future__ import annotations

import pytest
from kernel_strategies import regions
from native_regions import LEVELS

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.schedule import arithmetic, choose
from smalti.schedule.space import DECISIONS, around, space
from smalti.tune.preference import GAIN_MIN, preferred

CPU = limits(level(LEVELS[-1]), 2, 48 << 10, 1 << 20)
KERNELS = list(dict.fromkeys(region.kernel for region in regions()))


@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_what_is_expected_to_be_far_better_is_chosen_and_gives_the_same_bytes(number: int) -> None:
    kernel = KERNELS[number]
    first = choose(kernel, CPU)
    others = around(kernel, CPU, first)
    assert first not in others and set(others) <= set(space(kernel, CPU, first))
    for wanted in others[::3]:
        found = preferred(kernel, CPU, first, lambda s, w=wanted: 1.0 if s == w else 2.0)
        assert found in (first, wanted) and arithmetic(kernel, found) == arithmetic(kernel, first)
        assert lower(kernel, found, level(LEVELS[-1])).steps


def test_less_than_the_noise_changes_nothing() -> None:
    for kernel in KERNELS:
        first = choose(kernel, CPU)
        assert preferred(kernel, CPU, first,
                         lambda s, f=first: 1.0 if s == f else 1.01 - GAIN_MIN) == first


def test_each_decision_is_one() -> None:
    kernel = next(k for k in KERNELS if k.form == "contraction")
    first = choose(kernel, CPU)
    for decision in DECISIONS:
        for other in around(kernel, CPU, first, {decision}):
            assert other != first and type(other) is type(first)
    assert around(kernel, CPU, first, ()) == []
