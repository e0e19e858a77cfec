"""Constants of the CPU's model from measured kernels."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.machine.cpu import CONSTANTS, Counts
from smalti.machine.cpu.fitting import Sample, _predictor, fitted
from smalti.machine.cpu.work import KINDS, LEVELS

PLANTED = {**CONSTANTS, "products": 1.6 * CONSTANTS["products"],
           "memory": 0.6 * CONSTANTS["memory"], "launch": 2.5 * CONSTANTS["launch"]}


def kernels(count: int, constants: dict[str, float], noise: float = 0.0) -> list[Sample]:
    """Kernels that differ in what binds them, timed by the model with these constants."""
    random = np.random.default_rng(0)
    found = []
    for number in range(count):
        clocks = dict.fromkeys(KINDS, 1e-6)
        levels = dict.fromkeys(LEVELS, 1e-6)
        clocks["products"] *= 10 ** random.uniform(1, 4) * (number % 3 == 0)
        levels["memory"] *= 10 ** random.uniform(1, 4) * (number % 3 == 1)
        launch = 1e-4 if number % 3 == 2 else 1e-7
        counts = Counts(tuple(clocks.values()), tuple(levels.values()), launch, 2, 0.0)
        found.append(([counts], 1.0))
    _, predict = _predictor(found)
    times = predict(constants) * np.exp(noise * random.standard_normal(count))
    return [(steps, float(seconds)) for (steps, _), seconds in zip(found, times, strict=True)]


def test_planted_constants_are_found() -> None:
    found, before, after = fitted(kernels(60, PLANTED))
    assert after < 0.1 < before
    for name in ("products", "memory", "launch"):
        assert found[name] == pytest.approx(PLANTED[name], rel=0.12), name


def test_usual_constants_stay_where_they_fit() -> None:
    found, before, after = fitted(kernels(40, dict(CONSTANTS)))
    assert found == CONSTANTS and before == after == pytest.approx(0, abs=1e-9)


def test_noise_is_not_taken_for_a_constant() -> None:
    found, before, after = fitted(kernels(30, dict(CONSTANTS), noise=0.2))
    assert after <= before
    assert all(0.7 < found[name] / CONSTANTS[name] < 1.4 for name in CONSTANTS)


def test_constants_stay_within_their_bounds() -> None:
    wild = {name: 100 * value for name, value in CONSTANTS.items()} | {"overlap": 2.2}
    found, _, _ = fitted(kernels(30, wild))
    assert max(found[name] / CONSTANTS[name] for name in CONSTANTS) <= 3.0001
