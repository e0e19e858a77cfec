"""Calibration: finds what was changed, is never worse than none, and holds on published timings."""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from smalti import machine
from smalti.errors import InputError
from smalti.machine import product
from smalti.machine.calibration import fit, fitted
from smalti.machine.estimate import timed_all
from smalti.machine.fitted import Fitted

TIMINGS = Path(os.environ.get(
    "SMALTI_TIMINGS", Path(__file__).resolve().parents[3] / "shared" / "data" / "timings"))
DEVICES = ("a100_sxm4_80gb", "h100_sxm5_80gb", "b200_sxm", "arc_pro_b60")
SAMPLES = 200

if not TIMINGS.is_dir():
    warnings.warn("the published timings are not here, nothing is compared with them; name their "
                  "folder in SMALTI_TIMINGS", stacklevel=1)


def random_products(count: int, seed: int = 0) -> list[dict]:
    sizes = np.exp(np.random.default_rng(seed).uniform(np.log(16), np.log(8192), (count, 3)))
    return [{"op": "mat_mul", "dtype": "f16", "m": int(m), "n": int(n), "k": int(k)}
            for m, n, k in sizes]


def error(device: machine.DeviceModel, samples: list[dict]) -> float:
    """Mean absolute error of what a device is expected to take."""
    misses = []
    for sample in samples:
        fields = {name: value for name, value in sample.items() if name != "microseconds"}
        found = machine.estimate(device, fields.pop("op"), fields.pop("dtype"), **fields)
        misses.append(abs(found.microseconds / sample["microseconds"] - 1))
    return float(np.mean(misses))


def test_a_slower_device_is_recognised() -> None:
    device = machine.device("rtx_4060")
    samples = random_products(120)
    for sample in samples:
        found = machine.estimate(device, "mat_mul", "f16", m=sample["m"], n=sample["n"],
                                 k=sample["k"])
        sample["microseconds"] = 1.7 * found.microseconds + 10
    calibrated = machine.calibrate(device, samples[:60])
    assert error(device, samples[60:]) > 0.4
    assert error(calibrated, samples[60:]) < 0.1


def test_noise_is_not_learned() -> None:
    device, noise = machine.device("rtx_4060"), np.random.default_rng(3)
    samples = random_products(160)
    for sample in samples:
        found = machine.estimate(device, "mat_mul", "f16", m=sample["m"], n=sample["n"],
                                 k=sample["k"])
        sample["microseconds"] = found.microseconds * np.exp(noise.normal(0, 0.1))
    calibrated = machine.calibrate(device, samples[:80])
    assert calibrated.fitted["product:f16"].residual is None
    assert error(calibrated, samples[80:]) < 1.1 * error(device, samples[80:])


@pytest.mark.parametrize("sample, message", [
    ({"op": "mat_mul", "m": 1, "n": 1, "k": 1}, "no positive microseconds"),
    ({"op": "conv", "x": (1, 8, 9, 9), "w": (8, 8, 3, 3), "microseconds": 3}, "which algorithm"),
])
def test_samples_that_say_too_little_are_refused(sample: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        machine.calibrate(machine.device("rtx_4060"), [sample])


def published() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Sizes of bf16 products, and seconds on each device."""
    with open(TIMINGS / "gemm_bf16_small.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    sizes = {name: np.array([float(line[name]) for line in lines]) for name in "mnk"}
    sizes["batch"] = np.ones(len(lines))
    return sizes, {name: np.array([1e-6 * float(line[name]) for line in lines])
                   for name in DEVICES}


@pytest.mark.parametrize("name", DEVICES)
def test_published_products_before_and_after_calibration(name: str) -> None:
    sizes, seconds = published()
    order = np.random.default_rng(0).permutation(len(sizes["m"]))

    def part(device: str, chosen: np.ndarray):
        return (machine.device(device), "bf16", {k: v[chosen] for k, v in sizes.items()},
                seconds[device][chosen])

    def missed(device: machine.DeviceModel, chosen: np.ndarray) -> float:
        _, dtype, some, times = part(name, chosen)
        found = timed_all(device, product.FAMILY, dtype, some).seconds
        return float(np.abs(found / times - 1).mean())

    constants = fit([part(other, order[:SAMPLES]) for other in DEVICES if other != name],
                    product.FAMILY)
    device = machine.device(name)
    held_out = device.with_fitted({"product:bf16": Fitted(constants)})
    assert missed(held_out, order) <= 0.25, "fitted to the other devices only"
    calibrated = device.with_fitted({"product:bf16": fitted(
        *part(name, order[:SAMPLES])[:1], product.FAMILY, *part(name, order[:SAMPLES])[1:])})
    assert missed(calibrated, order[SAMPLES:]) <= 0.12, f"after {SAMPLES} timings of the device"


if not TIMINGS.is_dir():  # as the warning at the top says
    del test_published_products_before_and_after_calibration
