"""Fits the constants of the CPU's timing model to measured kernels.

There are few samples for a dozen constants. So each constant is kept near its usual value unless
many samples call for another, and the fit is used only if it also predicts samples that were left
out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smalti.machine.cpu import Counts
from smalti.machine.cpu.core import REACH
from smalti.machine.cpu.work import CONSTANTS, KINDS, LEVELS
from smalti.machine.descent import Constants, descend

BOUND = 3.0
"""A constant is kept within this factor of its usual value."""
OVERLAP_BOUND = 2.0
"""The same factor for the constant "overlap", which is an exponent."""
PULL = 0.02
"""Regularisation: the weight, beside the mean error, of the squared logarithm of a constant over
its usual value, so that a few small kernels do not change what large ones rest on."""
FOLDS = 4
"""Folds of the cross-validation: each part of the samples is left out once, to test the fit to the
others."""
GAIN_MIN = 0.15
"""The constants are changed only if that reduces the error at left-out samples by this share."""

Sample = tuple[Sequence[Counts], float]
"""(counts of the steps of a kernel or a program, its measured seconds)."""


def fitted(samples: Sequence[Sample]) -> tuple[Constants, float, float]:
    """The constants to use, and the errors of the usual constants and of these at left-out samples.

    An error is the mean absolute logarithm of measured over predicted seconds. If the gain is less
    than `GAIN_MIN`, the constants are the usual ones.

    >>> fitted([])
    Traceback (most recent call last):
    ...
    ValueError: no kernel was measured
    """
    if not samples:
        raise ValueError("no kernel was measured")
    seconds, predict = _predictor(samples)
    before = np.abs(np.log(predict(CONSTANTS) / seconds))
    fold = np.random.default_rng(0).permutation(len(samples)) % FOLDS
    left = np.zeros(len(samples))
    for part in range(FOLDS):
        out = fold == part
        if out.any() and not out.all():
            found = _fit(seconds, predict, ~out)
            left[out] = np.abs(np.log(predict(found) / seconds))[out]
    usual, after = float(before.mean()), float(left.mean())
    if after > (1 - GAIN_MIN) * usual:
        return CONSTANTS, usual, usual
    return _fit(seconds, predict, np.ones(len(samples), bool)), usual, after


def _predictor(samples: Sequence[Sample]
               ) -> tuple[np.ndarray, Callable[[Constants], np.ndarray]]:
    """The measured seconds [samples], and a function that predicts them from constants."""
    owner = np.array([n for n, (steps, _) in enumerate(samples) for _ in steps])
    every = [counts for steps, _ in samples for counts in steps]
    clocks, levels = (np.array([getattr(c, name) for c in every]) for name in ("clocks", "levels"))
    launch = np.array([c.launch for c in every])

    def predict(c: Mapping[str, float]) -> np.ndarray:
        busy = clocks @ np.array([c[kind] for kind in KINDS])
        moving = levels @ np.array([1 / c[level] for level in LEVELS])
        power = c["overlap"]
        each = (busy ** power + moving ** power) ** (1 / power) + c["launch"] * launch
        return np.bincount(owner, each, len(samples))

    return np.array([seconds for _, seconds in samples]), predict


def _fit(seconds: np.ndarray, predict: Callable[[Constants], np.ndarray],
         chosen: np.ndarray) -> Constants:
    def error(c: Constants) -> float:
        misses = np.abs(np.log(predict(c) / seconds))[chosen].mean()
        return float(misses) + PULL * sum(
            np.log(c[name] / CONSTANTS[name]) ** 2 for name in CONSTANTS)

    return descend(CONSTANTS, error, lambda name: {"overlap": OVERLAP_BOUND, REACH: 1.0}.get(
        name, BOUND))
