"""What the model misses is learned where it is a function of the sizes, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from smalti import machine
from smalti.machine.residual import CORRECTION_MAX, Residual, learned, relative


def problems(count: int, seed: int) -> np.ndarray:
    """Logarithms of three sizes."""
    return np.random.default_rng(seed).uniform(3, 9, (count, 3))


def smooth(places: np.ndarray) -> np.ndarray:
    return 0.3 * np.sin(places[:, 0]) + 0.05 * (places[:, 1] - 6)


def test_a_miss_that_is_a_function_of_the_sizes_is_learned() -> None:
    known, asked = problems(200, 0), problems(300, 1)
    found = learned(known, smooth(known) + np.random.default_rng(2).normal(0, 0.03, 200))
    assert found is not None
    left = smooth(asked) - np.log(found.factor(asked))
    assert relative(left) < 0.3 * relative(smooth(asked))


@pytest.mark.parametrize("cases, most", [(4, 1), pytest.param(20, 2, marks=pytest.mark.sweep)])
def test_noise_is_not_learned(cases: int, most: int) -> None:
    """Of twenty cases one may be taken for something by chance, which costs next to nothing."""
    kept = 0
    for seed in range(cases):
        noise = np.random.default_rng(100 + seed).normal(0, 0.15, 1200)
        known = noise[:200] - np.median(noise[:200])  # constants have been fitted
        found = learned(problems(200, seed), known)
        kept += found is not None
        if found is not None:
            left = noise[200:] - np.log(found.factor(problems(1000, 50 + seed)))
            assert relative(left) < 1.04 * relative(noise[200:])
    assert kept <= most


def test_few_samples_teach_nothing() -> None:
    known = problems(19, 0)
    assert learned(known, smooth(known)) is None


def test_it_ends_far_from_all_samples_and_is_bounded() -> None:
    known = problems(60, 3)
    found = learned(known, np.full(60, 2.0))
    assert found is not None
    np.testing.assert_allclose(found.factor(known), 2.0)
    assert np.log(found.factor(known + 1e3)) == pytest.approx(0.0, abs=1e-6)
    assert np.abs(np.log(found.factor(problems(50, 4)))).max() <= CORRECTION_MAX + 1e-12


def test_a_size_that_all_samples_share_still_tells_others_apart() -> None:
    known = problems(80, 5)
    known[:, 2] = 4.0
    found = learned(known, smooth(known))
    assert found is not None
    other = known + np.array([0, 0, 50.0])
    far, near = (np.abs(np.log(found.factor(at))).max() for at in (other, known))
    assert far < 0.01 < near


def test_times_that_are_disturbed_now_and_then_are_expected_near_the_others() -> None:
    known, random = problems(200, 6), np.random.default_rng(7)
    disturbed = np.where(random.random(200) < 0.35, 0.9, 0.0)
    found = learned(known, 0.3 * np.sin(known[:, 0]) + disturbed)
    assert found is not None
    asked = problems(200, 8)
    assert abs(np.median(np.log(found.factor(asked)) - 0.3 * np.sin(asked[:, 0]))) < 0.15


def test_the_factor_is_a_sum_of_likenesses() -> None:
    one = Residual(np.zeros((1, 1)), np.array([2.0]), np.array([0.1]), 1.0)
    distance = np.sqrt(3.0)  # a standard deviation, by Matérn's formula
    expected = 0.1 * (1 + distance) * np.exp(-distance)
    assert np.log(one.factor(np.array([[2.0]])))[0] == pytest.approx(expected)


def test_calibration_learns_what_constants_cannot_say() -> None:
    device, random = machine.device("rtx_4060"), np.random.default_rng(0)

    def sample(rows: int, columns: int) -> dict:
        usual = machine.estimate(device, "softmax", rows=rows, columns=columns).microseconds
        return {"op": "softmax", "rows": rows, "columns": columns,
                "microseconds": usual * (1.4 if columns > 1024 else 0.9)}

    samples = [sample(*(int(size) for size in np.exp(random.uniform(5, 9, 2))))
               for _ in range(160)]
    found = machine.calibrate(device, samples[:100])
    plain = device.with_fitted({key: type(one)(one.constants) for key, one in found.fitted.items()})

    def error(model: machine.DeviceModel) -> float:
        return float(np.mean([abs(machine.estimate(
            model, "softmax", rows=s["rows"], columns=s["columns"]).microseconds
            / s["microseconds"] - 1) for s in samples[100:]]))

    assert found.fitted["rows:f32"].residual is not None
    assert error(found) < 0.7 * error(plain)
