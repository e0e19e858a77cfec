"""Pointwise functions on vector registers: the row of each operation that CPUs compute.

Each takes registers and returns a new one. NaN in gives NaN out. Polynomials are Taylor or minimax
ones; the largest error against float64 over the whole range stands beside each, in units in the
last place or absolute, and is asserted in tests/codegen/cpu/test_functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from smalti.codegen.cpu.assembler import Assembler, Condition
from smalti.codegen.cpu.operands import Address, Register
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
from smalti.kernel.form import Call, Const, Expr, Load

CONSTANTS_VECTORS_MIN = 32
"""Of so many vector registers some are left for constants beside the values of a loop."""
EXP_MIN, EXP_MAX = -87.3, 88.3
"""Arguments of exp are held within these: e^x is then a normal f32."""
EXP2 = {3: (0.07802452147006989, 0.22606715559959412, 0.6958335638046265, 0.9999251961708069),
        5: (0.0018775766948238015, 0.00898933969438076, 0.05582631751894951, 0.24015361070632935,
            0.6931530833244324, 0.9999999403953552)}
"""Polynomials for 2^x from 0 to 1 by their degree, minimax in the relative error, highest power
first."""
ERF, ERF_P = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429), 0.3275911
"""An approximation of erf, with an error of 1.5e-7 (Abramowitz & Stegun, 7.1.26)."""


def polynomial(asm: Assembler, x: Register, coefficients) -> Register:
    """The polynomial of x with the given coefficients, highest power first (Horner)."""
    result = asm.load_constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = asm.fused(result, x, asm.constant(coefficient))
    return result


def _exponential(asm: Assembler, x: Register, low: float, high: float
                 ) -> tuple[Register, Register]:
    """r and a whole n with e^x = r 2^n, within 3 ulp; of the nearer limit where x is beyond one."""
    x = asm.result("min", asm.load_constant(high), x)
    x = asm.result("max", asm.load_constant(low), x)
    n = asm.result("round", asm.result("mul", x, asm.constant(1 / math.log(2))))
    rest = asm.result("copy", x)
    asm.op("fma_negative", rest, n, asm.constant(LN2_HIGH))
    asm.op("fma_negative", rest, n, asm.constant(LN2_LOW))
    return polynomial(asm, rest, [1 / math.factorial(k) for k in range(6, -1, -1)]), n


def _scaled(asm: Assembler, x: Register, n: Register) -> Register:
    """x 2^n for whole numbers n from -126 to 127."""
    power = asm.result("add_int", asm.result("to_int", n), asm.integers([127] * asm.level.lanes))
    return asm.result("mul", x, asm.result("shift_left_int", power, 23))


def exp(asm: Assembler, x: Register) -> Register:
    """e^x, within 3 ulp; infinite where that exceeds f32, and 0 far below."""
    series, n = _exponential(asm, x, 2 * EXP_MIN, 2 * EXP_MAX)
    half = asm.result("floor", asm.result("mul", n, asm.constant(0.5)))
    return _scaled(asm, _scaled(asm, series, half), asm.result("sub", n, half))


def bounded_exp(asm: Assembler, x: Register) -> Register:
    """e^x, within 3 ulp; below -87.3 and above 88.3 it is the value there."""
    return _scaled(asm, *_exponential(asm, x, EXP_MIN, EXP_MAX))


def exp2_coefficients(asm: Assembler, degree: int) -> list[Register | Address]:
    """What `exp2` works with: in registers where there are enough of them to keep it there."""
    if asm.level.vectors < CONSTANTS_VECTORS_MIN:
        return [asm.constant(c) for c in EXP2[degree]]
    return [asm.load_constant(c) for c in EXP2[degree]]


def exp2(asm: Assembler, x: Register, coefficients: Sequence[Register | Address]) -> Register:
    """2^x for x <= 127, within 3 ulp (degree 5) or 1e-4 of itself (degree 3); 0 far below 0,
    where the least is 2^-126 without an instruction that scales by powers."""
    first, *others = coefficients
    if asm.level.wide:
        rest = asm.result("fraction", x)  # x - floor(x)
    else:
        x = asm.result("max", asm.load_constant(-126.0), x)
        whole = asm.result("floor", x)
        rest = asm.result("sub", x, whole)
    series = asm.result("copy" if isinstance(first, Register) else "load", first)
    for coefficient in others:
        series = asm.fused(series, rest, coefficient)
    if asm.level.wide:
        return asm.result("scale_by_power", series, x)
    power = asm.result("add_int", asm.result("to_int", whole),
                       asm.integers([127] * asm.level.lanes))
    return asm.result("mul", series, asm.result("shift_left_int", power, 23))


def negative(asm: Assembler, x: Register) -> Register:
    """-x."""
    return asm.result("xor", x, asm.constant(-0.0))


def absolute(asm: Assembler, x: Register) -> Register:
    """|x|."""
    return asm.result("and", x, asm.integers([0x7FFFFFFF] * asm.level.lanes))


def reciprocal(asm: Assembler, x: Register) -> Register:
    """1 / x, correctly rounded."""
    return asm.result("div", asm.load_constant(1.0), x)


def sigmoid(asm: Assembler, x: Register) -> Register:
    """1 / (1 + e^-x)."""
    e = bounded_exp(asm, negative(asm, x))
    return reciprocal(asm, asm.result("add", e, asm.constant(1.0)))


def silu(asm: Assembler, x: Register) -> Register:
    """x / (1 + e^-x)."""
    e = bounded_exp(asm, negative(asm, x))
    return asm.result("div", x, asm.result("add", e, asm.constant(1.0)))


def quick_gelu(asm: Assembler, x: Register) -> Register:
    """x / (1 + e^(-1.702 x))."""
    e = bounded_exp(asm, asm.result("mul", x, asm.constant(-1.702)))
    return asm.result("div", x, asm.result("add", e, asm.constant(1.0)))


def gelu_tanh(asm: Assembler, x: Register) -> Register:
    """x (1 + tanh(u)) / 2 = x / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    scale = -2 * math.sqrt(2 / math.pi)
    square = asm.result("mul", x, x)
    cubic = asm.multiply_add(square, asm.load_constant(0.044715 * scale), asm.constant(scale))
    e = bounded_exp(asm, asm.result("mul", cubic, x))
    return asm.result("div", x, asm.result("add", e, asm.constant(1.0)))


def erf(asm: Assembler, x: Register) -> Register:
    """Error function, absolute error below 5e-7 (Abramowitz & Stegun 1964, 7.1.26)."""
    size = absolute(asm, x)
    t = reciprocal(asm, asm.multiply_add(size, asm.load_constant(ERF_P), asm.constant(1.0)))
    series = asm.result("mul", polynomial(asm, t, ERF[::-1]), t)
    square = negative(asm, asm.result("mul", x, x))
    result = asm.load_constant(1.0)
    asm.op("fma_negative", result, series, bounded_exp(asm, square))
    sign = asm.result("and", x, asm.constant(-0.0))
    return asm.result("or", result, sign)


def gelu(asm: Assembler, x: Register) -> Register:
    """x (1 + erf(x / sqrt 2)) / 2."""
    half = asm.result("mul", x, asm.constant(0.5))
    error = erf(asm, asm.result("mul", x, asm.constant(math.sqrt(0.5))))
    return asm.multiply_add(half, error, half)


def tanh(asm: Assembler, x: Register) -> Register:
    """Hyperbolic tangent, within 5 ulp where it is above 1e-30 (minimax, degree 13 over 6)."""
    x = asm.result("min", asm.load_constant(TANH_LIMIT), x)
    x = asm.result("max", asm.load_constant(-TANH_LIMIT), x)
    square = asm.result("mul", x, x)
    over = asm.result("mul", polynomial(asm, square, TANH_OVER), x)
    return asm.result("div", over, polynomial(asm, square, TANH_UNDER))


def _sine(asm: Assembler, x: Register, quarter: int) -> Register:
    """sin(x + quarter * pi / 2) for |x| < 8192, absolute error below 1e-6 (Cody & Waite)."""
    lanes = asm.level.lanes
    n = asm.result("round", asm.result("mul", x, asm.constant(2 / math.pi)))
    rest = asm.result("copy", x)
    for part in PI_HALVES:
        asm.op("fma_negative", rest, n, asm.constant(part))
    square = asm.result("mul", rest, rest)
    sine = polynomial(asm, square, SINE)
    sine = asm.multiply_add(asm.result("mul", sine, square), rest, rest)
    cosine = polynomial(asm, square, COSINE)
    turn = asm.result("add_int", asm.result("to_int", n), asm.integers([quarter] * lanes))
    odd = asm.result("and", turn, asm.integers([1] * lanes))
    odd = asm.result("mul_int", odd, asm.integers([-1] * lanes))
    value = asm.result("or", asm.result("and", cosine, odd), asm.result("and_not", odd, sine))
    flip = asm.result("and", turn, asm.integers([2] * lanes))
    return asm.result("xor", value, asm.result("shift_left_int", flip, 30))


def sin(asm: Assembler, x: Register) -> Register:
    """Sine."""
    return _sine(asm, x, 0)


def cos(asm: Assembler, x: Register) -> Register:
    """Cosine."""
    return _sine(asm, x, 1)


def relu(asm: Assembler, x: Register) -> Register:
    """max(x, 0)."""
    return asm.result("max", asm.zero(), x)


def _compared(condition: Condition) -> Callable[..., Register]:
    """1 where a and b are as the condition says, else 0."""
    def compare(asm: Assembler, a: Register, b: Register) -> Register:
        return asm.where(condition, a, b, asm.load_constant(1.0), asm.zero())

    return compare


def where(asm: Assembler, condition: Register, x: Register, y: Register) -> Register:
    """x where the condition is not 0, else y."""
    return asm.where("not_equal", condition, asm.zero(), x, y)


def negation(asm: Assembler, x: Register) -> Register:
    """1 where x is 0, else 0."""
    return _compared("equal")(asm, x, asm.zero())


def is_nan(asm: Assembler, x: Register) -> Register:
    """1 where x is NaN, else 0."""
    return _compared("unordered")(asm, x, x)


def is_inf(asm: Assembler, x: Register) -> Register:
    """1 where x is infinite, else 0."""
    return _compared("equal")(asm, absolute(asm, x), asm.load_constant(math.inf))


def sign(asm: Assembler, x: Register) -> Register:
    """1, 0, -1 or NaN."""
    size = asm.where("not_equal", x, asm.zero(), asm.load_constant(1.0), asm.zero())
    signed = asm.result("or", size, asm.result("and", x, asm.constant(-0.0)))
    return asm.where("unordered", x, x, x, signed)


def log(asm: Assembler, x: Register) -> Register:
    """Natural logarithm, within 2 ulp, or 1e-7 next to 1 (Cephes, logf)."""
    lanes, least = asm.level.lanes, asm.load_constant(SMALLEST)
    scaled = asm.result("mul", x, asm.constant(2.0 ** 23))
    y = asm.where("less", x, least, scaled, x)
    shift = asm.where("less", x, least, asm.load_constant(-23.0), asm.zero())
    power = asm.result("add_int", asm.result("shift_right_int", y, 23),
                       asm.integers([-126] * lanes))
    mantissa = asm.result("or", asm.result("and", y, asm.integers([0x7FFFFF] * lanes)),
                          asm.constant(0.5))
    n = asm.result("add", asm.result("from_int", power), shift)
    root = asm.load_constant(math.sqrt(0.5))
    n = asm.result("sub", n, asm.where("less", mantissa, root, asm.load_constant(1.0), asm.zero()))
    m = asm.result("sub", asm.result("add", mantissa, asm.where(
        "less", mantissa, root, mantissa, asm.zero())), asm.load_constant(1.0))
    square = asm.result("mul", m, m)
    series = asm.result("mul", asm.result("mul", polynomial(asm, m, LOG), m), square)
    asm.op("fma", series, n, asm.load_constant(LN2_LOW))
    asm.op("fma", series, square, asm.load_constant(-0.5))
    series = asm.result("add", series, m)
    asm.op("fma", series, n, asm.load_constant(LN2_HIGH))
    infinity = asm.load_constant(math.inf)
    series = asm.where("equal", x, infinity, x, series)
    series = asm.where("equal", x, asm.zero(), asm.load_constant(-math.inf), series)
    return asm.where("not_greater_equal", x, asm.zero(), asm.load_constant(math.nan), series)


def power(asm: Assembler, x: Register, y: Register) -> Register:
    """x ** y = e^(y log |x|), with the sign of x where y is odd; its relative error is that of f32
    times y log |x|."""
    zero, one = asm.zero(), asm.load_constant(1.0)
    result = exp(asm, asm.result("mul", y, log(asm, absolute(asm, x))))
    half = asm.result("mul", y, asm.constant(0.5))
    odd = asm.where("not_equal", half, asm.result("floor", half), asm.load_constant(-0.0), zero)
    signed = asm.where("equal", y, asm.result("floor", y), asm.result("or", result, odd),
                       asm.load_constant(math.nan))
    result = asm.where("less", x, zero, signed, result)
    at_zero = asm.where("less", y, zero, asm.load_constant(math.inf), zero)
    result = asm.where("equal", x, zero, at_zero, result)
    return asm.where("equal", y, zero, one, result)


def _unary(name: str) -> Callable[..., Register]:
    return lambda asm, x: asm.result(name, x)


def _binary(name: str) -> Callable[..., Register]:
    return lambda asm, a, b: asm.result(name, a, b)


FUNCTIONS: dict[str, Callable[..., Register]] = {
    "add": _binary("add"), "sub": _binary("sub"), "mul": _binary("mul"), "div": _binary("div"),
    "max": lambda asm, a, b: asm.larger(a, b), "min": lambda asm, a, b: asm.smaller(a, b),
    "sqrt": _unary("sqrt"),
    "neg": negative, "abs": absolute, "reciprocal": reciprocal, "relu": relu,
    "exp": exp, "sigmoid": sigmoid, "silu": silu, "quick_gelu": quick_gelu, "gelu": gelu,
    "gelu_tanh": gelu_tanh, "erf": erf, "tanh": tanh, "sin": sin, "cos": cos,
    "log": log, "pow": power, "sign": sign,
    "round": _unary("round"), "floor": _unary("floor"), "ceil": _unary("ceil"),
    "trunc": _unary("trunc"),
    "equal": _compared("equal"), "less": _compared("less"),
    "less_or_equal": _compared("less_equal"),
    "greater": _compared("greater"), "greater_or_equal": _compared("greater_equal"),
    "is_nan": is_nan, "is_inf": is_inf, "where": where, "not": negation,
    "and": _binary("and"), "or": _binary("or"), "xor": _binary("xor"),
}
"""Truth values are 1 and 0, on which bits and numbers agree."""


def evaluate(asm: Assembler, expr: Expr, load: Callable[[Load], Register],
             known: dict[Expr, Register]) -> Register:
    """The value of a scalar expression in every lane; `load` gives what it reads.

    `known` keeps what has been computed, so that what occurs twice is computed once.
    """
    if expr in known:
        return known[expr]
    if isinstance(expr, Const):
        result = asm.load_constant(expr.value)
    elif isinstance(expr, Load):
        result = load(expr)
    elif expr.function == "add" and isinstance(expr.arguments[0], Call) \
            and expr.arguments[0].function == "mul":
        a, b = (evaluate(asm, e, load, known) for e in expr.arguments[0].arguments)
        result = asm.multiply_add(a, b, evaluate(asm, expr.arguments[1], load, known))
    elif (bound := _bound(expr)) is not None:
        number, other = (evaluate(asm, e, load, known) for e in bound)
        result = asm.result(expr.function, number, other)  # the second one where one is NaN
    else:
        arguments = [evaluate(asm, e, load, known) for e in expr.arguments]
        result = FUNCTIONS[expr.function](asm, *arguments)
    known[expr] = result
    return result


def _bound(expr: Call) -> tuple[Const, Expr] | None:
    """The number that bounds the other argument of a max or min."""
    if expr.function in ("max", "min"):
        for number, other in (expr.arguments, expr.arguments[::-1]):
            if isinstance(number, Const) and not math.isnan(number.value):
                return number, other
    return None
