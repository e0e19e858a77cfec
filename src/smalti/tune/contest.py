"""Which schedule of a kernel is fastest: one after another is tried beside the one in use.

Each is judged by ratios, its time over that of the one in use measured next to it, so that what
else runs meanwhile hurts both. One that is hopeless after its first ratios is not tried again; one
that seems faster is tried until that is sure. What comes next says `search.proposals`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from smalti.schedule import Schedule
from smalti.schedule.decisions import decisions, numbered
from smalti.tune.search import proposals

NONE: Mapping[int, float] = MappingProxyType({})
TRIALS = 5
"""Ratios that decide about a candidate: their median. One that wins by these is judged by as many
others: the best of many has been lucky, and by its lucky ratios nobody knows how good it is."""
GAIN_MIN = 0.02
"""What a candidate has to be faster by, to take the place of a better known one."""
SPREAD = 0.06
"""Standard deviation of the logarithms of single ratios: a candidate whose median so far lies
further above what is asked for than this over the root of their number is given up."""


class Contest:
    """The candidates of one kernel, of which the first is in use.

    `expected` are the seconds that a timing model has for each, `known` ratios of some from before,
    which are not tried again. `next_one` is the number of the candidate to try now, None when all
    are done; `tell` says how it went.

    >>> from smalti.schedule import MapSchedule
    >>> contest = Contest([MapSchedule(8), MapSchedule(4), MapSchedule(2)], [1e-3, 1e-3, 1e-3])
    >>> while contest.next_one is not None:
    ...     contest.tell(0.5 if contest.next_one == 2 else 1.3)
    >>> contest.best, contest.ratio
    (2, 0.5)
    """

    def __init__(self, candidates: Sequence[Schedule], expected: Sequence[float],
                 known: Mapping[int, float] = NONE) -> None:
        self.candidates, self._known = tuple(candidates), {**known, 0: 1.0}
        self.best, self.ratio = 0, 1.0
        self.found: dict[int, float] = {}
        """Medians of the ratios of all that were tried, infinity for what cannot be applied."""
        self._ratios: list[float] = []
        self._expected = np.array(expected)
        self._asking = proposals(self._expected, features(candidates))
        self.next_one: int | None = next(self._asking)
        self._skip_known()

    @property
    def expected_ratio(self) -> float:
        """What the timing model has for `next_one`, over what it has for the first candidate."""
        return float(self._expected[self.next_one] / self._expected[0])

    def tell(self, ratio: float) -> None:
        """The candidate `next_one` took `ratio` of the time of the one in use; infinity if it
        cannot be applied."""
        self._ratios.append(ratio)
        judging = self._ratios[TRIALS:] or self._ratios
        median = float(np.median(judging))
        wanted = self.ratio * (1 - GAIN_MIN)
        slack = math.exp(SPREAD / math.sqrt(len(judging))) if len(judging) < TRIALS else 1.0
        if median <= wanted * slack and len(self._ratios) < 2 * TRIALS:
            return
        self.found[self.next_one] = median
        if median <= wanted:
            self.best, self.ratio = self.next_one, median
        self._ratios = []
        self._advance(median)
        self._skip_known()

    def _skip_known(self) -> None:
        while self.next_one in self._known:
            ratio = self._known[self.next_one]
            if self.next_one:  # the first is what all are compared with
                self.found[self.next_one] = ratio
            self._advance(ratio)

    def _advance(self, ratio: float) -> None:
        try:
            self.next_one = self._asking.send(ratio)
        except StopIteration:
            self.next_one = None


def features(candidates: Sequence[Schedule]) -> np.ndarray:
    """Numbers that are near for schedules that are alike: of sizes the logarithms, [schedule,
    decision].

    >>> from smalti.schedule import MomentsSchedule
    >>> features([MomentsSchedule(8, 1), MomentsSchedule(2, 4)]).tolist()
    [[3.0, 0.0], [1.0, 2.0]]
    """
    sizes = {name for schedule in candidates for name, value in decisions(schedule).items()
             if type(value) is int}
    return np.array([[math.log2(value) if name in sizes and value else float(value)
                      for name, value in row.items()] for row in numbered(candidates)])
