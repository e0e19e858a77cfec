"""Graphs of one reduction, which every target is tested with."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.graph import Graph, Value

OPERATIONS = ("reduce_sum", "reduce_mean", "reduce_max")


def reduced(shape: Sequence[int], axes: Sequence[int], name: str = "reduce_sum", keepdims: int = 1,
            before: str = "", behind: str = "") -> Graph:
    """A reduction of x, between the operations before and behind it."""
    g = Graph("reduction")
    x = g.input("x", tuple(shape))
    if before == "silu":
        x = g.apply("silu", x * 2.0)
    elif before == "turned":
        x = x.transpose(*reversed(range(len(shape))))
    elif before == "scaled":
        x = x * g.parameter("s", tuple(shape[-1:]))
    y: Value = g.apply(name, x, axes=tuple(axes), keepdims=keepdims)
    if behind == "relu":
        y = g.apply("relu", y * 3.0 - 1.0)
    elif behind == "residual":
        y = g.apply("tanh", y) + g.input("r", y.shape)
    g.output("y", y)
    return g
