"""Half precision: f32 between what is given and what is asked for, whatever the graph says."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.graph import Graph, evaluate, verify
from smalti.graph.operation import DTYPES
from smalti.rewrite.halves import HALVES, widened


def model(dtype: str) -> Graph:
    """Halves in everything that a graph has: a layer, a cast up and down, indices, other dtypes."""
    g = Graph("half")
    x, rows = g.input("x", (2, 3, 8), dtype), g.input("rows", (2, 3), "i64")
    w, table = g.parameter("w", (8, 8), dtype), g.parameter("table", (5, 8), dtype)
    y = g.apply("mat_mul", x, w) + g.apply("gather", table, rows)
    squares = g.apply("cast", y, to="f32")
    mean = g.apply("reduce_mean", squares * squares, axes=(-1,))
    y = y * g.apply("cast", g.apply("reciprocal", g.apply("sqrt", mean + 1e-5)), to=dtype)
    y = g.apply("where", g.apply("greater", y, g.constant(0.5, dtype)), y, y * g.constant(
        np.arange(8) / 8, dtype))
    g.output("y", y)
    g.output("best", g.apply("arg_max", y, axis=-1))
    g.output("sum", g.apply("cum_sum", y, axis=1))
    g.output("bits", g.apply("bit_cast", x, to="i16"))
    g.output("given", x)
    g.output("constant", g.constant(2.5, dtype))
    return g


@pytest.mark.parametrize("dtype", HALVES)
def test_the_same_values_within_what_rounding_makes(dtype: str) -> None:
    graph = model(dtype)
    wide, parameters = widened(graph)
    verify(wide, "widened")
    rng = np.random.default_rng(3)
    kind = DTYPES[dtype]
    given = {"x": rng.standard_normal((2, 3, 8)).astype(kind), "rows": rng.integers(0, 5, (2, 3))}
    weights = {"w": rng.standard_normal((8, 8)).astype(kind),
               "table": rng.standard_normal((5, 8)).astype(kind)}
    expected = evaluate(graph, given, weights)
    found = evaluate(wide, given, {n: a.astype(np.float32) for n, a in weights.items()})
    assert parameters == {"w": dtype, "table": dtype}
    allowed = 3e-3 if dtype == "f16" else 3e-2
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        if name in ("y", "sum"):
            error = np.abs(found[name].astype(np.float64) - array).max()
            assert error < allowed * np.abs(array.astype(np.float64)).max(), name
        else:
            np.testing.assert_array_equal(found[name], array)


def test_nothing_overflows_between_two_operations() -> None:
    g = Graph("large")
    x = g.input("x", (4,), "f16")
    g.output("y", g.apply("sqrt", x * x))
    x = np.array([1, 300, 60000, -5], np.float16)
    (wide, _) = widened(g)
    np.testing.assert_array_equal(evaluate(wide, {"x": x}, {})["y"], np.abs(x))
    dtypes = [node.output.dtype for node in wide.nodes]
    assert dtypes == ["f32", "f32", "f32", "f16"]


def test_a_graph_without_halves_stays_what_it_is() -> None:
    g = Graph("plain")
    g.output("y", g.input("x", (2,)) + 1.0)
    assert widened(g) == (g, {})
