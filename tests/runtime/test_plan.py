"""The memory plan: nothing that lives at the same time overlaps, and little is wasted."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.runtime.plan import Interval, lower_bound, plan

INTERVALS = st.lists(st.builds(
    lambda size, first, length: Interval(size, first, first + length),
    st.integers(0, 5000), st.integers(0, 20), st.integers(0, 10)), max_size=40)


def random_intervals(count: int, seed: int) -> list[Interval]:
    """Lives as in a network: most are short, a few span far; sizes over three decades."""
    source = random.Random(seed)
    found = []
    for first in range(count):
        length = source.choice([1, 1, 1, 2, 3, 5, 40])
        found.append(Interval(int(10 ** source.uniform(3, 6)), first, first + length))
    return found


@given(INTERVALS, st.sampled_from([1, 64, 128]))
def test_what_lives_together_does_not_overlap(intervals: list[Interval], alignment: int) -> None:
    offsets, total = plan(intervals, alignment)
    placed = list(zip(intervals, offsets))
    for number, (one, start) in enumerate(placed):
        assert start % alignment == 0 and 0 <= start and start + one.size_bytes <= total
        for other, other_start in placed[:number]:
            if one.first <= other.last and other.first <= one.last:
                assert (start + one.size_bytes <= other_start
                        or other_start + other.size_bytes <= start)
    bound, everything = lower_bound(intervals, alignment), sum(
        i.size_bytes + -i.size_bytes % alignment for i in intervals)
    assert bound <= total <= everything


@pytest.mark.parametrize("seed", range(5))
def test_plans_are_close_to_what_is_needed(seed: int) -> None:
    intervals = random_intervals(200, seed)
    assert plan(intervals)[1] <= 1.15 * lower_bound(intervals)


def test_a_thousand_buffers_are_planned_at_once() -> None:
    intervals = random_intervals(1000, 1)
    start = time.process_time()
    plan(intervals)
    assert time.process_time() - start < 0.3


def test_a_chain_takes_two_places() -> None:
    offsets, total = plan([Interval(1024, i, i + 1) for i in range(10)])
    assert total == 2048 and set(offsets) == {0, 1024}


def test_what_is_not_a_buffer_is_refused() -> None:
    with pytest.raises(ValueError):
        plan([Interval(-1, 0, 1)])
    with pytest.raises(ValueError):
        plan([Interval(1, 1, 0)])
    assert plan([]) == ([], 0)
