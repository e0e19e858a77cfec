"""Operations that compute each element from the elements at the same place (with broadcasting)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import DTYPES, REQUIRED, ShapeRule, Type, broadcast, define


def _broadcast_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    return broadcast(*types)


def _question_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    return Type(broadcast(*types).shape, "bool")


def _where_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    condition, x, y = types
    if condition.dtype != "bool":
        raise InputError(f"where asks {condition}; a bool is expected")
    result = broadcast(x, y)
    return Type(broadcast(Type(condition.shape, result.dtype), result).shape, result.dtype)


def pointwise(name: str, meaning: Callable[..., np.ndarray], inputs: int = 1, flops: int = 1,
              commutative: bool = False, decompose: Callable[..., Any] | None = None,
              shape: ShapeRule = _broadcast_rule, attributes: Mapping[str, Any] | None = None
              ) -> None:
    """Define a pointwise operation, which costs `flops` for each element of its result."""
    define(name=name, inputs=(inputs, inputs), pointwise=True, shape=shape,
           meaning=meaning, flops=lambda types, result, attributes: flops * result.size,
           commutative=commutative, decompose=decompose, attributes=attributes or {})


def question(name: str, meaning: Callable[..., np.ndarray], inputs: int = 1,
             commutative: bool = False) -> None:
    """Define a pointwise operation whose result is bool, such as `less`."""
    pointwise(name, meaning, inputs, commutative=commutative, shape=_question_rule)


def in_f32(meaning: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """`meaning` computed in f32 for operands of f16 or bf16, so that the result is rounded once."""
    def wide(x: np.ndarray) -> np.ndarray:
        halves = (np.float16, DTYPES["bf16"])
        return meaning(x.astype(np.float32)).astype(x.dtype) if x.dtype in halves else meaning(x)
    return wide


_erf = np.vectorize(math.erf, otypes=[np.float32])


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, element by element."""
    return _erf(x) if np.size(x) else np.asarray(x, np.float32)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x ** 3)
    return 0.5 * x * (1 + np.tanh(inner))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y; of integers rounded towards 0, and 0 where y is 0."""
    if not np.issubdtype(np.result_type(x), np.integer):
        return np.divide(x, y)
    quotient = np.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x))


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x ** y; of integers rounded towards 0."""
    if np.issubdtype(np.result_type(x), np.integer) and np.any(np.asarray(y) < 0):
        return np.trunc(np.power(x.astype(np.float64), y)).astype(x.dtype)
    return np.power(x, y)


def shift(x: np.ndarray, y: np.ndarray, *, direction: str) -> np.ndarray:
    """The bits of x shifted by y to the LEFT or RIGHT; shifts by all bits or more leave none."""
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


pointwise("neg", np.negative)
pointwise("abs", np.abs)
pointwise("exp", np.exp)
pointwise("sin", np.sin)
pointwise("cos", np.cos)
pointwise("sqrt", np.sqrt)
pointwise("reciprocal", np.reciprocal)
pointwise("tanh", np.tanh)
pointwise("erf", erf)
pointwise("sigmoid", in_f32(sigmoid), flops=3)
pointwise("relu", lambda x: np.maximum(x, 0))
pointwise("log", np.log)
pointwise("floor", np.floor)
pointwise("ceil", np.ceil)
pointwise("round", np.rint)
pointwise("trunc", np.trunc)
pointwise("sign", np.sign)
pointwise("tan", np.tan)
pointwise("sinh", np.sinh)
pointwise("cosh", np.cosh)
pointwise("asin", np.arcsin)
pointwise("acos", np.arccos)
pointwise("atan", np.arctan)
pointwise("asinh", np.arcsinh)
pointwise("acosh", np.arccosh)
pointwise("atanh", np.arctanh)

pointwise("add", np.add, inputs=2, commutative=True)
pointwise("sub", np.subtract, inputs=2)
pointwise("mul", np.multiply, inputs=2, commutative=True)
pointwise("div", divide, inputs=2)
pointwise("pow", power, inputs=2)
pointwise("mod", np.mod, inputs=2)
pointwise("fmod", np.fmod, inputs=2)
pointwise("max", np.maximum, inputs=2, commutative=True)
pointwise("min", np.minimum, inputs=2, commutative=True)

question("not", np.logical_not)
question("is_nan", np.isnan)
question("is_inf", np.isinf)
question("and", np.logical_and, inputs=2, commutative=True)
question("or", np.logical_or, inputs=2, commutative=True)
question("xor", np.logical_xor, inputs=2, commutative=True)
question("equal", np.equal, inputs=2, commutative=True)
question("less", np.less, inputs=2)
question("less_or_equal", np.less_equal, inputs=2)
question("greater", np.greater, inputs=2)
question("greater_or_equal", np.greater_equal, inputs=2)
pointwise("where", np.where, inputs=3, shape=_where_rule)

pointwise("bitwise_not", np.invert)
pointwise("bitwise_and", np.bitwise_and, inputs=2, commutative=True)
pointwise("bitwise_or", np.bitwise_or, inputs=2, commutative=True)
pointwise("bitwise_xor", np.bitwise_xor, inputs=2, commutative=True)
pointwise("bit_shift", shift, inputs=2, attributes={"direction": REQUIRED})

pointwise("silu", in_f32(lambda x: x * sigmoid(x)), flops=4,
          decompose=lambda g, x: x * g.apply("sigmoid", x))
pointwise("quick_gelu", in_f32(lambda x: x * sigmoid(1.702 * x)), flops=5,
          decompose=lambda g, x: x * g.apply("sigmoid", x * 1.702))
pointwise("gelu", in_f32(lambda x: 0.5 * x * (1 + erf(x * np.float32(math.sqrt(0.5))))), flops=5,
          decompose=lambda g, x: x * 0.5 * (g.apply("erf", x * math.sqrt(0.5)) + 1.0))
pointwise("gelu_tanh", in_f32(gelu_tanh), flops=8,
          decompose=lambda g, x: x * 0.5 * (g.apply("tanh", (
              x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0))
