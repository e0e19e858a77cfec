"""Products of integers of 8 bits: in integers where the target has them, else in f32.

Sums of products are exact either way. In f32 they are where they have so few terms that f32 holds
them; longer ones are taken in parts that it holds, which are added as integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from smalti.graph import Graph, Node, Value
from smalti.graph.operation import DTYPES

EXACT = 1 << 24
"""Up to here f32 holds every whole number."""
PARTS_MAX = 64
"""The most parts of a sum of products: those of 16,448 terms of 8 bits without any sign."""


def largest(x: Value, zero: Value) -> int:
    """The largest possible distance of an integer of `x` from its zero point."""
    limits = np.iinfo(DTYPES[x.dtype])
    if zero.kind != "constant":
        return int(limits.max) - int(limits.min)
    points = zero.data.astype(np.int64)
    return int(max(points.max() - int(limits.min), int(limits.max) - points.min()))


def terms_exact(a: Value, b: Value, a_zero: Value, b_zero: Value) -> int:
    """How many products of a and b, less their zero points, f32 sums exactly.

    >>> g = Graph()
    >>> a, b = g.input("a", (2, 3), "u8"), g.input("b", (3, 4), "i8")
    >>> terms_exact(a, b, g.constant(128, "u8"), g.constant(0, "i8"))
    1024
    """
    return EXACT // (largest(a, a_zero) * largest(b, b_zero))


def centred(g: Graph, x: Value, zero: Value) -> Value:
    """Integers `x` minus their zero point, as f32."""
    wide = g.apply("cast", x, to="f32")
    if zero.kind == "constant" and not zero.data.any():
        return wide
    return wide - g.apply("cast", zero, to="f32")


def in_f32(g: Graph, node: Node, a: Value, b: Value, a_zero: Value, b_zero: Value) -> Value | None:
    """A product of integers by products of f32; None where it has too many parts."""
    images = node.operation.name == "conv_integer"
    name, window = ("conv", math.prod(b.shape[2:])) if images else ("mat_mul", 1)
    row, column = (1, 1) if images else (len(a.shape) - 1, len(b.shape) - 2)
    count = b.shape[column]
    step = min(count, terms_exact(a, b, a_zero, b_zero) // window)
    if not step or -(-count // step) > PARTS_MAX \
            or step < count and images and node.attributes["group"] > 1:
        return None
    left, right = centred(g, a, a_zero), centred(g, b, b_zero)
    sums = []
    for start in range(0, count, step):
        factors = [x if step == count else g.apply(
            "slice", x, axis=axis, start=start, end=min(count, start + step))
            for x, axis in ((left, row), (right, column))]
        sums.append(g.apply("cast", g.apply(name, *factors, **node.attributes), to="i32"))
    return functools.reduce(Value.__add__, sums)


WAYS: dict[str, Callable[..., Value | None]] = {"mat_mul_integer": in_f32, "conv_integer": in_f32}
