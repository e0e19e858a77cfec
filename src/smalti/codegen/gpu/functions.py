"""Pointwise functions made of instructions: the row of each operation that GPUs compute.

Each takes values of f32, named or constant, and gives one. NaN in gives NaN out. `exp2`, `exp`,
`sqrt` and division are the device's; where its `exp` is too coarse, or it has nothing as exact as
f32 is, polynomials stand here. The largest error of each is asserted in
tests/codegen/gpu/test_functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import Expr, number, op, select
from smalti.codegen.polynomials import (
    COSINE,
    LN2_HIGH,
    LN2_LOW,
    LOG,
    PI_HALVES,
    SINE,
    SMALLEST,
    TANH_LIMIT,
    TANH_OVER,
    TANH_UNDER,
)

EXP_LIMIT = 176.0
"""Beyond it, e^x is neither 0 nor infinite in f32 for certain."""
HUGE = 1e18
"""From here on asinh and acosh are log(2 x): 1 is nothing beside x^2, which still is finite."""
ERF = (7.853857808e-5, -8.010192550e-4, 5.188327563e-3, -2.685381187e-2, 0.11283585147,
       -0.37612625824, 1.12837916573)
"""Of erf(x) / x in x^2 up to 1, minimax."""
LOG_ERFC = (-2.168685006e-5, 4.413363785e-4, -4.204561882e-3, 2.520825676e-2, -0.10841857737,
            -0.63321989305, -1.12957842429, 1.88040235e-4)
"""Of log(1 - erf(x)) from 1 on, minimax in the error of erf."""
ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
SINH = (1 / 362880, 1 / 5040, 1 / 120, 1 / 6)
"""Of (f(x) - x) / x^3 in x^2, highest power first: atan up to tan(pi / 8) and asin up to 1/2
(Cephes, `atanf` and `asinf`), and the series of Taylor for sinh."""


def multiply_add(x: Expr, y: Expr, z: Expr) -> Expr:
    """x * y + z."""
    return op("fma", x, y, z)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial of x with the given coefficients, highest power first (Horner)."""
    result: Expr = number(coefficients[0], x.type)
    for coefficient in coefficients[1:]:
        result = op("fma", result, x, coefficient)
    return result


def nan(x: Expr) -> Expr:
    """Whether x is NaN, asked of its bits: compilers may take for granted that no number is."""
    return (x.bits("u32") & 0x7FFFFFFF) > 0x7F800000


def _no_number(x: Expr) -> Expr:
    return (x.bits("u32") | 0x7FC00000).bits("f32")


def _rounded(b: Builder, x: Expr) -> Expr:
    """x, which no compiler puts together with what it is used in: some rearrange sums, but not
    through bits."""
    return b.let(x.bits("u32").bits("f32"))


def _with_sign(size: Expr, x: Expr) -> Expr:
    """`size`, which is not negative, with the sign of x.

    Not as (size & 0x7FFFFFFF) | (x & 0x80000000): LLVM 19 under lavapipe of Mesa 26.1 makes numbers
    of neither sign of single values of that.
    """
    return (size.bits("u32") ^ (x.bits("u32") & 0x80000000)).bits("f32")


def _within(x: Expr, low: float, high: float) -> Expr:
    """x, or the nearer limit; NaN stays."""
    return select(x > high, number(high, x.type), select(x < low, number(low, x.type), x))


def _scaled(x: Expr, n: Expr) -> Expr:
    """x 2^n for whole numbers n from -126 to 127."""
    return x * ((n.to("i32") + 127) << 23).bits("f32")


def exp(b: Builder, x: Expr) -> Expr:
    """e^x, within 5 ulp; infinite where that exceeds f32, and 0 far below."""
    x = b.let(_within(x, -EXP_LIMIT, EXP_LIMIT))
    n = b.let(op("round", x * (1 / math.log(2))))
    rest = op("fma", n, -LN2_LOW, op("fma", n, -LN2_HIGH, x))
    half = b.let(op("floor", n * 0.5))
    return _scaled(_scaled(op("exp2", rest * (1 / math.log(2))), half), n - half)


def log(b: Builder, x: Expr) -> Expr:
    """Natural logarithm, within 2 ulp, or 1e-7 next to 1 (Cephes, logf)."""
    small = b.let(x < SMALLEST)
    bits = b.let(select(small, x * 2.0 ** 23, x).bits("i32"))
    mantissa = b.let(((bits & 0x7FFFFF) | 0x3F000000).bits("f32"))
    low = b.let(mantissa < math.sqrt(0.5))
    shift = select(small, number(-23.0, x.type), number(0.0, x.type))
    n = ((bits >> 23) - 126).to("f32") + shift
    n = b.let(n - select(low, number(1.0, x.type), number(0.0, x.type)))
    m = b.let(mantissa + select(low, mantissa, number(0.0, x.type)) - 1.0)
    square = b.let(m * m)
    series = op("fma", n, LN2_LOW, polynomial(m, LOG) * m * square)
    series = op("fma", square, -0.5, series) + m
    found = select(x.equals(math.inf), x, op("fma", n, LN2_HIGH, series))
    found = select(x.equals(0.0), number(-math.inf, x.type), found)
    return select((x < 0.0) | nan(x), _no_number(x), found)


def _log_of_one_and(b: Builder, x: Expr) -> Expr:
    """log(1 + x) for x >= 0: what rounding takes from the sum is given back."""
    whole = _rounded(b, x + 1.0)
    added = b.let(whole - 1.0)
    exact = log(b, whole) * (x / added)
    return select(added.equals(0.0), x, select(whole.equals(math.inf), whole, exact))


def sigmoid(b: Builder, x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return 1.0 / (op("exp", -x) + 1.0)


def silu(b: Builder, x: Expr) -> Expr:
    """x / (1 + e^-x)."""
    return x / (op("exp", -x) + 1.0)


def quick_gelu(b: Builder, x: Expr) -> Expr:
    """x / (1 + e^(-1.702 x))."""
    return x / (op("exp", x * -1.702) + 1.0)


def gelu_tanh(b: Builder, x: Expr) -> Expr:
    """x (1 + tanh(u)) / 2 = x / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    scale = -2 * math.sqrt(2 / math.pi)
    cubic = op("fma", x * x, 0.044715 * scale, number(scale, x.type))
    return x / (op("exp", cubic * x) + 1.0)


def erf(b: Builder, x: Expr) -> Expr:
    """Error function, within 3 ulp: x P(x^2) up to 1, then 1 - e^Q(|x|)."""
    size = b.let(op("abs", x))
    near = polynomial(b.let(x * x), ERF) * x
    far = _with_sign(1.0 - op("exp", polynomial(size, LOG_ERFC)), x)
    return select(size < 1.0, near, select(nan(x), x, far))


def gelu(b: Builder, x: Expr) -> Expr:
    """x (1 + erf(x / sqrt 2)) / 2."""
    half = b.let(x * 0.5)
    return op("fma", half, erf(b, b.let(x * math.sqrt(0.5))), half)


def tanh(b: Builder, x: Expr) -> Expr:
    """Hyperbolic tangent, within 5 ulp where it is above 1e-30 (minimax, degree 13 over 6)."""
    x = b.let(_within(x, -TANH_LIMIT, TANH_LIMIT))
    square = b.let(x * x)
    return polynomial(square, TANH_OVER) * x / polynomial(square, TANH_UNDER)


def _quarters(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """The sine and cosine of what is left of |x| < 8192 beside quarters of a turn, and their number
    (Cody & Waite)."""
    n = b.let(op("round", x * (2 / math.pi)))
    rest = x
    for part in PI_HALVES:
        rest = _rounded(b, op("fma", n, -part, rest))
    square = b.let(rest * rest)
    sine = op("fma", polynomial(square, SINE) * square, rest, rest)
    return b.let(sine), b.let(polynomial(square, COSINE)), b.let(n.to("i32"))


def _sine(b: Builder, x: Expr, quarter: int) -> Expr:
    """sin(x + quarter * pi / 2) for |x| < 8192, absolute error below 1e-6."""
    sine, cosine, turns = _quarters(b, x)
    turns = b.let(turns + quarter)
    value = b.let(select((turns & 1).equals(1), cosine, sine))
    return select((turns & 2).equals(2), -value, value)


def tan(b: Builder, x: Expr) -> Expr:
    """Tangent for |x| < 8192."""
    sine, cosine, turns = _quarters(b, x)
    odd = b.let((turns & 1).equals(1))
    return select(odd, -cosine, sine) / select(odd, sine, cosine)


def sinh(b: Builder, x: Expr) -> Expr:
    """Hyperbolic sine: x + x^3 P(x^2) up to 1, then (e^|x| - e^-|x|) / 2."""
    square = b.let(x * x)
    near = op("fma", polynomial(square, SINH) * square, x, x)
    e = b.let(exp(b, b.let(op("abs", x) * 0.5)))
    far = _with_sign(e * 0.5 * e - 0.5 / e / e, x)
    return select(op("abs", x) < 1.0, near, select(nan(x), x, far))


def cosh(b: Builder, x: Expr) -> Expr:
    """Hyperbolic cosine: (e^|x| + e^-|x|) / 2."""
    e = b.let(exp(b, b.let(op("abs", x) * 0.5)))
    return e * 0.5 * e + 0.5 / e / e


def atan(b: Builder, x: Expr) -> Expr:
    """Arc tangent (Cephes, atanf)."""
    size = b.let(op("abs", x))
    far, middle = b.let(size > 2.414213562373095), b.let(size > 0.4142135623730950)
    t = b.let(select(far, -1.0 / size, select(middle, (size - 1.0) / (size + 1.0), size)))
    first = select(far, number(math.pi / 2, x.type), select(
        middle, number(math.pi / 4, x.type), number(0.0, x.type)))
    square = b.let(t * t)
    series = op("fma", polynomial(square, ATAN) * square, t, t)
    return select(nan(x), x, _with_sign(first + series, x))


def _arc_sine(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether |x| <= 1 / 2, and the arc sine of |x| there, else of sqrt((1 - |x|) / 2)."""
    size = b.let(op("abs", x))
    near = b.let(size <= 0.5)
    square = b.let(select(near, size * size, 0.5 - 0.5 * size))
    t = b.let(select(near, size, op("sqrt", op("max", square, 0.0))))
    return near, b.let(op("fma", polynomial(square, ASIN) * square, t, t)), b.let(size <= 1.0)


def asin(b: Builder, x: Expr) -> Expr:
    """Arc sine (Cephes, asinf); NaN beyond 1."""
    near, arc, real = _arc_sine(b, x)
    found = select(near, arc, op("fma", arc, -2.0, number(math.pi / 2, x.type)))
    return select(real, _with_sign(found, x), _no_number(x))


def acos(b: Builder, x: Expr) -> Expr:
    """Arc cosine; NaN beyond 1."""
    near, arc, real = _arc_sine(b, x)
    below = b.let(x < 0.0)
    beside = math.pi / 2 - select(below, -arc, arc)
    beyond = select(below, math.pi - 2.0 * arc, 2.0 * arc)
    return select(real, select(near, beside, beyond), _no_number(x))


def asinh(b: Builder, x: Expr) -> Expr:
    """Inverse hyperbolic sine."""
    size = b.let(op("abs", x))
    square = b.let(size * size)
    sum_of_both = size + square / (op("sqrt", square + 1.0) + 1.0)
    near = _log_of_one_and(b, b.let(sum_of_both))
    far = log(b, size) + math.log(2)
    return select(nan(x), x, _with_sign(select(size < HUGE, near, far), x))


def acosh(b: Builder, x: Expr) -> Expr:
    """Inverse hyperbolic cosine; NaN below 1."""
    above = b.let(op("max", x - 1.0, 0.0))
    near = _log_of_one_and(b, b.let(above + op("sqrt", above * (above + 2.0))))
    far = log(b, x) + math.log(2)
    return select(x >= 1.0, select(x < HUGE, near, far), _no_number(x))


def atanh(b: Builder, x: Expr) -> Expr:
    """Inverse hyperbolic tangent; NaN beyond 1."""
    size = b.let(op("abs", x))
    twice = _log_of_one_and(b, b.let(2.0 * size / (1.0 - size)))
    edge = select(size.equals(1.0), number(math.inf, x.type), twice * 0.5)
    return select(size <= 1.0, _with_sign(edge, x), _no_number(x))


def relu(b: Builder, x: Expr) -> Expr:
    """max(x, 0)."""
    return select(x < 0.0, number(0.0, x.type), x)


def larger(b: Builder, x: Expr, y: Expr) -> Expr:
    """max(x, y), NaN when one of them is."""
    return select((x > y) | nan(x), x, y)


def smaller(b: Builder, x: Expr, y: Expr) -> Expr:
    """min(x, y), NaN when one of them is."""
    return select((x < y) | nan(x), x, y)


def truth(condition: Expr, like: Expr) -> Expr:
    """1 where the condition holds, else 0."""
    return select(condition, number(1.0, like.type), number(0.0, like.type))


def _compared(name: str) -> Callable[..., Expr]:
    return lambda b, x, y: truth(op(name, x, y), x)


def is_nan(b: Builder, x: Expr) -> Expr:
    """1 where x is NaN, else 0."""
    return truth(nan(x), x)


def is_inf(b: Builder, x: Expr) -> Expr:
    """1 where x is infinite, else 0."""
    return truth((x.bits("u32") & 0x7FFFFFFF).equals(0x7F800000), x)


def where(b: Builder, condition: Expr, x: Expr, y: Expr) -> Expr:
    """x where the condition is not 0, else y."""
    return select(op("not_equal", condition, 0.0), x, y)


def sign(b: Builder, x: Expr) -> Expr:
    """1, 0, -1 or NaN."""
    one = _with_sign(number(1.0, x.type), x)
    return select((x > 0.0) | (x < 0.0), one, x)


def power(b: Builder, x: Expr, y: Expr) -> Expr:
    """x ** y = e^(y log |x|), with the sign of x where y is odd; its relative error is that of f32
    times y log |x|."""
    size = exp(b, b.let(y * b.let(log(b, b.let(op("abs", x))))))
    half = b.let(y * 0.5)
    odd = op("not_equal", half, op("floor", half))
    size = b.let(size)
    signed = select(op("equal", y, op("floor", y)), select(odd, -size, size), _no_number(x))
    found = select(x < 0.0, signed, size)
    at_zero = select(y < 0.0, number(math.inf, x.type), number(0.0, x.type))
    found = select(x.equals(0.0), at_zero, found)
    return select(y.equals(0.0), number(1.0, x.type), found)


def _instruction(name: str) -> Callable[..., Expr]:
    return lambda b, *arguments: op(name, *arguments)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    **{name: _instruction(name) for name in (
        "add", "sub", "mul", "div", "sqrt", "neg", "abs", "round", "floor", "ceil", "trunc")},
    "max": larger, "min": smaller, "relu": relu,
    "reciprocal": lambda b, x: 1.0 / x,
    "exp": exp, "sigmoid": sigmoid, "silu": silu, "quick_gelu": quick_gelu, "gelu": gelu,
    "gelu_tanh": gelu_tanh, "erf": erf, "tanh": tanh, "log": log, "pow": power, "sign": sign,
    "sin": lambda b, x: _sine(b, x, 0), "cos": lambda b, x: _sine(b, x, 1), "tan": tan,
    "sinh": sinh, "cosh": cosh, "asin": asin, "acos": acos, "atan": atan,
    "asinh": asinh, "acosh": acosh, "atanh": atanh,
    "equal": _compared("equal"), "less": _compared("less"),
    "less_or_equal": _compared("less_equal"), "greater": _compared("greater"),
    "greater_or_equal": _compared("greater_equal"),
    "is_nan": is_nan, "is_inf": is_inf, "where": where,
    "not": lambda b, x: truth(x.equals(0.0), x),
    "and": _instruction("min"), "or": _instruction("max"), "xor": _compared("not_equal"),
}
"""Truth values are 1 and 0."""
