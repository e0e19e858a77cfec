"""Constants of the timing model from measured kernels, so that it speaks for this very device.

Each family of kernels is fitted by itself: a few constants by coordinate descent on the mean
absolute logarithm of measured over predicted time, held near their usual values, and a bounded
correction by the nearest samples where cross-validation says that it helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.machine.descent import descend
from smalti.machine.device import Device
from smalti.machine.estimate import Problem, places, problems
from smalti.machine.family import Constants, Family, Sizes
from smalti.machine.fitted import Fitted, Residual

BOUND = 30.0
"""A constant stays within this factor of its usual value."""
LAUNCH_BOUND = 1000.0
"""As do those in microseconds, which frameworks make large."""
PULL = 0.003
"""Weight of a squared logarithm of a constant over its usual value, beside the mean error."""
FOLDS = 5
RESIDUAL_SAMPLES_MIN = 20
GAIN_MIN = 0.05
"""Share of the error that a correction has to take away under cross-validation to be kept."""


def calibrate(device: Device, samples: Sequence[Mapping[str, Any]]) -> Device:
    """The device with constants fitted to measured kernels.

    Each sample has the fields of `estimate` and `microseconds`. Raises InputError for samples
    without a positive time, or with fields that `estimate` does not take.

    >>> from smalti import machine
    >>> slow = [dict(op="mat_mul", dtype="f16", m=m, n=m, k=m, microseconds=2 * machine.estimate(
    ...     machine.device("rtx_4060"), "mat_mul", "f16", m=m, n=m, k=m).microseconds)
    ...     for m in range(256, 4096, 128)]
    >>> found = calibrate(machine.device("rtx_4060"), slow)
    >>> abs(machine.estimate(found, **{k: v for k, v in slow[5].items() if k != "microseconds"}
    ...     ).microseconds / slow[5]["microseconds"] - 1) < 0.2
    True
    """
    groups: dict[str, list[tuple[Problem, float]]] = {}
    for sample in samples:
        fields = dict(sample)
        seconds = 1e-6 * float(fields.pop("microseconds", 0.0))
        if not seconds > 0:
            raise InputError(f"the sample {dict(sample)} has no positive microseconds")
        ways = problems(fields.pop("op", ""), fields.pop("dtype", "f32"), fields)
        if len(ways) > 1:
            raise InputError(f"the sample {dict(sample)} does not say which algorithm was timed")
        groups.setdefault(ways[0][0].key, []).append((ways[0][0], seconds))
    found = {}
    for key, group in groups.items():
        family, dtype = group[0][0].family, group[0][0].dtype
        sizes = {name: np.array([problem.sizes[name] for problem, _ in group])
                 for name in family.fields}
        found[key] = fitted(device, family, dtype, sizes, np.array([s for _, s in group]))
    return device.with_fitted(found)


def fitted(device: Device, family: Family, dtype: str, sizes: Sizes,
           seconds: np.ndarray) -> Fitted:
    """Constants and residual of one family for measured `seconds` [problems]."""
    constants = fit([(device, dtype, sizes, seconds)], family)
    if len(seconds) < RESIDUAL_SAMPLES_MIN:
        return Fitted(constants)
    misses = np.log(seconds / family.seconds(device, dtype, constants, sizes).seconds)
    where = places(family, sizes)
    fold = np.random.default_rng(0).permutation(len(seconds)) % FOLDS
    left = np.zeros(len(seconds))
    for part in range(FOLDS):
        out = fold == part
        left[out] = misses[out] - np.log(Residual(where[~out], misses[~out]).factor(where[out]))
    helps = np.abs(left).mean() < (1 - GAIN_MIN) * np.abs(misses).mean()
    return Fitted(constants, Residual(where, misses) if helps else None)


def fit(cases: Sequence[tuple[Device, str, Sizes, np.ndarray]], family: Family) -> Constants:
    """The constants of a family that suit several devices best: (device, dtype, sizes, seconds)."""
    usual = family.constants

    def error(constants: Constants) -> float:
        misses = [np.abs(np.log(seconds / family.seconds(device, dtype, constants, sizes).seconds))
                  .mean() for device, dtype, sizes, seconds in cases]
        return float(np.mean(misses)) + PULL * sum(
            np.log(constants[name] / usual[name]) ** 2 for name in usual if not in_us(name))

    return descend(usual, error, lambda name: LAUNCH_BOUND if in_us(name) else BOUND)


def in_us(name: str) -> bool:
    """Whether a constant is a time that runtimes and frameworks add, which may be anything."""
    return name in ("launch", "host", "merge")
