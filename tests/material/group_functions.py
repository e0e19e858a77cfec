"""Pointwise functions as group programs: their domains, how exact they are, and what they give."""

from __future__ import annotations

import math

import numpy as np

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.codegen.gpu.interpreter import run
from smalti.graph import OPERATIONS
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu

LARGEST, SMALLEST, DENORMAL = 3.4028235e38, 1.1754944e-38, 1e-45
_erf = np.vectorize(math.erf, otypes=[np.float64])


def computed(name: str, *operands: np.ndarray, lanes: int = 1,
             gpu: Gpu | None = None) -> np.ndarray:
    """What a group program computes of f32 operands, on a device or in the interpreter."""
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
    held = {f"x{i}": a for i, a in enumerate(padded)}
    found = (launched(gpu, program, held) if gpu else run(program, held))["y"][:count]
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


UNITS = [
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
]
"""name, lowest and highest operand, the function, its error in units in the last place."""
ABSOLUTE = [
    ("log", 0.9, 1.2, np.log, 2e-8),
    ("gelu", -20, 5, lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), 5e-7),
    ("gelu_tanh", -20, 5, gelu_tanh, 1e-6),
    ("quick_gelu", -40, 5, lambda x: x * sigmoid(1.702 * x), 1e-6),
]
"""name, lowest and highest operand, the function, its absolute error."""
