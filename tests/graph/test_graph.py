"""Building a graph: what there cannot be is refused where it is written."""

from __future__ import annotations

import pytest

from smalti.errors import InputError
from smalti.graph import Graph


@pytest.mark.parametrize("arguments, said", [
    (("x", (-1, 2)), r"shape of 'x' is \(-1, 2\); expected whole numbers from 0"),
    (("x", 3), "shape of 'x' is 3; expected whole numbers"),
    (("x", None), "shape of 'x' is None"), (("x", (2, "a")), r"is \(2, 'a'\)"),
    (("x", (2.0,)), r"is \(2.0,\)"), (("x", (2,), "float"), "dtype of 'x' is 'float'; known: f32"),
    ((3, (2,)), "a name is 3; expected a text")])
def test_inputs_and_parameters_that_there_cannot_be(arguments: tuple, said: str) -> None:
    for make in (Graph("g").input, Graph("g").parameter):
        with pytest.raises(InputError, match=said):
            make(*arguments)


def test_what_is_no_value_is_neither_output_nor_operand() -> None:
    graph = Graph("g")
    with pytest.raises(InputError, match="the output 'y' is 3; expected a value"):
        graph.output("y", 3)
    with pytest.raises(InputError, match="input 1 of add is a int; expected a value"):
        graph.apply("add", graph.input("x", (2,)), 3)


def test_a_graph_shows_what_it_is() -> None:
    graph = Graph("twice")
    x = graph.input("x", (2, 3))
    assert repr(graph) == "<smalti.Graph 'twice': 0 operations, 0 parameters, x f32[2, 3] -> none>"
    graph.output("y", x * graph.parameter("w", (3,)))
    assert repr(graph) == ("<smalti.Graph 'twice': 1 operations, 1 parameters, "
                           "x f32[2, 3] -> y f32[2, 3]>")
