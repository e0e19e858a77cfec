"""Products of integers on targets that have none: products of f32, as exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.fuse.support import INTEGER_PRODUCTS
from smalti.graph import Graph, Node, evaluate
from smalti.rewrite import rewrite


def computes(node: Node) -> bool:
    """What a target without products of integers has kernels for."""
    return node.operation.name not in INTEGER_PRODUCTS


def product(depth: int, a_zero: int = 250) -> Graph:
    """A product of bytes with a zero point."""
    g = Graph("product")
    a, b = g.input("a", (3, depth), "u8"), g.input("b", (depth, 4), "i8")
    g.output("y", g.apply("mat_mul_integer", a, b, g.constant(a_zero, "u8"), g.constant(0, "i8")))
    return g


def bytes_for(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 256, value.shape).astype(np.uint8).view(
        {"u8": np.uint8, "i8": np.int8}[value.dtype]) for name, value in graph.inputs.items()}


@pytest.mark.parametrize("depth, parts", [(40, 1), (2000, 4)])
def test_long_sums_are_taken_in_parts(depth: int, parts: int) -> None:
    g = product(depth)
    lowered = rewrite(g, computes)
    assert [node.operation.name for node in lowered.nodes].count("mat_mul") == parts
    arrays = bytes_for(g)
    assert np.array_equal(evaluate(lowered, arrays, {})["y"], evaluate(g, arrays, {})["y"])


def test_very_long_sums_stay_as_they_are() -> None:
    assert [n.operation.name for n in rewrite(product(40_000), computes).nodes] == [
        "mat_mul_integer"]


@given(st.integers(1, 600), st.integers(0, 255), st.integers(-128, 127), st.sampled_from([1, 2]),
       st.integers(1, 3))
def test_convolutions_are_the_same(channels: int, x_zero: int, w_zero: int, group: int,
                                   window: int) -> None:
    g = Graph("convolution")
    x = g.input("x", (1, channels * group, 4, 3), "u8")
    w = g.input("w", (2, channels, window, window), "i8")
    g.output("y", g.apply("conv_integer", x, w, g.constant(x_zero, "u8"),
                          g.constant(w_zero, "i8"), group=group, pads=(1, 0, 1, 1)))
    arrays = bytes_for(g)
    found = evaluate(rewrite(g, computes), arrays, {})["y"]
    assert np.array_equal(found, evaluate(g, arrays, {})["y"])
