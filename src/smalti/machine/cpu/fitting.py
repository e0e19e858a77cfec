"""Constants of the CPU's timing model from measured kernels.

Few samples and a dozen constants: each stays near its usual value unless many samples ask for
another, and nothing is changed that does not also foretell samples which were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smalti.machine.cpu import Counts
from smalti.machine.cpu.core import REACH
from smalti.machine.cpu.work import CONSTANTS, KINDS, LEVELS
from smalti.machine.descent import Constants, descend

BOUND = 3.0
"""A constant stays within this factor of its usual value."""
OVERLAP_BOUND = 2.0
"""The factor for the constant "overlap", which is an exponent."""
PULL = 0.02
"""Weight of a squared logarithm of a constant over its usual value, beside the mean error: what a
few small kernels ask for should not move what large ones rest on."""
FOLDS = 4
"""Parts of the samples, each left out once to judge what the others give."""
GAIN_MIN = 0.15
"""Share of the error at samples left out that has to go for the constants to be changed."""

Sample = tuple[Sequence[Counts], float]
"""The counts of the steps of a kernel or of a program, and its seconds."""


def fitted(samples: Sequence[Sample]) -> tuple[Constants, float, float]:
    """The constants to use, and the mean absolute logarithm of measured over predicted seconds by
    the usual ones and by these, of samples that they do not know.

    Without a gain of `GAIN_MIN` the usual ones stay.

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
    """Measured seconds [samples], and what constants predict: [samples]."""
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
