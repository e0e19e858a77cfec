"""Error bounds of functions made of instructions, and special values; `exp` and other instructions
are numpy's here, those of drivers stand in the tests of the targets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smalti.graph import OPERATIONS
from smalti.target.gpu import run
from smalti.target.gpu.builder import Builder
from smalti.target.gpu.functions import FUNCTIONS
from smalti.target.x86.functions import FUNCTIONS as X86_FUNCTIONS

UNARY = [name for name in FUNCTIONS if OPERATIONS[name].inputs[0] == 1]
BINARY = ("add", "sub", "mul", "div", "max", "min")
QUESTIONS = ("equal", "less", "less_or_equal", "greater", "greater_or_equal")
TRUTH = (*QUESTIONS, "is_nan", "is_inf", "not", "and", "or", "xor", "where")
LARGEST, SMALLEST, DENORMAL = 3.4028235e38, 1.1754944e-38, 1e-45
SPECIAL = np.float32([np.nan, -np.inf, np.inf, 0, -0.0, 0.5, -0.5, 1, -1, 2, -2, 89, -89, 1e30,
                      -1e30, 1e-40])
_erf = np.vectorize(math.erf, otypes=[np.float64])


def computed(name: str, *operands: np.ndarray, lanes: int = 1) -> np.ndarray:
    """What a group program computes of f32 operands."""
    arrays = [np.asarray(a, np.float32) for a in np.broadcast_arrays(*operands)]
    count = arrays[0].size
    padded = [np.resize(a.reshape(-1), -(-count // lanes) * lanes) for a in arrays]
    b, size = Builder(name, 64), padded[0].size
    bound = [b.binding(f"x{i}", "f32", size, "read", lanes) for i in range(len(arrays))]
    out = b.binding("y", "f32", size, "write", lanes)
    i = b.let((b.group[0] * 64 + b.invocation) * lanes)
    with b.branch(i < size):
        b.store(out, i, FUNCTIONS[name](b, *(b.let(b.load(x, i, lanes)) for x in bound)))
    program = b.finish((-(-size // (64 * lanes)), 1, 1))
    found = run(program, {f"x{i}": a for i, a in enumerate(padded)})["y"][:count]
    return found.reshape(arrays[0].shape).astype(np.float64)


def meant(name: str, *operands: np.ndarray) -> np.ndarray:
    """What numpy says."""
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[name].meaning(*operands), np.float64)


def spread(low: float, high: float, count: int = 8_001) -> np.ndarray:
    """Evenly spaced numbers, and as many by size on both sides of 0, all within the bounds."""
    sizes = np.geomspace(1e-30, max(abs(low), abs(high)), count)
    values = np.concatenate([np.linspace(low, high, count), sizes, -sizes]).astype(np.float32)
    return values[(values >= low) & (values <= high)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def test_every_function_of_the_cpu_is_there() -> None:
    assert FUNCTIONS.keys() >= X86_FUNCTIONS.keys()


@pytest.mark.parametrize("name, low, high, exact, ulp_max", [
    ("exp", -87.3, 88.3, np.exp, 3), ("tanh", -30, 30, np.tanh, 5),
    ("reciprocal", SMALLEST, 1e38, np.reciprocal, 0.5), ("sqrt", SMALLEST, LARGEST, np.sqrt, 0.5),
    ("sigmoid", -80, 80, sigmoid, 4), ("silu", -80, 80, lambda x: x * sigmoid(x), 4),
    ("neg", -1e38, 1e38, np.negative, 0), ("abs", -1e38, 1e38, np.abs, 0),
    ("relu", -1e38, 1e38, lambda x: np.maximum(x, 0), 0),
    ("floor", -1e38, 1e38, np.floor, 0), ("ceil", -1e38, 1e38, np.ceil, 0),
    ("round", -1e38, 1e38, np.rint, 0), ("trunc", -1e38, 1e38, np.trunc, 0),
    ("sign", -1e38, 1e38, np.sign, 0), ("log", DENORMAL, LARGEST, np.log, 2),
    ("erf", -10, 10, _erf, 3), ("sin", -8192, 8192, np.sin, 2), ("cos", -8192, 8192, np.cos, 2),
    ("tan", -8192, 8192, np.tan, 3), ("sinh", -88, 88, np.sinh, 4), ("cosh", -88, 88, np.cosh, 4),
    ("asin", -1, 1, np.arcsin, 3), ("acos", -1, 1, np.arccos, 3),
    ("atan", -LARGEST, LARGEST, np.arctan, 3), ("asinh", -LARGEST, LARGEST, np.arcsinh, 3),
    ("acosh", 1, LARGEST, np.arccosh, 3), ("acosh", 1, 3, np.arccosh, 3),
    ("atanh", -0.99999, 0.99999, np.arctanh, 3),
])
def test_error_in_units_in_the_last_place(name: str, low: float, high: float, exact,
                                          ulp_max: float) -> None:
    x = spread(low, high)
    expected = exact(x.astype(np.float64))
    units = np.spacing(np.abs(expected).astype(np.float32))
    assert np.max(np.abs(computed(name, x) - expected) / units) <= ulp_max


@pytest.mark.parametrize("name, low, high, exact, error_max", [
    ("log", 0.9, 1.2, np.log, 2e-8),
    ("gelu", -20, 5, lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), 5e-7),
    ("gelu_tanh", -20, 5, gelu_tanh, 1e-6),
    ("quick_gelu", -40, 5, lambda x: x * sigmoid(1.702 * x), 1e-6),
])
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
