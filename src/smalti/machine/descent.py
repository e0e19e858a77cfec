"""Coordinate descent on the logarithms of a few positive constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Constants = Mapping[str, float]

STEPS = (0.5, 0.3, 0.18, 0.11, 0.065, 0.04)
"""Steps by which logarithms are changed, in turn: each about 0.6 of the one before."""


def descend(usual: Constants, error: Callable[[Constants], float],
            bound: Callable[[str], float]) -> Constants:
    """The constants with the least error, each within the factor `bound(name)` of its usual value.

    >>> found = descend({"a": 1.0, "b": 1.0}, lambda c: abs(c["a"] - 2) + abs(c["b"] - 1),
    ...                 lambda name: 3.0)
    >>> abs(found["a"] - 2) < 0.1, found["b"]
    (True, 1.0)
    """
    best = dict(usual)
    least = error(best)
    for step in STEPS:
        for name in usual:
            for factor in (np.exp(step), np.exp(-step)):
                while True:
                    tried = {**best, name: float(best[name] * factor)}
                    if not 1 / bound(name) <= tried[name] / usual[name] <= bound(name):
                        break
                    found = error(tried)
                    if found >= least:
                        break
                    best, least = tried, found
    return best
