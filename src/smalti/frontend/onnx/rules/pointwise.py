"""Operators that compute each element from the elements at the same place."""

from __future__ import annotations

import functools

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.tensors import dtype_of
from smalti.graph import Value
from smalti.graph.operation import FLOATS

SAME = {
    "Neg": "neg", "Abs": "abs", "Exp": "exp", "Sin": "sin", "Cos": "cos", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Tanh": "tanh", "Erf": "erf", "Sigmoid": "sigmoid",
    "Relu": "relu", "Log": "log", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Sign": "sign", "Tan": "tan", "Sinh": "sinh", "Cosh": "cosh", "Asin": "asin", "Acos": "acos",
    "Atan": "atan", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div",
    "Not": "not", "IsNaN": "is_nan", "And": "and", "Or": "or", "Xor": "xor", "Equal": "equal",
    "Less": "less", "LessOrEqual": "less_or_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_or_equal", "Where": "where",
    "BitwiseNot": "bitwise_not", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}
"""ONNX operators that are the same as an operation: same operands, same meaning, no attributes."""


@rule(*SAME)
def same(call: NodeCall) -> Value:
    return call.apply(SAME[call.operator], *(call[i] for i in range(len(call.operands))))


@rule("Max", "Min", "Sum", "Mean")
def variadic(call: NodeCall) -> Value:
    operation = {"Max": "max", "Min": "min"}.get(call.operator, "add")
    values = [call[i] for i in range(max(1, len(call.operands)))]
    total = functools.reduce(lambda a, b: call.apply(operation, a, b), values)
    return total / float(len(values)) if call.operator == "Mean" else total


@rule("Pow")
def power(call: NodeCall) -> Value:
    x, y = call[0], call[1]
    if y.kind == "constant" and y.data.size == 1 and x.dtype in FLOATS \
            and len(y.shape) <= len(x.shape):
        exponent = float(y.data.reshape(())[()])
        if exponent in (1, 2, 3):
            return functools.reduce(lambda a, b: a * b, [x] * int(exponent))
        if exponent in (0.5, -1):
            return call.apply("sqrt" if exponent == 0.5 else "reciprocal", x)
    if y.dtype == x.dtype:
        return call.apply("pow", x, y)
    if x.dtype not in FLOATS and y.dtype in FLOATS:
        wide = [call.apply("cast", v, to="f64") for v in (x, y)]
        return call.apply("cast", call.apply("pow", *wide), to=x.dtype)
    return call.apply("pow", x, call.apply("cast", y, to=x.dtype))


@rule("Mod")
def modulo(call: NodeCall) -> Value:
    return call.apply("fmod" if call.integer("fmod") else "mod", call[0], call[1])


@rule("IsInf")
def is_infinite(call: NodeCall) -> Value:
    found = call.apply("is_inf", call[0])
    for name, side in (("detect_negative", "less"), ("detect_positive", "greater")):
        if not call.integer(name):
            zero = call.constant(0, call[0].dtype)
            other = "greater" if side == "less" else "less"
            found = call.apply("and", found, call.apply(other, call[0], zero))
    return found


@rule("BitShift")
def bit_shift(call: NodeCall) -> Value:
    direction = call.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise InputError(f"direction {direction!r}; LEFT or RIGHT is expected")
    return call.apply("bit_shift", call[0], call[1], direction=direction)


@rule("Clip")
def clip(call: NodeCall) -> Value:
    x = call[0]
    for i, (name, operation) in enumerate((("min", "max"), ("max", "min")), 1):
        bound = call.optional(i)
        if bound is None and name in call:
            bound = call.constant(call.number(name), x.dtype)
        if bound is not None:
            x = call.apply(operation, x, bound)
    return x


@rule("Gelu")
def gelu(call: NodeCall) -> Value:
    spelling = call.text("approximate")
    return call.apply("gelu_tanh" if spelling == "tanh" else "gelu", call[0])


@rule("Swish")
def swish(call: NodeCall) -> Value:
    alpha = call.number("alpha", 1.0)
    if alpha == 1:
        return call.apply("silu", call[0])
    return call[0] * call.apply("sigmoid", call[0] * alpha)


@rule("LeakyRelu", "PRelu")
def leaky_relu(call: NodeCall) -> Value:
    x = call[0]
    zero = call.constant(0, x.dtype)
    slope = call[1] if call.operator == "PRelu" else call.constant(call.number("alpha"), x.dtype)
    if x.dtype not in FLOATS:
        return call.apply("where", call.apply("less", x, zero), x * slope, x)
    if call.operator == "LeakyRelu" and 0 < call.number("alpha") <= 1:
        return call.apply("max", x, x * slope)
    return call.apply("relu", x) + call.apply("min", x, zero) * slope


def wide(call: NodeCall, x: Value) -> Value:
    """`x` widened to f32 if it is shorter, so that results are rounded once."""
    return call.apply("cast", x, to="f32") if x.dtype in ("f16", "bf16") else x


def narrow(call: NodeCall, y: Value) -> Value:
    """`y` in the dtype of the operand."""
    return y if y.dtype == call[0].dtype else call.apply("cast", y, to=call[0].dtype)


@rule("Elu", "Selu", "Celu")
def elu(call: NodeCall) -> Value:
    x, alpha = wide(call, call[0]), call.number("alpha", 1.0)
    inner = x / alpha if call.operator == "Celu" else x
    below = call.apply("exp", call.apply("min", inner, call.constant(0, x.dtype))) - 1.0
    result = call.apply("relu", x) + below * alpha
    return narrow(call, result * call.number("gamma") if call.operator == "Selu" else result)


@rule("HardSigmoid", "HardSwish")
def hard_sigmoid(call: NodeCall) -> Value:
    x = wide(call, call[0])
    alpha, beta = call.number("alpha", 1 / 6), call.number("beta", 0.5)
    line = call.apply("max", x * alpha + beta, call.constant(0, x.dtype))
    gate = call.apply("min", line, call.constant(1, x.dtype))
    return narrow(call, x * gate if call.operator == "HardSwish" else gate)


def softplus_of(call: NodeCall, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), without overflow."""
    small = call.apply("exp", call.apply("neg", call.apply("abs", x)))
    return call.apply("relu", x) + call.apply("log", small + 1.0)


@rule("Softplus", "Mish")
def softplus(call: NodeCall) -> Value:
    x = wide(call, call[0])
    result = softplus_of(call, x)
    return narrow(call, x * call.apply("tanh", result) if call.operator == "Mish" else result)


@rule("Softsign")
def softsign(call: NodeCall) -> Value:
    return call[0] / (call.apply("abs", call[0]) + 1.0)


@rule("ThresholdedRelu")
def thresholded_relu(call: NodeCall) -> Value:
    x = call[0]
    above = call.apply("greater", x, call.constant(call.number("alpha"), x.dtype))
    return call.apply("where", above, x, call.constant(0, x.dtype))


@rule("Shrink")
def shrink(call: NodeCall) -> Value:
    x, bias, edge = call[0], call.number("bias"), call.number("lambd")
    if x.dtype not in FLOATS and (bias != int(bias) or edge != int(edge)):
        raise Unsupported(f"bias {bias} and lambd {edge} are no whole numbers, as {x.dtype} are")
    low, high = (call.constant(v, x.dtype) for v in (-edge, edge))
    zero = call.constant(0, x.dtype)
    below = call.apply("where", call.apply("less", x, low), x + bias, zero)
    return call.apply("where", call.apply("greater", x, high), x - bias, below)


@rule("Identity", "Dropout")
def identity(call: NodeCall) -> list[Value | None]:
    training = call.operator == "Dropout" and call.version >= 12 \
        and bool(np.any(call.known_or(2, False)))
    if training and float(np.max(call.known_or(1, 0.5))) != 0:
        raise Unsupported("it drops elements at random, as in training")
    if not call.wants(1):
        return [call[0]]
    keep = call.constant(np.ones((), bool))
    return [call[0], call.apply("expand", keep, shape=call[0].shape)]


@rule("Cast", "CastLike")
def cast(call: NodeCall) -> Value:
    to = call[1].dtype if call.operator == "CastLike" else dtype_of(call.integer("to"), call.where)
    if call[0].dtype == to:
        return call[0]
    return call.apply("cast", call[0], to=to, saturate=call.integer("saturate", 1),
                      round_mode=call.text("round_mode", "up"))


@rule("BitCast")
def bit_cast(call: NodeCall) -> Value:
    return call.apply("bit_cast", call[0], to=dtype_of(call.integer("to"), call.where))


@rule("Trilu")
def triangle(call: NodeCall) -> Value:
    x = call[0]
    if len(x.shape) < 2:
        raise InputError(f"{x.type} is no matrix")
    offset = call.known_integers(1, (0,))[0]
    rows, columns = x.shape[-2:]
    offset = max(-rows - 1, min(columns + 1, offset))
    row = call.constant(call.counted(rows)[:, None] + offset, "i64")
    column = call.constant(call.counted(columns), "i64")
    upper = bool(call.integer("upper"))
    inside = call.apply("greater_or_equal" if upper else "less_or_equal", column, row)
    return call.apply("where", inside, x, call.constant(0, x.dtype))


