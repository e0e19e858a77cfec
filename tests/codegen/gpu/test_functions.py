"""Error bounds of functions made of instructions, and special values; `exp` and other instructions
are numpy's here, those of drivers stand in the tests of the targets."""

from __future__ import annotations

import numpy as np
import pytest
from group_functions import ABSOLUTE, UNITS, computed, meant, spread

from smalti.codegen.cpu.functions import FUNCTIONS as X86_FUNCTIONS
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.graph import OPERATIONS

UNARY = [name for name in FUNCTIONS if OPERATIONS[name].inputs[0] == 1]
BINARY = ("add", "sub", "mul", "div", "max", "min")
QUESTIONS = ("equal", "less", "less_or_equal", "greater", "greater_or_equal")
TRUTH = (*QUESTIONS, "is_nan", "is_inf", "not", "and", "or", "xor", "where")
SPECIAL = np.float32([np.nan, -np.inf, np.inf, 0, -0.0, 0.5, -0.5, 1, -1, 2, -2, 89, -89, 1e30,
                      -1e30, 1e-40])


def test_every_function_of_the_cpu_is_there() -> None:
    assert FUNCTIONS.keys() >= X86_FUNCTIONS.keys()


@pytest.mark.parametrize("name, low, high, exact, ulp_max", UNITS)
def test_error_in_units_in_the_last_place(name: str, low: float, high: float, exact,
                                          ulp_max: float) -> None:
    x = spread(low, high)
    expected = exact(x.astype(np.float64))
    units = np.spacing(np.abs(expected).astype(np.float32))
    assert np.max(np.abs(computed(name, x) - expected) / units) <= ulp_max


@pytest.mark.parametrize("name, low, high, exact, error_max", ABSOLUTE)
def test_absolute_error(name: str, low: float, high: float, exact, error_max: float) -> None:
    x = spread(low, high)
    assert np.max(np.abs(computed(name, x) - exact(x.astype(np.float64)))) <= error_max


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str) -> None:
    far = name in ("sin", "cos", "tan", "silu", "quick_gelu", "gelu", "gelu_tanh")
    x = SPECIAL[np.isnan(SPECIAL) | (np.abs(SPECIAL) < 1e4)] if far else SPECIAL
    np.testing.assert_allclose(computed(name, x), meant(name, x), rtol=2e-6, atol=1e-36)


@pytest.mark.parametrize("name", UNARY)
def test_lanes_are_computed_as_scalars_are(name: str) -> None:
    x = np.concatenate([SPECIAL, np.linspace(-3, 3, 48, dtype=np.float32)])
    np.testing.assert_array_equal(computed(name, x, lanes=4), computed(name, x))


@pytest.mark.parametrize("name", ["silu", "quick_gelu", "gelu", "gelu_tanh"])
def test_activations_of_very_large_numbers(name: str) -> None:
    x = np.float32([-1e30, -1e4, -200.0, 200.0, 1e4, 1e30, np.inf])
    found = computed(name, x)
    np.testing.assert_allclose(found[3:], x[3:], rtol=1e-6)
    assert np.all(np.abs(found[:3]) <= 1e-7 * np.abs(x[:3]))


@pytest.mark.parametrize("name", BINARY)
def test_nan_in_either_operand_is_nan(name: str) -> None:
    x = np.float32([np.nan, 1.0, np.nan, 1.0, -0.0])
    y = np.float32([1.0, np.nan, np.nan, 2.0, 0.5])
    np.testing.assert_array_equal(computed(name, x, y), meant(name, x, y))


@pytest.mark.parametrize("name", TRUTH)
def test_truth_values(name: str) -> None:
    bits = name in ("not", "and", "or", "xor")
    x, y = np.float32([[0], [1]]) if bits else SPECIAL[:, None], np.float32([0, 1, np.nan, 2])
    operands = (x, y[:2] if bits else y)[:OPERATIONS[name].inputs[0]]
    if name == "where":
        operands = (np.float32([0, 1, 1, 0]), y, SPECIAL[:4])
    given = [a.astype(bool) if bits or name == "where" and not i else a
             for i, a in enumerate(operands)]
    np.testing.assert_array_equal(computed(name, *operands), meant(name, *given))


def test_powers_of_any_number_to_any_number() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-5, 5, 5000)).astype(np.float32)
    y = rng.uniform(-6, 6, 5000).astype(np.float32)
    np.testing.assert_allclose(computed("pow", x, y), x ** np.float64(y), rtol=4e-6)
    x, y = np.float32([[-2], [-0.5], [0], [1], [3]]), np.float32([[-3, -2, 0, 2, 3, 0.5]])
    x, y = np.broadcast_arrays(x, np.where(x == 0, np.abs(y), y))
    np.testing.assert_allclose(computed("pow", x, y), meant("pow", x, y), rtol=1e-6)
    assert np.isposinf(computed("pow", np.zeros(1), -np.ones(1)))
    assert np.isnan(computed("pow", np.float32([np.nan]), np.ones(1)))
