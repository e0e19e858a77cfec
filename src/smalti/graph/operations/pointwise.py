"""Operations that compute each element from the elements at the same place (with broadcasting)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.graph.operation import Type, broadcast, define


def _broadcast_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    return broadcast(*types)


def pointwise(name: str, meaning: Callable[..., np.ndarray], inputs: int = 1, flops: int = 1,
              commutative: bool = False, decompose: Callable[..., Any] | None = None) -> None:
    """Define an operation that costs `flops` for each element of its result."""
    define(name=name, inputs=(inputs, inputs), pointwise=True, shape=_broadcast_rule,
           meaning=meaning, flops=lambda types, result, attributes: flops * result.size,
           commutative=commutative, decompose=decompose)


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


pointwise("neg", np.negative)
pointwise("abs", np.abs)
pointwise("exp", np.exp)
pointwise("sin", np.sin)
pointwise("cos", np.cos)
pointwise("sqrt", np.sqrt)
pointwise("reciprocal", np.reciprocal)
pointwise("tanh", np.tanh)
pointwise("erf", erf)
pointwise("sigmoid", sigmoid, flops=3)
pointwise("relu", lambda x: np.maximum(x, 0))

pointwise("add", np.add, inputs=2, commutative=True)
pointwise("sub", np.subtract, inputs=2)
pointwise("mul", np.multiply, inputs=2, commutative=True)
pointwise("div", np.divide, inputs=2)
pointwise("max", np.maximum, inputs=2, commutative=True)
pointwise("min", np.minimum, inputs=2, commutative=True)

pointwise("silu", lambda x: x * sigmoid(x), flops=4,
          decompose=lambda g, x: x * g.apply("sigmoid", x))
pointwise("quick_gelu", lambda x: x * sigmoid(1.702 * x), flops=5,
          decompose=lambda g, x: x * g.apply("sigmoid", x * 1.702))
pointwise("gelu", lambda x: 0.5 * x * (1 + erf(x * np.float32(math.sqrt(0.5)))), flops=5,
          decompose=lambda g, x: x * 0.5 * (g.apply("erf", x * math.sqrt(0.5)) + 1.0))
pointwise("gelu_tanh", gelu_tanh, flops=8,
          decompose=lambda g, x: x * 0.5 * (g.apply("tanh", (
              x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0))
