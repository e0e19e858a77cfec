"""Launches cut by what they take: every work-group once, none longer than may be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.runtime.gpu.pacing import (
    DISPATCH_SECONDS_MAX,
    SLOWER,
    SUBMISSION_SECONDS,
    GridBox,
    Pace,
    Probe,
    boxes,
)

GRIDS = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 12))


def covered(groups: tuple[int, int, int], found: list[GridBox]) -> np.ndarray:
    """How often each work-group is in a box, along z, y and x."""
    times = np.zeros(groups[::-1], int)
    for (x, y, z), (width, height, depth) in ((box.base, box.groups) for box in found):
        times[z:z + depth, y:y + height, x:x + width] += 1
    return times


@given(GRIDS, st.floats(0, 100))
def test_boxes_cover_a_grid_once(groups: tuple[int, int, int], seconds: float) -> None:
    found = list(boxes(groups, seconds))
    assert (covered(groups, found) == 1).all()
    each = seconds / math.prod(groups)
    assert all(box.count * each <= SUBMISSION_SECONDS + 1e-9 or box.count == 1 for box in found)


@given(GRIDS, st.floats(1e-7, DISPATCH_SECONDS_MAX), st.one_of(
    st.just(0.0), st.floats(1 / SLOWER, 10)))
def test_the_first_launch_is_cut_whatever_was_predicted(
        groups: tuple[int, int, int], group_seconds: float, share: float) -> None:
    predicted = group_seconds * math.prod(groups) * share  # down to a hundredth of the truth
    probe, found = Probe(groups, predicted), []
    while (box := probe.box()) is not None:
        found.append(box)
        probe.took(box.count * group_seconds)
    assert (covered(groups, found) == 1).all()
    assert all(box.count * group_seconds <= SUBMISSION_SECONDS * 1.001 or box.count == 1
               for box in found)
    assert probe.group_seconds == pytest.approx(group_seconds)


def test_the_first_measurement_is_not_the_last() -> None:
    pace = Pace()
    pace.note(0.5)  # the driver compiled
    assert not pace.known
    pace.note(0.1)
    assert pace.known and pace.group_seconds == 0.1
    pace.slowed(5)
    assert not pace.known and pace.group_seconds == 0.5
    pace.note(0.7)  # what counts is the new measurement
    assert pace.group_seconds == 0.7
    pace.slowed(1e9)  # a clock that lies
    assert pace.group_seconds == 70


def test_a_short_launch_that_is_unknown_takes_few_submissions() -> None:
    probe, count = Probe((64, 64, 1), 0.0), 0
    while (box := probe.box()) is not None:
        probe.took(1e-4 + box.count * 1e-8)
        count += 1
    assert count <= 8
