"""Random valid graphs for property tests, small enough to be read when one fails."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from smalti.errors import InputError
from smalti.graph import Graph, Value

UNARY = ("neg", "abs", "sin", "cos", "tanh", "erf", "sigmoid", "relu", "silu", "quick_gelu", "gelu",
         "gelu_tanh")
BINARY = ("add", "sub", "mul", "max", "min")
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1.702, 0.70710678)
NODES_MAX = 10


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph of bounded values: two inputs, a parameter, constants, one to three outputs."""
    g = Graph(draw(st.text(max_size=8)))
    values = [g.input("x", (2, 3)), g.input("y", (3,)), g.parameter("block.w", (2, 3)),
              g.constant(draw(st.sampled_from(NUMBERS)))]
    for _ in range(draw(st.integers(1, NODES_MAX))):
        with g.scope(draw(st.sampled_from(["", "a", 'a."b"\\']))):
            values.append(_node(draw, g, values))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    for number, value in enumerate([*outputs, values[-1]]):
        g.output(f"out {number}", value)
    return g


def _node(draw: st.DrawFn, g: Graph, values: list[Value]) -> Value:
    x = draw(st.sampled_from(values))
    rank, size = len(x.shape), x.type.size
    kind = draw(st.sampled_from(["unary", "binary", "number", "div", "reshape", "transpose",
                                 "expand", "concat", "slice", "cast"]))
    if kind == "binary":
        try:
            return g.apply(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(values)))
        except InputError:  # the shapes do not broadcast
            return x * x
    if kind == "number":
        return g.apply(draw(st.sampled_from(BINARY)), x,
                       g.constant(np.float32(draw(st.sampled_from(NUMBERS)))))
    if kind == "div":
        return x / draw(st.sampled_from([1.0, 2.0, 1.4142135]))
    if kind == "reshape":
        return x.reshape(*draw(st.sampled_from([x.shape, (size,), (1, size), (-1, 1)])))
    if kind == "transpose":
        return x.transpose(*draw(st.permutations(range(rank))))
    if kind == "expand":
        return g.apply("expand", x, shape=draw(st.sampled_from([x.shape, (2, *x.shape)])))
    if kind == "concat" and rank:
        return g.apply("concat", *[x] * draw(st.integers(1, 2)), axis=rank - 1)
    if kind == "slice" and rank:
        return g.apply("slice", x, axis=0, start=0, end=draw(st.integers(1, x.shape[0])))
    if kind == "cast":
        return g.apply("cast", x, to="f32")
    return g.apply(draw(st.sampled_from(UNARY)), g.apply("tanh", x))


def arrays_for(graph: Graph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Seeded inputs and parameters of a graph, f32, or i32 from 0 to 3."""
    rng = np.random.default_rng(0)
    inputs, parameters = ({name: rng.standard_normal(v.shape, np.float32) if v.dtype == "f32"
                           else rng.integers(0, 4, v.shape, np.int32)
                           for name, v in leaves.items()}
                          for leaves in (graph.inputs, graph.parameters))
    return inputs, parameters
