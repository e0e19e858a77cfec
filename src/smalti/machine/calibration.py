"""Fits the constants of the timing model to kernels measured on a device.

Each family of kernels is fitted separately: a few constants, by coordinate descent on the mean
relative error, kept near their usual values. What error remains is learned from the samples, if
that also predicts samples left out of the learning (residual.py). The error is relative, not
logarithmic, because it then weighs less if a measurement was disturbed, which only makes a time
longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.machine.descent import descend
from smalti.machine.device import DeviceModel
from smalti.machine.estimate import Problem, places, problems
from smalti.machine.family import Constants, KernelFamily, Sizes
from smalti.machine.fitted import Fitted
from smalti.machine.residual import learned

BOUND = 30.0
"""A constant is kept within this factor of its usual value."""
LAUNCH_BOUND = 1000.0
"""The same for constants in microseconds, which frameworks can make large."""
PULL = 0.003
"""Regularisation: the weight, beside the mean error, of the squared logarithm of a constant over
its usual value."""


def calibrate(device: DeviceModel, samples: Sequence[Mapping[str, Any]]) -> DeviceModel:
    """The device model `device` with constants fitted to measured kernels.

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


def fitted(device: DeviceModel, family: KernelFamily, dtype: str, sizes: Sizes,
           seconds: np.ndarray) -> Fitted:
    """The constants and the residual of a family of kernels, from measured `seconds` [problems]."""
    constants = fit([(device, dtype, sizes, seconds)], family)
    expected = family.seconds(device, dtype, constants, sizes)
    return Fitted(constants, learned(places(family, sizes, expected),
                                     np.log(seconds / expected.seconds)))


def fit(cases: Sequence[tuple[DeviceModel, str, Sizes, np.ndarray]],
        family: KernelFamily) -> Constants:
    """The constants of a family with the least error over all `cases`: (device, dtype, sizes,
    seconds)."""
    usual = family.constants

    def error(constants: Constants) -> float:
        errors = [np.abs(family.seconds(device, dtype, constants, sizes).seconds / seconds - 1)
                  .mean() for device, dtype, sizes, seconds in cases]
        return float(np.mean(errors)) + PULL * sum(
            np.log(constants[name] / usual[name]) ** 2 for name in usual if not in_us(name))

    return descend(usual, error, lambda name: LAUNCH_BOUND if in_us(name) else BOUND)


def in_us(name: str) -> bool:
    """True if a constant is a time in microseconds, which runtimes and frameworks add."""
    return name in ("launch", "host", "merge")
