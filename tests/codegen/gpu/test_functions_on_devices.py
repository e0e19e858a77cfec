"""Pointwise functions on devices, whose `exp`, `sqrt` and division are as exact as Vulkan says.

Numbers too small for f32's full precision may be 0 there.
"""

from __future__ import annotations

import numpy as np
import pytest
from group_functions import ABSOLUTE, SMALLEST, UNITS, computed, spread
from webgpu_devices import webgpu  # noqa: F401

from smalti.runtime.gpu.interface import Gpu

EXPONENTIAL = {"exp", "sigmoid", "silu", "sinh", "cosh"}


@pytest.fixture(params=["vulkan", "webgpu"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name, low, high, exact, ulp_max", UNITS)
def test_error_in_units_in_the_last_place(gpu: Gpu, name: str, low: float, high: float, exact,
                                          ulp_max: float) -> None:
    x = spread(low, high)
    x = x[(np.abs(x) >= SMALLEST) & (np.abs(exact(x.astype(np.float64))) >= SMALLEST)]
    expected = exact(x.astype(np.float64))
    error = np.abs(computed(name, x, gpu=gpu) - expected) / np.spacing(
        np.abs(expected).astype(np.float32))
    allowed = np.full(x.shape, 2 * ulp_max + 3 if ulp_max else 0)  # of division: 2.5
    if name in EXPONENTIAL:
        allowed = allowed + 2 * np.abs(x)
    assert (error <= allowed).all(), (x[error.argmax()], error.max())


@pytest.mark.parametrize("name, low, high, exact, error_max", ABSOLUTE)
def test_absolute_error(gpu: Gpu, name: str, low: float, high: float, exact,
                        error_max: float) -> None:
    x = spread(low, high)
    found = computed(name, x, gpu=gpu)
    assert np.max(np.abs(found - exact(x.astype(np.float64)))) <= 3 * error_max
