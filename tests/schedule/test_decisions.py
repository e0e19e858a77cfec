"""Decisions of schedules as numbers, and what reads them."""

from __future__ import annotations

import math

from smalti.cli.tune import changes
from smalti.dojo.here import space_of
from smalti.runtime.tuner import TunedKernel
from smalti.schedule import ContractionSchedule, Direct, InPlace, Planar, Winograd
from smalti.schedule.decisions import numbered
from smalti.tune.contest import Contest, features

EVERY = [ContractionSchedule(1, 8, 16, 2, 64, 14, 2, algorithm=algorithm) for algorithm in (
    Direct(), InPlace(), Planar(), Winograd(2), Winograd(4, group=2, shared=True),
    Winograd(4, group=2, shared=True, transformed="run"))]


def test_every_algorithm_has_other_numbers() -> None:
    assert len({tuple(row.values()) for row in numbered(EVERY)}) == len(EVERY)
    assert len({tuple(row) for row in features(EVERY).tolist()}) == len(EVERY)


def test_algorithms_stand_in_one_contest() -> None:
    contest = Contest(EVERY, [1.0] * len(EVERY))
    while contest.next_one is not None:
        contest.tell(0.5 if EVERY[contest.next_one] == EVERY[4] else math.inf)
    assert contest.best == 4


def test_a_space_names_what_of_an_algorithm_differs() -> None:
    found = space_of(EVERY[3:])
    assert found.fields == ("size", "group", "shared", "transformed")
    assert found.candidates.tolist() == [[2, 1, 0, 0], [4, 2, 1, 0], [4, 2, 1, 1]]


def test_changes_are_told_one_by_one() -> None:
    told = changes(row(EVERY[3], EVERY[4]))
    assert told == "size 2 to 4, group 1 to 2, shared False to True"
    assert changes(row(EVERY[0], EVERY[1])) == "algorithm Direct to InPlace"
    assert changes(row(EVERY[0], EVERY[3])).startswith("algorithm Direct to Winograd, size - to 2")


def row(before: ContractionSchedule, best: ContractionSchedule) -> TunedKernel:
    """What the tuner tells of a kernel."""
    return TunedKernel("scope", "contraction", 1, 1.0, 0.5, 3, str(before), str(best))
