"""The search finds what is fastest with few measurements, and sooner with a model that helps."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.tune.search import search


def valley(count: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of candidates, and times with one smooth valley in them."""
    places = np.random.default_rng(seed).uniform(-1, 1, (count, 4))
    off = ((places - [0.3, -0.2, 0.5, 0.0]) ** 2).sum(1)
    return places, np.exp(2 * off + 0.2 * np.sin(7 * places[:, 0]))


def regret(expected: np.ndarray, budget: int) -> float:
    features, truth = valley()
    found = search(expected, features, truth.__getitem__, budget=budget)
    assert len(found.order) == len(set(found.order)) == budget
    assert truth[found.best] == min(found.seconds)
    return truth[found.best] / truth.min()


def test_far_better_than_chance_without_a_model() -> None:
    _, truth = valley()
    chance = np.median([np.random.default_rng(seed).choice(truth, 30).min() for seed in range(99)])
    assert regret(np.ones(len(truth)), 30) < 1.05 < chance / truth.min()


def test_a_model_that_is_roughly_right_needs_fewer() -> None:
    features, truth = valley()
    biased = truth * np.exp(0.5 * features[:, 1] + 0.4 * features[:, 2])
    assert regret(biased, 12) < regret(np.ones(len(truth)), 12)
    assert regret(biased, 25) < 1.02


def test_the_first_ones_are_of_different_kinds() -> None:
    features, truth = valley()
    kinds = [int(4 * (x + 1) / 2) for x in features[:, 0]]
    found = search(truth, features, truth.__getitem__, budget=4, kinds=kinds, first=4)
    assert sorted(kinds[number] for number in found.order) == [0, 1, 2, 3]
    assert found.order[0] == int(np.argmin(truth))


def test_candidates_that_fail_are_left_behind() -> None:
    features, truth = valley()
    broken = np.where(features[:, 0] > 0, np.inf, truth)
    found = search(truth, features, broken.__getitem__, budget=30)
    assert np.isfinite(min(found.seconds))
    assert min(found.seconds) < 1.05 * broken.min()


@pytest.mark.parametrize("budget", [1, 5, 9])
def test_no_more_than_the_budget_or_the_candidates(budget: int) -> None:
    truth = np.arange(1.0, 6.0)
    found = search(truth, truth[:, None], truth.__getitem__, budget=budget)
    assert len(found.order) == min(budget, 5) and found.best == 0
