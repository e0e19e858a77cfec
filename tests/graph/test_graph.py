"""Building a graph: what there cannot be is refused where it is written."""

from __future__ import annotations

import numpy as np
import pytest

import smalti
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
    with pytest.raises(InputError, match="a name is 3; expected a text"):
        graph.output(3, graph.input("z", (2,)))
    with pytest.raises(InputError, match="input 1 of add is 3; expected a value"):
        graph.apply("add", graph.input("x", (2,)), 3)


def test_a_value_of_another_graph_is_neither_output_nor_operand() -> None:
    graph, other = Graph("g"), Graph("h")
    x, y = graph.input("x", (2,)), other.input("x", (2,))
    with pytest.raises(InputError, match="input 1 of mul is <input 'x' .*> of another graph, h"):
        x * y
    with pytest.raises(InputError, match="the output 'y' is <input 'x' .*> of another graph, h"):
        graph.output("y", y)
    graph.output("y", graph.apply("add", x, other.constant(1.0)))  # a constant belongs anywhere


def test_names_are_given_once() -> None:
    graph = Graph("g")
    x = graph.input("x", (2,))
    graph.output("y", x)
    with pytest.raises(InputError, match="two inputs named 'x'"):
        graph.input("x", (3,))
    with pytest.raises(InputError, match="two outputs named 'y'"):
        graph.output("y", x)
    graph.parameter("w", (2,))
    with pytest.raises(InputError, match=r"parameter w is f32\[2\], asked for as f32\[3\]"):
        graph.parameter("w", (3,))


@pytest.mark.parametrize(("arguments", "said"), [
    (("text",), "numpy's dtype <U4; give an array of numbers"), ((None,), "numpy's dtype object"),
    (([1, [2, 3]],), "is no constant .*give a number or an array"),
    (("text", "f32"), "'text' is no constant"), ((1, "float"), "is 'float'; known: f32"),
    ((np.zeros(1 << 21),), "of 2097152 elements; at most 1048576 .* make it a parameter")])
def test_constants_that_there_cannot_be(arguments: tuple, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Graph("g").constant(*arguments)


def test_operations_that_there_are_not() -> None:
    x = Graph("g").input("x", (2, 3))
    with pytest.raises(InputError, match="'matmul'; did you mean mat_mul"):
        x.graph.apply("matmul", x, x)
    for wrong in (lambda: x.reshape((3, 2)), lambda: x.reshape("3"), lambda: x.transpose(1.0, 0)):
        with pytest.raises(InputError, match="expected whole numbers"):
            wrong()
    with pytest.raises(InputError, match="add takes 2 inputs, got 1"):
        x.graph.apply("add", x)


def test_a_graph_without_outputs_is_not_compiled() -> None:
    graph = Graph("g")
    graph.input("x", (2,))
    with pytest.raises(InputError, match=r"'g' has no outputs; .*graph.output\(name, value\)"):
        smalti.compile(graph)


def test_a_graph_shows_what_it_is() -> None:
    graph = Graph("twice")
    x = graph.input("x", (2, 3))
    assert repr(graph) == "<smalti.Graph 'twice': 0 operations, 0 parameters, x f32[2, 3] -> none>"
    graph.output("y", x * graph.parameter("w", (3,)))
    assert repr(graph) == ("<smalti.Graph 'twice': 1 operations, 1 parameters, "
                           "x f32[2, 3] -> y f32[2, 3]>")
