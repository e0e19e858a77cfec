"""The memory plan: nothing that lives at the same time overlaps, and little is wasted."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.compiler.plan import Interval, lower_bound, plan

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


@given(INTERVALS, st.sampled_from([5120, 5248, 8192]))
def test_each_buffer_lies_in_one_segment(intervals: list[Interval], segment: int) -> None:
    offsets, total = plan(intervals, 128, segment_bytes=segment)
    for number, (one, start) in enumerate(zip(intervals, offsets)):
        last = start + max(one.size_bytes, 1) - 1
        assert start // segment == last // segment and last < max(total, start + 1)
        for other, other_start in list(zip(intervals, offsets))[:number]:
            if one.first <= other.last and other.first <= one.last:
                assert (start + one.size_bytes <= other_start
                        or other_start + other.size_bytes <= start)


def test_a_segment_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="384 bytes is larger than a segment of 256"):
        plan([Interval(300, 0, 1)], 128, segment_bytes=256)


@given(INTERVALS, st.sampled_from([1, 64, 128]), st.data())
def test_chains_lie_at_their_distances(intervals: list[Interval], alignment: int,
                                       data: st.DataObject) -> None:
    """Buffer i is behind an earlier one, if any, and no other is behind that one."""
    behind, free = {}, []
    for number in range(len(intervals)):
        if free and data.draw(st.booleans()):
            other = free.pop(data.draw(st.integers(0, len(free) - 1)))
            behind[number] = (other, data.draw(st.integers(0, 6000)))
        free.append(number)
    offsets, total = plan(intervals, alignment, behind)
    near = {frozenset((one, other)) for one in chained(behind) for other in chained(behind)[one]}
    for number, (one, start) in enumerate(zip(intervals, offsets, strict=True)):
        assert start % alignment == 0 and 0 <= start and start + one.size_bytes <= total
        if number in behind:
            other, distance = behind[number]
            assert start == offsets[other] + distance + -distance % alignment
        for other in range(number):
            lives = intervals[other]
            if frozenset((number, other)) not in near \
                    and one.first <= lives.last and lives.first <= one.last:
                assert (start + one.size_bytes <= offsets[other]
                        or offsets[other] + lives.size_bytes <= start)


def chained(behind: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    """All that each buffer is behind of, directly or not."""
    found: dict[int, list[int]] = {}
    for number in sorted(behind):
        other = behind[number][0]
        found[number] = [other, *found.get(other, [])]
    return found


def test_a_chain_is_placed_as_one() -> None:
    """What lives in front of one of its members may lie where another one is at other times."""
    chain = [Interval(1024, 2, 3), Interval(1024, 1, 2), Interval(512, 0, 1)]
    offsets, total = plan([*chain, Interval(200, 1, 1), Interval(700, 0, 0)], 128,
                          {1: (0, 256), 2: (1, 640)})
    assert offsets[:3] == [0, 256, 896]
    assert offsets[3:] == [0, 0] and total == 1408


@pytest.mark.parametrize("seed", range(5))
def test_plans_are_close_to_what_is_needed(seed: int) -> None:
    intervals = random_intervals(200, seed)
    assert plan(intervals)[1] <= 1.15 * lower_bound(intervals)


def test_a_thousand_buffers_are_planned_at_once() -> None:
    """The least of five: a busy computer has stopped one of them for 0.6 s."""
    intervals, seconds = random_intervals(1000, 1), []
    for _ in range(5):
        start = time.process_time()
        plan(intervals)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.3


def test_a_chain_takes_two_places() -> None:
    offsets, total = plan([Interval(1024, i, i + 1) for i in range(10)])
    assert total == 2048 and set(offsets) == {0, 1024}


def test_what_is_not_a_buffer_is_refused() -> None:
    with pytest.raises(ValueError):
        plan([Interval(-1, 0, 1)])
    with pytest.raises(ValueError):
        plan([Interval(1, 1, 0)])
    assert plan([]) == ([], 0)
