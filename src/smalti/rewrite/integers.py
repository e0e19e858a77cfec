"""Products of integers of 8 bits: in integers where the target has them, else in f32.

Products of real numbers that stand for integers, (integer - zero point) * scale, as quantised
models have them, are products of integers, too, where the target has them: scales follow the sums.

Sums of products are exact either way. In f32 they are where they have so few terms that f32 holds
them; longer ones are taken in parts that it holds, which are added as integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import Graph, Node, Value
from smalti.graph.operation import DTYPES
from smalti.graph.operations.contraction import FACTORS
from smalti.rewrite.rules import Made, Procedure

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


def at_once(g: Graph, node: Node, a: Value, b: Value, a_zero: Value, b_zero: Value) -> Value:
    """A product of integers that stand for real numbers by one of f32, which rounds its sums."""
    name = "conv" if node.operation.name == "conv_integer" else "mat_mul"
    return g.apply(name, centred(g, a, a_zero), centred(g, b, b_zero), **node.attributes)


WAYS: dict[str, Callable[..., Value | None]] = {"mat_mul_integer": in_f32, "conv_integer": in_f32}


# ---------------------------------------------------------------------- of quantised models


@dataclass(frozen=True)
class Dequantised:
    """Real numbers as (integers - zero) * scale; `zero` has one element, and `scale` broadcasts."""

    integers: Value
    zero: int
    scale: Value


def dequantised(value: Value, made: Made) -> Dequantised | None:
    """The integers that `value` stands for; None where it is anything else."""
    node = value.node
    if node is None or node.operation.name not in ("mul", "transpose"):
        return None
    if node.operation.name == "transpose":
        found, perm = dequantised(node.inputs[0], made), node.attributes["perm"]
        if found is None:
            return None
        scale = found.scale
        if scale.type.size > 1:
            full = scale.reshape(*(1,) * (len(perm) - len(scale.shape)), *scale.shape)
            scale = made(made(full).transpose(*perm))
        return Dequantised(made(found.integers.transpose(*perm)), found.zero, scale)
    for centre, scale in (node.inputs, node.inputs[::-1]):
        point, moved = 0.0, {"sub": 1, "add": -1}
        if any(_is(centre, name) for name in moved) and centre.node.inputs[1].kind == "constant":
            sign = moved[centre.node.operation.name]
            centre, zero = centre.node.inputs
            point = sign * float(zero.data.flat[0])
            if (zero.data != zero.data.flat[0]).any() or not point.is_integer():
                continue
        if _is(centre, "cast") and centre.node.inputs[0].dtype in FACTORS \
                and centre.shape == value.shape:
            integers = centre.node.inputs[0]
            limits = np.iinfo(DTYPES[integers.dtype])
            if limits.min <= point <= limits.max:
                return Dequantised(integers, int(point), scale)
    return None


def _is(value: Value, name: str) -> bool:
    return value.node is not None and value.node.operation.name == name


def _scale_of_results(x: Value, channels: int, of_images: bool) -> Value | None:
    """The scale of a weight, shaped to broadcast with the results; None if it is another one for
    numbers of a sum."""
    if x.type.size == 1:
        return x.reshape()
    last = (channels, 1, 1, 1) if of_images else (1, channels)
    fits = x.shape in (last, last[1:]) if not of_images else x.shape == last
    return x.reshape(*last[:3] if of_images else last[1:]) if fits else None


def raised(stands: Callable[[Node], bool]) -> Procedure:
    """The rule that makes a product of dequantised integers one of integers, where that `stands`
    for it on a target."""
    def applied(value: Value, made: Made) -> Value | None:
        g, node, images = value.graph, value.node, _is(value, "conv")
        a, b = (dequantised(factor, made) for factor in node.inputs[:2])
        if a is None or b is None or a.scale.type.size > 1:
            return None
        scale = _scale_of_results(b.scale, value.shape[1 if images else -1], images)
        if scale is None:
            return None
        zeros = [g.constant(each.zero, each.integers.dtype) for each in (a, b)]
        sums = g.apply("conv_integer" if images else "mat_mul_integer", a.integers, b.integers,
                       *zeros, **node.attributes)
        if not stands(sums.node):
            return None
        scale = made(made(a.scale.reshape()) * made(scale))
        result = made(made(g.apply("cast", made(sums), to="f32")) * scale)
        if len(node.inputs) == 3:
            bias = made(node.inputs[2].reshape(*node.inputs[2].shape, 1, 1))
            result = made(result + bias)
        return result

    return Procedure(("conv", "mat_mul"), applied)


def scaled_once(value: Value, made: Made) -> Value | None:
    """(sum * scale + bias) * number as sum * (scale * number) + bias * number, for a sum of
    products of integers, where scale and bias do not change from run to run, or
    (sum * scale) * number.

    So the result of a layer is divided by its own scale before a run.
    """
    factor, number = value.node.inputs
    if number.kind != "constant" or number.type.size > 1 or len(number.shape) > len(value.shape):
        return None
    bias = None
    if _is(factor, "add"):
        factor, bias = factor.node.inputs
    if not _is(factor, "mul") or factor.shape != value.shape:
        return None
    sums, scale = factor.node.inputs
    whole = _is(sums, "cast") and sums.node.inputs[0].node is not None \
        and sums.node.inputs[0].node.operation.name in ("conv_integer", "mat_mul_integer")
    if not whole or not all(is_steady(x) for x in (scale, bias) if x is not None):
        return None
    result = made(sums * made(scale * number))
    return result if bias is None else made(result + made(bias * number))


def is_steady(value: Value) -> bool:
    """True if `value` depends on parameters and constants only."""
    pending = [value]
    while pending:
        x = pending.pop()
        if x.kind == "input":
            return False
        pending.extend(x.node.inputs if x.node else ())
    return True


def of_bytes(graph: Graph) -> bool:
    """True if any value of `graph` is an integer of 8 bits."""
    return any(value.dtype in FACTORS for value in (
        *graph.inputs.values(), *graph.parameters.values(),
        *(node.output for node in graph.nodes)))
