"""Error bounds of pointwise functions, as their docstrings state them, and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_regions import LEVELS, PieceRunner, run_regions, run_steps

from smalti.codegen import levels
from smalti.codegen.cpu.functions import EXP_MAX, EXP_MIN, FUNCTIONS, exp2, exp2_coefficients
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.operands import Address
from smalti.fuse.support import TRUTH
from smalti.graph import OPERATIONS, Graph, evaluate

BINARY = ("add", "sub", "mul", "div", "max", "min")
UNARY = tuple(name for name in FUNCTIONS if name not in {*BINARY, *TRUTH, "pow"})
LARGEST, SMALLEST, DENORMAL = 3.4028235e38, 1.1754944e-38, 1e-45
_erf = np.vectorize(math.erf, otypes=[np.float64])


def native(name: str, level: str, *operands: np.ndarray) -> np.ndarray:
    g = Graph(name)
    arrays = {f"x{i}": np.asarray(a, np.float32) for i, a in enumerate(operands)}
    g.output("y", g.apply(name, *(g.input(n, a.shape) for n, a in arrays.items())))
    return run_regions(g, arrays, PieceRunner({}, level))["y"].astype(np.float64)


def spread(low: float, high: float, count: int = 200_001) -> np.ndarray:
    """Evenly spaced numbers, and as many by size on both sides of 0, all within the bounds."""
    sizes = np.geomspace(1e-30, max(abs(low), abs(high)), count)
    values = np.concatenate([np.linspace(low, high, count), sizes, -sizes])
    values = values.astype(np.float32)
    return values[(values >= low) & (values <= high)]


def ulp(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units in the last place of f32."""
    return float(np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name, low, high, exact, ulp_max", [
    ("exp", EXP_MIN, EXP_MAX, np.exp, 3),
    ("tanh", -30, 30, np.tanh, 5),
    ("reciprocal", SMALLEST, 1e38, np.reciprocal, 0.5),
    ("sqrt", SMALLEST, LARGEST, np.sqrt, 0.5),
    ("sigmoid", -80, 80, sigmoid, 4),
    ("silu", -80, 80, lambda x: x * sigmoid(x), 4),
    ("neg", -1e38, 1e38, np.negative, 0),
    ("abs", -1e38, 1e38, np.abs, 0),
    ("relu", -1e38, 1e38, lambda x: np.maximum(x, 0), 0),
    ("floor", -1e38, 1e38, np.floor, 0), ("ceil", -1e38, 1e38, np.ceil, 0),
    ("round", -1e38, 1e38, np.rint, 0), ("trunc", -1e38, 1e38, np.trunc, 0),
    ("sign", -1e38, 1e38, np.sign, 0),
    ("log", DENORMAL, 0.9, np.log, 2), ("log", 1.2, LARGEST, np.log, 2),
])
def test_error_in_units_in_the_last_place(level: str, name: str, low: float, high: float, exact,
                                          ulp_max: float) -> None:
    x = spread(low, high)
    assert ulp(native(name, level, x), exact(x.astype(np.float64))) <= ulp_max


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name, low, high, exact, error_max", [
    ("sin", -8192, 8192, np.sin, 1e-6),
    ("cos", -8192, 8192, np.cos, 1e-6),
    ("erf", -LARGEST, LARGEST, _erf, 5e-7), ("log", 0.9, 1.2, np.log, 1e-7),
    ("gelu", -20, 5, lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), 1.5e-6),
    ("gelu_tanh", -20, 5, lambda x: 0.5 * x * (1 + np.tanh(
        math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))), 1.5e-6),
    ("quick_gelu", -40, 5, lambda x: x * sigmoid(1.702 * x), 1.5e-6),
])
def test_absolute_error(level: str, name: str, low: float, high: float, exact,
                        error_max: float) -> None:
    x = spread(low, high, 20_001)
    assert np.max(np.abs(native(name, level, x) - exact(x.astype(np.float64)))) <= error_max


@pytest.mark.sampled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", UNARY)
def test_nan_stays_nan_and_nothing_else_becomes_it(level: str, name: str) -> None:
    x = np.array([np.nan, 0.5, -np.nan, 1.0, 2.0], np.float32)
    assert np.isnan(native(name, level, x)).tolist() == [True, False, True, False, False]


@pytest.mark.sampled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", BINARY)
def test_nan_in_either_operand_is_nan(level: str, name: str) -> None:
    a = np.array([np.nan, 1.0, np.nan, 1.0, -0.0], np.float32)
    b = np.array([1.0, np.nan, np.nan, 2.0, 0.5], np.float32)
    found = native(name, level, a, b)
    assert np.isnan(found).tolist() == [True, True, True, False, False]
    assert np.array_equal(found[3:], OPERATIONS[name].meaning(a[3:], b[3:]))


INFINITE = {  # at -inf and at inf
    "exp": (0.0, math.inf), "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0), "relu": (0.0, math.inf), "abs": (math.inf, math.inf),
    "neg": (math.inf, -math.inf), "reciprocal": (0.0, 0.0), "sqrt": (math.nan, math.inf),
    "sin": (math.nan, math.nan), "cos": (math.nan, math.nan), "log": (math.nan, math.inf),
    "floor": (-math.inf, math.inf), "ceil": (-math.inf, math.inf), "sign": (-1.0, 1.0),
}


@pytest.mark.sampled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", INFINITE)
def test_infinity(level: str, name: str) -> None:
    found = native(name, level, np.array([-np.inf, np.inf], np.float32))
    np.testing.assert_allclose(found, INFINITE[name], rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["silu", "quick_gelu", "gelu"])
def test_activations_of_very_large_numbers(level: str, name: str) -> None:
    x = np.array([-1e30, -1e4, -200.0, 200.0, 1e4, 1e30, np.inf], np.float32)
    found = native(name, level, x)
    np.testing.assert_allclose(found[3:], x[3:], rtol=1e-6)
    assert np.all(np.abs(found[:3]) <= 1e-7 * np.abs(x[:3]))


@pytest.mark.parametrize("level", LEVELS)
def test_exponential_up_to_infinity_and_down_to_nothing(level: str) -> None:
    x = np.array([-1e30, -200.0, -90.0, 88.7, 89.0, 150.0, 1e30], np.float32)
    found = native("exp", level, x)
    assert np.isposinf(found[4:]).all()
    expected = np.exp(x[:4].astype(np.float64))
    np.testing.assert_allclose(found[:4], expected, rtol=1e-6, atol=1e-38)


@pytest.mark.sampled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["sin", "tanh", "erf", "silu", "neg", "abs", "relu", "exp", "cos"])
def test_numbers_too_small_to_be_normal(level: str, name: str) -> None:
    x = np.array([DENORMAL, -DENORMAL, 1e-40, -1e-40, 0.0, -0.0], np.float32)
    with np.errstate(under="ignore"):
        expected = OPERATIONS[name].meaning(x)
    np.testing.assert_allclose(native(name, level, x), expected, rtol=1e-6, atol=5e-7
                               if name == "erf" else 1e-38)


@pytest.mark.parametrize("level", LEVELS)
def test_every_function_agrees_with_its_meaning(level: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 100)).astype(np.float32) * 3
    for name in (*BINARY, *UNARY):
        operands = (x, y) if name in BINARY else (np.abs(x) if name in ("sqrt", "log") else x,)
        np.testing.assert_allclose(native(name, level, *operands),
                                   OPERATIONS[name].meaning(*operands), rtol=1e-5, atol=2e-6,
                                   err_msg=name)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("degree, error_max", [(3, 1e-4), (5, 3 * 2.0 ** -23)])
def test_powers_of_two(level: str, degree: int, error_max: float) -> None:
    x = np.concatenate([spread(-126, 127), np.array([np.nan, -np.inf, -1e30, 0], np.float32)])
    x = np.resize(x, -(-len(x) // 16) * 16)
    y, asm = np.zeros_like(x), levels.level(level).assembler("power")
    table, index = asm.argument(), asm.argument()
    source, target = asm.general(), asm.general()
    asm.op("mov", source, Address(table))
    asm.op("mov", target, Address(table, 8))
    size = asm.level.bytes
    value = exp2(asm, asm.load(Address(asm.offset(source, index, size))),
                 exp2_coefficients(asm, degree))
    asm.store(Address(asm.offset(target, index, size)), value)
    step = KernelStep(asm.finish(), len(x) // asm.level.lanes)
    run_steps(level, (step,), [x, y])
    assert np.isnan(y[np.isnan(x)]).all()
    assert (y[x < -127] <= 2.0 ** -126).all()
    real = np.abs(x) < 128
    exact = np.exp2(x[real].astype(np.float64))
    assert np.max(np.abs(y[real] / exact - 1)) <= error_max


@pytest.mark.parametrize("level", LEVELS)
def test_powers_of_any_number_to_any_number(level: str) -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-5, 5, 5000)).astype(np.float32)
    y = rng.uniform(-6, 6, 5000).astype(np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(native("pow", level, x, y), x ** np.float64(y), rtol=4e-6)
        x, y = np.float32([[-2], [-0.5], [0], [1], [3]]), np.float32([[-3, -2, 0, 2, 3, 0.5]])
        x, y = np.broadcast_arrays(x, np.where(x == 0, np.abs(y), y))
        np.testing.assert_allclose(native("pow", level, x, y), x ** y, rtol=1e-6)
    assert np.isposinf(native("pow", level, np.zeros(1), -np.ones(1)))
    assert np.isnan(native("pow", level, np.float32([np.nan]), np.ones(1)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stored", [False, True])
def test_truth_values(level: str, stored: bool) -> None:
    g = Graph("truth")
    x, y = g.input("x", (7, 5)), g.input("y", (5,))
    asked = {name: g.apply(name, x, y) for name in (
        "equal", "less", "less_or_equal", "greater", "greater_or_equal")}
    asked |= {name: g.apply(name, x) for name in ("is_nan", "is_inf")}
    asked["given"] = g.input("b", (7, 1), "bool")
    less, equal = asked["less"], asked["equal"]
    asked |= {"not": g.apply("not", less), "and": g.apply("and", less, asked["given"]),
              "or": g.apply("or", less, equal), "xor": g.apply("xor", less, asked["given"]),
              "same": g.apply("equal", less, asked["given"])}
    for name, value in asked.items():
        g.output(name, value if stored else g.apply("where", value, x * 2.0, y + 1.0))
    special = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1, 1.5])
    inputs = {"x": np.repeat(special[:, None], 5, 1), "y": np.float32([1, np.nan, np.inf, 0, -2]),
              "b": (np.arange(7) % 2 == 0)[:, None]}
    found = run_regions(g, inputs, PieceRunner({}, level))
    for name, expected in evaluate(g, inputs, {}).items():
        np.testing.assert_array_equal(found[name].astype(np.float32), expected, err_msg=name)
