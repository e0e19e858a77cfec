"""Which candidates to measure, and in which order, when a timing model has an opinion on all.

What the model misses is itself smooth: candidates that are alike are missed alike. So the logarithm
of measured over expected time is a Gaussian process over the features of candidates, whose
prediction corrects the model after every measurement; what is measured next is expected to be
fastest, with some credit for what is not yet known. The first few are the model's own choices from
families of candidates that differ in kind, so that one mistake does not decide them all.

Method: Gaussian process regression with a prior mean (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, chapter 2) and a lower confidence bound (Srinivas et al., 2010).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence

import numpy as np

from smalti.dataclass import dataclass

NOISE = 0.05
"""Variance of a miss that likeness does not explain, the process having 1."""
REACH = 2.0
"""Distance, in standard deviations of each feature, over which candidates are alike."""
CREDIT = 0.2
"""What a standard deviation of what is not known is worth, as a logarithm of time."""


@dataclass(frozen=True)
class Found:
    """What a search measured: numbers of candidates in order, and the seconds of each."""

    order: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def best(self) -> int:
        """The candidate that was fastest."""
        return self.order[int(np.argmin(self.seconds))]


def search(expected: np.ndarray, features: np.ndarray, measure: Callable[[int], float], *,
           budget: int, kinds: Sequence[Hashable] | None = None, first: int = 4) -> Found:
    """Measure at most `budget` candidates, the most promising first.

    `measure(i)` gives the seconds of candidate i, infinity for one that fails; the rest is that of
    `proposals`.

    >>> truth = np.array([4.0, 1.0, 3.0, 2.0])
    >>> search(np.ones(4), np.arange(4.0)[:, None], truth.__getitem__, budget=4).best
    1
    """
    order: list[int] = []
    seconds: list[float] = []
    asking = proposals(expected, features, kinds, min(first, budget))
    number = next(asking, None)
    while number is not None and len(order) < budget:
        order.append(number)
        seconds.append(measure(number))
        try:
            number = asking.send(seconds[-1])
        except StopIteration:
            break
    return Found(tuple(order), tuple(seconds))


def proposals(expected: np.ndarray, features: np.ndarray, kinds: Sequence[Hashable] | None = None,
              first: int = 4) -> Generator[int, float, None]:
    """Candidates in the order in which to measure them: each is told what the last one took.

    `expected` [candidates] are the model's times, `features` [candidates, features] numbers that
    are near for candidates that are alike, say logarithms of sizes; `kinds` tells families apart of
    which each of the `first` measurements takes another. A time of infinity is that of a candidate
    that fails.
    """
    deviation = features.std(0)
    places = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1)
    prior = np.log(expected)
    order: list[int] = []
    seconds: list[float] = []
    for number in _leaders(expected, kinds)[:first]:
        order.append(number)
        seconds.append((yield number))
    likeness = np.empty((len(prior), 0))
    while len(order) < len(prior):
        likeness = np.hstack([likeness, _likeness(places, places[order[likeness.shape[1]:]])])
        promise = _promise(prior, likeness, order, np.array(seconds))
        promise[order] = np.inf
        order.append(int(np.argmin(promise)))
        seconds.append((yield order[-1]))


def _leaders(expected: np.ndarray, kinds: Sequence[Hashable] | None) -> list[int]:
    """The best candidate of each kind, best first; all candidates where there are no kinds."""
    by_time = np.argsort(expected, kind="stable")
    if kinds is None:
        return [int(number) for number in by_time]
    leaders: dict[Hashable, int] = {}
    for number in by_time:
        leaders.setdefault(kinds[number], int(number))
    return list(leaders.values())


def _likeness(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The covariance of misses at two sets of places."""
    distance = ((places[:, None] - others[None]) ** 2).sum(-1)
    return np.exp(-distance / (2 * REACH**2))


def _promise(prior: np.ndarray, likeness: np.ndarray, order: Sequence[int],
             seconds: np.ndarray) -> np.ndarray:
    """Logarithms of what each candidate may take, given what was measured so far."""
    works = np.isfinite(seconds)
    if not works.any():
        return prior.copy()
    slow = seconds[works].max()  # one that fails is at least as bad as the worst
    misses = np.log(np.where(works, seconds, slow)) - prior[list(order)]
    usual = misses.mean()
    among = likeness[list(order)] + NOISE * np.eye(len(order))
    weights = np.linalg.solve(among, np.column_stack([misses - usual, likeness.T]))
    known = np.einsum("ij,ji->i", likeness, weights[:, 1:])
    unknown = np.sqrt(np.clip(1 - known, 0, None))
    return prior + usual + likeness @ weights[:, 0] - CREDIT * unknown
