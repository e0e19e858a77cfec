"""Element by element. Truth is 1 and 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from smalti.export.ggml import layout
from smalti.export.ggml.builder import GgmlBuilder, Lowering, NotExportable, scalar
from smalti.export.ggml.code import Tensor, call
from smalti.graph import Node, Value

UNARY = {
    "neg": "ggml_neg", "abs": "ggml_abs", "exp": "ggml_exp", "log": "ggml_log", "sin": "ggml_sin",
    "cos": "ggml_cos", "sqrt": "ggml_sqrt", "tanh": "ggml_tanh", "sigmoid": "ggml_sigmoid",
    "relu": "ggml_relu", "floor": "ggml_floor", "ceil": "ggml_ceil", "sign": "ggml_sgn",
    "silu": "ggml_silu", "gelu": "ggml_gelu_erf", "gelu_tanh": "ops::gelu_tanh",
    "quick_gelu": "ops::quick_gelu", "erf": "ops::erf", "not": "ops::logical_not",
    "is_nan": "ops::is_nan", "is_inf": "ops::is_inf",
}
BINARY = {"add": "ggml_add", "sub": "ggml_sub", "mul": "ggml_mul", "div": "ggml_div"}
FULL = {"max": "ops::max", "min": "ops::min", "mod": "ops::mod", "fmod": "ops::fmod",
        "and": "ggml_mul"}
"""Of operands that have the shape of the result."""
QUESTIONS = {"greater": ("ops::above_zero", False), "less": ("ops::above_zero", True),
             "greater_or_equal": ("ops::not_below_zero", False),
             "less_or_equal": ("ops::not_below_zero", True), "equal": ("ops::is_zero", False),
             "xor": ("ggml_abs", False)}
"""Comparisons: the function of `ops.h` that is applied to x - y, or to y - x where it says True."""
CASTS = ("f32", "f16", "bf16", "i32", "i64", "bool")
POWER_MAX = 8
"""Powers up to this are products; larger ones go through the logarithm."""
LARGEST = float(np.finfo(np.float32).max)
"""What infinities in a constant branch of `where` become: branches are multiplied by 0 and 1, and 0
times infinity would be NaN."""


def _unary(b: GgmlBuilder, node: Node) -> Tensor:
    return _of(UNARY[node.operation.name], b.tensor(node.inputs[0]))


def _of(function: str, x: Tensor, *more: Tensor | float) -> Tensor:
    """The result of a function that leaves the shape of `x`."""
    return Tensor(call(function, "ctx", x, *more), x.dims)


# ---------------------------------------------------------------------- two operands

def _binary(b: GgmlBuilder, node: Node) -> Tensor:
    x, y = node.inputs
    return combined(b, node.operation.name, x, y, node.output.shape)


def combined(b: GgmlBuilder, name: str, x: Value, y: Value, result: layout.Shape) -> Tensor:
    """x + y, x - y, x * y or x / y. ggml broadcasts its second operand to the first."""
    by_number = _with_number(b, name, x, y)
    if by_number is not None:
        return by_number
    size = math.prod(result)
    if name in ("add", "mul") and x.type.size != size and y.type.size == size:
        x, y = y, x
    first, second = b.tensor(x), b.tensor(y)
    shapes = layout.aligned([x.shape, y.shape], result)
    if shapes is None:
        first, second = b.expanded(first, x.shape, result), b.expanded(second, y.shape, result)
        shapes = [layout.dimensions(result)] * 3
    elif math.prod(shapes[0]) != size:
        first, shapes[0] = b.expanded(first, x.shape, result), shapes[2]
    code = call(BINARY[name], "ctx", first.shaped(*shapes[0]), second.shaped(*shapes[1]))
    return Tensor(code, shapes[2])


def _with_number(b: GgmlBuilder, name: str, x: Value, y: Value) -> Tensor | None:
    """The result where one operand is a constant of one element, as far as ggml can scale by it."""
    left, right = scalar(x), scalar(y)
    if right is not None:
        factor, offset = {"add": (1.0, right), "sub": (1.0, -right), "mul": (right, 0.0),
                          "div": (1 / right if right else math.inf, 0.0)}[name]
        operand = b.tensor(x)
    elif left is not None and name != "div":
        factor, offset = {"add": (1.0, left), "sub": (-1.0, left), "mul": (left, 0.0)}[name]
        operand = b.tensor(y)
    else:
        return None
    if not math.isfinite(factor) or not math.isfinite(offset):
        return None
    if offset == 0:
        return _of("ggml_scale", operand, factor)
    return _of("ggml_scale_bias", operand, factor, offset)


def _question(b: GgmlBuilder, node: Node) -> Tensor:
    function, turned = QUESTIONS[node.operation.name]
    x, y = reversed(node.inputs) if turned else node.inputs
    return _of(function, b.let(combined(b, "sub", x, y, node.output.shape)))


def _or(b: GgmlBuilder, node: Node) -> Tensor:
    x, y = node.inputs
    return _of("ops::above_zero", b.let(combined(b, "add", x, y, node.output.shape)))


def _full(b: GgmlBuilder, node: Node) -> Tensor:
    operands = [b.tensor(value) for value in node.inputs]
    return _alike(b, node, FULL[node.operation.name], operands)


def _alike(b: GgmlBuilder, node: Node, function: str, operands: Sequence[Tensor]) -> Tensor:
    """The result of a function whose operands have the shape of the result."""
    result = node.output.shape
    dims = layout.dimensions(result)
    full = [b.let(b.expanded(tensor, value.shape, result)).shaped(*dims)
            for tensor, value in zip(operands, node.inputs, strict=True)]
    return Tensor(call(function, "ctx", *full), dims)


def _where(b: GgmlBuilder, node: Node) -> Tensor:
    """ggml multiplies both branches by 0 or 1, so both have to be finite.

    Constant infinities become the largest numbers, and a branch that is taken where it is a number
    has 0 where it is none.
    """
    condition, *branches = node.inputs
    operands = [b.tensor(condition)]
    for place, value in enumerate(branches):
        tensor = b.tensor(value)
        asked = condition.node
        if value.kind == "constant" and not np.isfinite(value.data.astype(np.float32)).all():
            data = value.data.astype(np.float32)
            tensor = b.constant(np.clip(data, -LARGEST, LARGEST), "branch")
        elif place == 1 and asked is not None and asked.operation.name == "is_nan" \
                and asked.inputs[0] is value:
            tensor = b.let(_of("ops::numbers", tensor), hint="numbers")
        operands.append(tensor)
    return _alike(b, node, "ops::where", operands)


def _extreme(b: GgmlBuilder, node: Node) -> Tensor:
    x, y = node.inputs
    if scalar(x) is not None:
        x, y = y, x
    limit = scalar(y)
    if limit is None:
        return _full(b, node)
    low, high = _limits(node.operation.name, limit)
    if x.node is not None and x.node.operation.name in ("max", "min"):  # between two numbers
        inner, *others = sorted(x.node.inputs, key=lambda value: scalar(value) is not None)
        if others and (bound := scalar(others[0])) is not None:
            lower, upper = _limits(x.node.operation.name, bound)
            if max(low, lower) <= min(high, upper):
                x, low, high = inner, max(low, lower), min(high, upper)
    return _of("ops::clamp", b.tensor(x), low, high)


def _limits(name: str, number: float) -> tuple[float, float]:
    """Between what max(x, number), or min, lies."""
    return (number, math.inf) if name == "max" else (-math.inf, number)


def _pow(b: GgmlBuilder, node: Node) -> Tensor:
    x, exponent = b.tensor(node.inputs[0]), scalar(node.inputs[1])
    if exponent is None:
        raise NotExportable("the exponent is computed; a constant is expected")
    if exponent == 0.5:
        return _of("ggml_sqrt", x)
    whole = exponent == int(exponent) and 0 < exponent <= POWER_MAX
    if not whole:
        return _of("ggml_exp", _of("ggml_scale", _of("ggml_log", x), exponent))
    result = x
    for bit in bin(int(exponent))[3:]:
        result = b.let(_of("ggml_sqr", result), hint="square")
        if bit == "1":
            result = b.let(_of("ggml_mul", result, x), hint="power")
    return result


# ---------------------------------------------------------------------- others

def _reciprocal(b: GgmlBuilder, node: Node) -> Tensor:
    x = b.tensor(node.inputs[0])
    return _of("ggml_div", _of("ggml_repeat", b.constant(np.ones(1), "one"), x).shaped(*x.dims), x)


def _cast(b: GgmlBuilder, node: Node) -> Tensor:
    (value,), to = node.inputs, node.output.dtype
    x, kind = b.tensor(value), b.dtype(node.output)
    if to not in CASTS:
        raise NotExportable(f"to {to}; one of {', '.join(CASTS)} is expected")
    if kind != x.dtype:
        x = Tensor(call("ggml_cast", "ctx", x, f"GGML_TYPE_{kind.upper()}"), x.dims, kind)
    if to == "bool" and value.dtype != "bool":
        x = _of("ops::is_not_zero", b.let(x))
    return x


def _spelled(function: Callable[[Tensor], Tensor]) -> Lowering:
    return lambda b, node: function(b.tensor(node.inputs[0]))


def _half(x: Tensor) -> Tensor:
    return _of("ggml_scale", x, 0.5)


def _exponentials(x: Tensor) -> tuple[Tensor, Tensor]:
    return _of("ggml_exp", x), _of("ggml_exp", _of("ggml_neg", x))


POINTWISE: dict[str, Lowering] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(QUESTIONS, _question),
    **dict.fromkeys(FULL, _full),
    "max": _extreme, "min": _extreme, "or": _or, "where": _where, "pow": _pow,
    "reciprocal": _reciprocal, "cast": _cast,
    "tan": _spelled(lambda x: _of("ggml_div", _of("ggml_sin", x), _of("ggml_cos", x))),
    "sinh": _spelled(lambda x: _half(_of("ggml_sub", *_exponentials(x)))),
    "cosh": _spelled(lambda x: _half(_of("ggml_add", *_exponentials(x)))),
}
