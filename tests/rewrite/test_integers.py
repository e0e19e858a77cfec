"""Products of integers on targets that have none: products of f32, as exact."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.fuse.support import INTEGER_PRODUCTS
from smalti.graph import Graph, Node, Value, evaluate
from smalti.graph.operation import DTYPES
from smalti.rewrite import rewrite


def computes(node: Node) -> bool:
    """What a target without products of integers has kernels for."""
    return node.operation.name not in INTEGER_PRODUCTS


def long_product(depth: int, a_zero: int = 250) -> Graph:
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
    g = long_product(depth)
    lowered = rewrite(g, computes)
    assert [node.operation.name for node in lowered.nodes].count("mat_mul") == parts
    arrays = bytes_for(g)
    assert np.array_equal(evaluate(lowered, arrays, {})["y"], evaluate(g, arrays, {})["y"])


def test_very_long_sums_stay_as_they_are() -> None:
    assert [n.operation.name for n in rewrite(long_product(40_000), computes).nodes] == [
        "mat_mul_integer"]


@examples(15)
@given(st.integers(1, 400), st.integers(0, 255), st.integers(-128, 127), st.sampled_from([1, 2]),
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


def everything(node: Node) -> bool:
    """What a target with products of integers computes."""
    return True


def dequantised(g: Graph, x: Value, scale: float | Value, zero: int = 0) -> Value:
    """Integers as the real numbers that they stand for, as an ONNX file has them."""
    real = g.apply("cast", x, to="f32")
    return (real - g.constant(float(zero)) if zero else real) * (
        g.constant(scale) if isinstance(scale, float) else scale)


def convolution(group: int = 1) -> Graph:
    """A convolution of dequantised integers with a bias, a scale for each channel."""
    g = Graph("quantised")
    x, w = g.input("x", (2, 16, 5, 5), "u8"), g.input("w", (6, 16 // group, 3, 3), "i8")
    scales = g.input("s", (6,)).reshape(6, 1, 1, 1)
    g.output("y", g.apply("conv", dequantised(g, x, 0.25, 7), dequantised(g, w, scales),
                          g.input("b", (6,)), pads=(1, 1, 1, 1), group=group))
    return g


def product(turned: bool = False, scales: tuple[int, ...] = (6,)) -> Graph:
    """A product of dequantised integers; `turned` as Gemm has its second factor, transposed."""
    g = Graph("quantised")
    a, b = g.input("a", (4, 16), "i8"), g.input("b", (6, 16) if turned else (16, 6), "i8")
    s = g.input("s", scales)
    real = dequantised(g, b, s.reshape(*scales, 1) if turned else s)
    g.output("y", g.apply("mat_mul", dequantised(g, a, 0.5, -3), real.transpose(1, 0)
                          if turned else real))
    return g


QUANTISED = {"conv": convolution(), "groups": convolution(2), "product": product(),
             "turned": product(True), "one scale": product(scales=()),
             "a row of scales": product(scales=(1, 6))}


@pytest.mark.parametrize("case", QUANTISED)
def test_products_of_dequantised_integers_are_of_integers(case: str) -> None:
    graph = QUANTISED[case]
    found = rewrite(graph, everything)
    names = [node.operation.name for node in found.nodes]
    assert sum(name in INTEGER_PRODUCTS for name in names) == 1
    assert not {"conv", "mat_mul"} & set(names)
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(0, 100, value.shape).astype(DTYPES[value.dtype])
              for name, value in graph.inputs.items()}
    np.testing.assert_allclose(evaluate(found, arrays, {})["y"],
                               evaluate(graph, arrays, {})["y"], rtol=1e-5)


@pytest.mark.parametrize("scales", [(16, 1), (16, 6)])
def test_scales_inside_of_a_sum_stay_there(scales: tuple[int, ...]) -> None:
    names = [node.operation.name for node in rewrite(product(scales=scales), everything).nodes]
    assert "mat_mul" in names and "mat_mul_integer" not in names


def test_where_no_kernel_multiplies_integers_products_stay() -> None:
    names = [node.operation.name for node in rewrite(convolution(), computes).nodes]
    assert "conv" in names and "conv_integer" not in names


@pytest.mark.parametrize("steady", [True, False])
def test_the_scale_of_the_next_layer_is_part_of_the_scale(steady: bool) -> None:
    """Where the scales are known before a run."""
    g = Graph("layer")
    x, w = g.input("x", (1, 16, 5, 5), "u8"), g.parameter("w", (6, 16, 3, 3), "i8")
    make = g.parameter if steady else g.input
    y = g.apply("conv", dequantised(g, x, 0.25), dequantised(g, w, make("s", (6, 1, 1, 1))),
                g.parameter("b", (6,)))
    g.output("y", g.apply("round", y * g.constant(3.0)))
    found = rewrite(g, everything)
    rounded = found.outputs["y"].node.inputs[0]
    assert rounded.node.operation.name == ("add" if steady else "mul")
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(0, 100, value.shape).astype(DTYPES[value.dtype])
              for name, value in (*g.inputs.items(), *g.parameters.items())}
    inputs, parameters = ({name: arrays[name] for name in names}
                          for names in (g.inputs, g.parameters))
    np.testing.assert_allclose(evaluate(found, inputs, parameters)["y"],
                               evaluate(g, inputs, parameters)["y"], rtol=1e-5)
