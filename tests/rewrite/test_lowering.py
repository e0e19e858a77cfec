"""What no kernel computes, taken apart for a target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native_regions import LEVELS, check_graph

from smalti.codegen.cpu.functions import FUNCTIONS
from smalti.fuse.support import lacking
from smalti.graph import Graph, evaluate
from smalti.rewrite import rewrite

Make = Callable[[Graph], None]


def out(make: Callable[[Graph], object]) -> Make:
    return lambda g: g.output("y", make(g))


def pooled(operation: str, shape: tuple[int, ...], **attributes) -> Make:
    rank = len(shape) - 2
    return out(lambda g: g.apply(operation, g.input("x", shape), **{
        "dilations": (1,) * rank, **attributes}))


def transposed(shape: tuple[int, ...], kernel: int, stride: int, pad: int, extra: int) -> Make:
    rank = len(shape) - 2
    return out(lambda g: g.apply(
        "conv_transpose", g.input("x", shape), g.parameter("w", (shape[1], 5, *(kernel,) * rank)),
        g.parameter("b", (5,)), strides=(stride,) * rank, pads=(pad,) * (2 * rank),
        dilations=(1,) * rank, output_padding=(extra,) * rank))


def resampled(shape: tuple[int, ...], axis: int, after: int, taps: int) -> Make:
    rng = np.random.default_rng(after)
    places = rng.integers(-shape[axis], shape[axis], (after, taps))
    weights = rng.standard_normal((after, taps), np.float32)
    return out(lambda g: g.apply("resample", g.input("x", shape), g.constant(places),
                                 g.constant(weights), axis=axis))


def block(shape: tuple[int, ...], weight: tuple[int, ...], **attributes) -> Make:
    return out(lambda g: g.apply("conv", g.input("x", shape), g.parameter("w", weight),
                                 g.parameter("b", weight[:1]), **{
                                     "strides": (1, 1, 1), "dilations": (1, 1, 1), **attributes}))


CASES: dict[str, Make] = {
    "truth as numbers": out(lambda g: g.apply(
        "cast", g.apply("less", g.input("x", (3, 4)), g.input("z", (4,))), to="f32") * 2.0),
    "numbers as truth": out(lambda g: g.apply(
        "where", g.apply("cast", g.apply("relu", g.input("x", (3, 4))), to="bool"),
        g.input("z", (4,)), g.constant(1.0))),
    "pad": out(lambda g: g.apply("pad", g.input("x", (1, 3, 5, 6)),
                                 pads=(0, 0, 1, 2, 0, 1, 3, 0), value=2.5) * 2.0),
    "pad, conv": out(lambda g: g.apply(
        "conv", g.apply("pad", g.input("x", (1, 8, 5, 6)), pads=(0, 0, 0, 0, 0, 0, 1, 1)),
        g.parameter("w", (8, 8, 3, 3)), strides=(2, 2), pads=(1, 1, 0, 0))),
    "reflected": out(lambda g: g.apply("pad", g.input("x", (1, 3, 5, 6)),
                                       pads=(0, 0, 1, 2, 0, 0, 3, 0), mode="reflect") * 2.0),
    "edge": out(lambda g: g.apply("pad", g.input("x", (2, 30)), pads=(0, 12, 1, 20),
                                  mode="edge")),
    "around": out(lambda g: g.apply("pad", g.input("x", (3, 20, 4)), pads=(0, 9, 0, 0, 2, 1),
                                    mode="wrap")),
    "resampled rows": resampled((2, 3, 5, 4), 2, 8, 2),
    "resampled columns": resampled((2, 3, 5, 4), 3, 9, 4),
    "resampled line": resampled((2, 3, 5), -1, 7, 2),
    "block, a layer": block((2, 6, 4, 5, 7), (8, 6, 1, 3, 3), pads=(0, 1, 1, 0, 1, 1)),
    "block": block((1, 4, 5, 6, 7), (6, 4, 3, 3, 2), pads=(1, 1, 0, 1, 1, 1)),
    "block in steps": block((2, 4, 7, 6, 7), (6, 2, 3, 3, 3), pads=(1, 1, 1, 1, 1, 1), group=2,
                            strides=(2, 2, 1), dilations=(2, 1, 1)),
    "line": out(lambda g: g.apply(
        "conv", g.input("x", (2, 8, 11)), g.parameter("w", (6, 4, 3)), g.parameter("b", (6,)),
        strides=(2,), pads=(1, 0), dilations=(2,), group=2)),
    "minimum": out(lambda g: g.apply("reduce_min", g.input("x", (4, 5, 6)), axes=(1, 2),
                                     keepdims=0)),
    "three batch axes": out(lambda g: g.apply("mat_mul", g.input("x", (2, 3, 2, 4, 5)),
                                              g.input("z", (3, 1, 5, 6)))),
    "max of a line": pooled("max_pool", (2, 8, 11), kernel_shape=(3,), strides=(2,), pads=(1, 1)),
    "max of a block": pooled("max_pool", (2, 3, 6, 7, 8), kernel_shape=(3, 2, 3),
                             strides=(2, 1, 1), pads=(1, 0, 1, 1, 1, 1)),
    "mean of a block": pooled("average_pool", (2, 3, 6, 7, 8), kernel_shape=(3, 2, 3),
                              strides=(2, 1, 1), pads=(1, 0, 1, 1, 1, 1)),
    "mean with borders": pooled("average_pool", (2, 3, 6, 7, 8), kernel_shape=(3, 2, 3),
                                strides=(2, 2, 2), pads=(1, 0, 1, 1, 1, 1), ceil_mode=1,
                                count_include_pad=1),
    "transposed, no overlap": transposed((2, 6, 5, 4), 2, 2, 0, 0),
    "transposed, overlap": transposed((2, 6, 5, 4), 4, 2, 1, 0),
    "transposed, uneven": transposed((2, 6, 5, 4), 3, 2, 1, 1),
    "transposed, step 1": transposed((1, 6, 5, 4), 3, 1, 1, 0),
    "transposed line": transposed((2, 6, 5), 5, 3, 2, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_what_is_left_and_it_is_the_same(case: str) -> None:
    g = Graph(case)
    CASES[case](g)
    result = rewrite(g, lambda node: not lacking(node, FUNCTIONS))
    assert [node for node in g.nodes if lacking(node, FUNCTIONS)] or case == "pad, conv"
    assert not [node for node in result.nodes if lacking(node, FUNCTIONS)]
    rng = np.random.default_rng(0)
    inputs, parameters = ({name: rng.standard_normal(v.shape, np.float32)
                           for name, v in leaves.items()} for leaves in (g.inputs, g.parameters))
    expected = evaluate(g, inputs, parameters)["y"]
    np.testing.assert_allclose(evaluate(result, inputs, parameters)["y"], expected, rtol=1e-5,
                               atol=1e-5)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_it(case: str, name: str) -> None:
    g = Graph(case)
    CASES[case](g)
    check_graph(rewrite(g, lambda node: not lacking(node, FUNCTIONS)), name)


def test_windows_over_a_column_walk_a_row() -> None:
    g = Graph("column")
    y = g.apply("conv", g.input("x", (2, 6, 9, 1)), g.parameter("w", (4, 3, 3, 1)), group=2,
                strides=(2, 1), pads=(1, 0, 2, 0), dilations=(2, 1))
    g.output("y", g.apply("relu", y))
    result = rewrite(g)
    (conv,) = [node for node in result.nodes if node.operation.name == "conv"]
    assert conv.output.shape == (2, 4, 1, 4) and y.shape == (2, 4, 4, 1)
    check_graph(g, LEVELS[-1])
    check_graph(result, LEVELS[-1])


def test_other_dtypes_stay_whole() -> None:
    g = Graph("f64")
    g.output("y", g.apply("gelu", g.input("x", (3,), "f64")))
    g.output("z", g.apply("cast", g.input("i", (3,), "i64"), to="f32"))
    result = rewrite(g, lambda node: not lacking(node, FUNCTIONS))
    assert [node.operation.name for node in result.nodes] == ["gelu", "cast"]
