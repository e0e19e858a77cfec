"""A contest finds the fastest of noisy candidates, with few trials of hopeless ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from smalti.schedule import (
    ContractionSchedule,
    Direct,
    InPlace,
    MapSchedule,
    MomentsSchedule,
    Planar,
    Winograd,
)
from smalti.tune.contest import GAIN_MIN, TRIALS, Contest, features

CANDIDATES = [MapSchedule(n) for n in range(1, 41)]


def held(truth: list[float], noise: float = 0.0, most: int = 400) -> tuple[Contest, int]:
    """A contest of candidates that take so long, each ratio off by noise; how many trials."""
    contest, random = Contest(CANDIDATES[:len(truth)], [1.0] * len(truth)), np.random.default_rng(3)
    trials = 0
    while contest.next_one is not None and trials < most:
        trials += 1
        ratio = truth[contest.next_one] / truth[0]
        contest.tell(ratio * math.exp(noise * random.standard_normal()))
    return contest, trials


def test_the_fastest_wins_after_enough_trials_and_others_are_given_up_at_once() -> None:
    contest, trials = held([1.0, 1.3, 0.8, 1.2, 1.0])
    assert (contest.best, contest.ratio) == (2, 0.8) and contest.next_one is None
    assert trials <= 3 * TRIALS + 3
    assert contest.found == {1: 1.3, 2: 0.8, 3: 1.2, 4: 1.0}


def test_noise_alone_wins_nothing() -> None:
    contest, _ = held([1.0] * 40, noise=0.03)
    assert contest.ratio > 1 - 2 * GAIN_MIN


def test_a_winner_is_judged_by_other_ratios_than_those_it_won_by() -> None:
    contest = Contest(CANDIDATES[:2], [1.0] * 2)
    while contest.next_one == 0:
        contest.tell(1.0)
    for ratio in [0.8] * TRIALS + [0.9] * TRIALS:
        assert contest.next_one == 1
        contest.tell(ratio)
    assert (contest.best, contest.ratio, contest.next_one) == (1, 0.9, None)
    lucky = Contest(CANDIDATES[:2], [1.0] * 2)
    for ratio in [0.8] * TRIALS + [1.1] * 2:
        lucky.tell(ratio)
    assert (lucky.best, lucky.ratio) == (0, 1.0) and lucky.found[1] == pytest.approx(1.1)


def test_the_fastest_is_found_in_noise() -> None:
    truth = [1.0 + 0.02 * abs(n - 30) for n in range(40)]
    contest, trials = held(truth, noise=0.02)
    assert abs(contest.best - 30) <= 4 and contest.ratio < 0.72 and trials < 150


def test_what_cannot_be_applied_is_passed_over() -> None:
    contest, _ = held([1.0, math.inf, 0.5])
    assert contest.best == 2 and contest.found[1] == math.inf


def test_a_kernel_with_one_schedule_has_nothing_to_try() -> None:
    assert Contest(CANDIDATES[:1], [1.0]).next_one is None


def test_features_of_contractions_tell_their_algorithms() -> None:
    plain = ContractionSchedule(1, 4, 8, 1, 64, 12, 2)
    each = [Direct(), InPlace(), Planar(), Winograd(2), Winograd(4), Winograd(4, shared=True)]
    found = features([replace(plain, algorithm=algorithm) for algorithm in each])
    assert len({tuple(row) for row in found.tolist()}) == len(each)


@pytest.mark.parametrize("n", [1, 8])
def test_features_are_near_for_schedules_that_are_alike(n: int) -> None:
    near, far = features([MomentsSchedule(n, 4), MomentsSchedule(2 * n, 4)])
    assert np.abs(near - far).sum() == 1
