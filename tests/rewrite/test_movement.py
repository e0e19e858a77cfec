"""Chains of movements mean the same when they are shorter, and become no longer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.graph import Graph, Value, evaluate
from smalti.rewrite import rewrite


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Two to six reshapes and transposes of an input."""
    g = Graph("chain")
    value = g.input("x", draw(st.sampled_from([(1, 6, 8), (2, 3, 4, 4), (1, 4, 1, 6), (24,)])))
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.booleans()):
            value = value.transpose(*draw(st.permutations(range(len(value.shape)))))
        else:
            rest, shape = value.type.size, []
            while rest > 1 and len(shape) < 5:
                shape.append(draw(st.sampled_from([n for n in range(1, rest + 1)
                                                   if rest % n == 0])))
                rest //= shape[-1]
            value = value.reshape(*draw(st.permutations([*shape, rest])))
    g.output("y", value)
    return g


@given(chains())
def test_a_chain_means_the_same_and_has_three_movements_at_most_when_it_can(graph: Graph) -> None:
    result = rewrite(graph)
    assert len(result.nodes) <= len(graph.nodes)
    x = np.arange(graph.inputs["x"].type.size, dtype=np.float32)
    arrays = {"x": x.reshape(graph.inputs["x"].shape)}
    np.testing.assert_array_equal(evaluate(result, arrays, {})["y"],
                                  evaluate(graph, arrays, {})["y"])
    assert str(rewrite(result)) == str(result)


def movements(value: Value) -> list[tuple[str, tuple[int, ...]]]:
    g = value.graph
    g.output("y", value)
    return [(node.operation.name, *node.attributes.values()) for node in rewrite(g).nodes]


@pytest.mark.parametrize(("change", "expected"), [
    (lambda x: x.reshape(2, 77, 4, 6).transpose(0, 2, 1, 3).reshape(8, 77, 6).transpose(0, 2, 1)
     .reshape(2, 4, 6, 77), [("transpose", (0, 3, 1, 2)), ("reshape", (2, 4, 6, 77))]),
    (lambda x: x.reshape(2, 77, 4, 6).transpose(0, 2, 1, 3).transpose(0, 2, 1, 3)
     .reshape(2, 77, 24).reshape(2, 7, 11, 24), []),
    (lambda x: x.transpose(0, 3, 1, 2).reshape(2, 24, 77),
     [("transpose", (0, 3, 1, 2)), ("reshape", (2, 24, 77))]),
    (lambda x: x.reshape(1, 2, 77, 24).transpose(0, 1, 3, 2).reshape(2, 24, 7, 11),
     [("transpose", (0, 3, 1, 2))]),
])
def test_what_exporters_write(change, expected) -> None:
    assert movements(change(Graph().input("x", (2, 7, 11, 24)))) == expected


def test_a_slice_of_a_concat_is_one_of_its_operand() -> None:
    g = Graph()
    x, y = g.input("x", (2, 4)), g.input("y", (2, 3))
    both = g.apply("concat", x, y, axis=-1)
    inner = g.apply("slice", g.apply("slice", both, axis=1, start=1, end=7), axis=1, start=3, end=5)
    across = g.apply("slice", both, axis=1, start=3, end=5)
    g.output("y", inner * 2.0)
    g.output("z", across)
    nodes = rewrite(g).nodes
    assert sorted(n.operation.name for n in nodes) == ["concat", "mul", "slice", "slice"]
    (doubled,) = (n for n in nodes if n.operation.name == "mul")
    assert doubled.inputs[0].node.attributes == {"axis": 1, "start": 0, "end": 2}
    assert doubled.inputs[0].node.inputs[0].name == "y"
