"""Graphs print as text that parses back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from examples import examples
from graph_strategies import arrays_for, graphs
from hypothesis import given

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, parse, show, verify
from smalti.graph.operation import DTYPES
from smalti.rewrite.rebuilding import copied

EXPECTED = '''\
graph "double" {
  %0 = input "x" : f32[2, 3]
  %1 = parameter "block.0.w" : f32[3, 4]
  %2 = mat_mul(%0, %1) {} : f32[2, 4] @ "block.0"
  %3 = constant [2.0] : f32[]
  %4 = mul(%2, %3) {} : f32[2, 4]
  %5 = reshape(%4) {"shape": [8]} : f32[8]
  output "y" = %5
}
'''


def small() -> Graph:
    g = Graph("double")
    x = g.input("x", (2, 3))
    with g.scope("block.0"):
        y = g.apply("mat_mul", x, g.parameter("w", (3, 4)))
    g.output("y", (y * 2.0).reshape(8))
    return g


def test_expected_text() -> None:
    assert show(small()) == str(small()) == EXPECTED


@examples(150)
@given(graphs())
def test_round_trip(graph: Graph) -> None:
    text = show(graph)
    again = parse(text)
    verify(again, "parsing")
    assert show(again) == text
    inputs = arrays_for(graph)
    expected, found = evaluate(graph, *inputs), evaluate(again, *inputs)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("array", [
    np.array([True, False]), np.array([1, -2], np.int32), np.array(2**62, np.int64),
    np.array([-0.0, 0.1, 1e-45], np.float32), np.array([np.nan, np.inf, -np.inf], np.float32),
    np.arange(60, dtype=np.float32).reshape(3, 4, 5), np.zeros((0, 3), np.float32),
], ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_constants_keep_every_bit(array: np.ndarray) -> None:
    g = Graph()
    g.output("y", g.constant(array))
    data = parse(show(g)).outputs["y"].data
    assert data.dtype == array.dtype and data.shape == array.shape
    assert data.tobytes() == array.tobytes()


@pytest.mark.parametrize(("line", "words"), [
    ("  %9 = relu(%0) {} : f32[2, 4]", "the result is f32[2, 3]"),
    ("  %9 = relu(%7) {} : f32[2, 3]", "%7"),
    ("  %9 = frobnicate(%0) {} : f32[2, 3]", "no operation is named 'frobnicate'"),
    ("  %9 = relu(%0) {]} : f32[2, 3]", "Expecting property name"),
    ("  %9 = transpose(%0) {\"perm\": null} : f32[2, 3]", "not iterable"),
    ("  %9 = constant [null] : f32[1]", "a constant is made of numbers"),
    ("  %9 = constant \"?\" : f32[1]", "base64"),
    ("  %0 = relu(%0) {} : f32[2, 3]", "a second definition"),
    ("  %9 = relu(%0) {\"slope\": 1} : f32[2, 3]", "relu has no attribute"),
    ("  %9 = input \"x\" : f32[2, 3]", "two inputs named 'x'"),
    ("  %9 = input \"z\" : f19[2, 3]", "no dtype is named 'f19'"),
    ("  %9 = constant [1.0, 2.0] : f32[3]", "cannot reshape"),
    ("  hello", "not a leaf, a node or an output"),
])
def test_a_line_that_does_not_parse_is_named(line: str, words: str) -> None:
    lines = EXPECTED.splitlines()
    lines.insert(3, line)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        parse("\n".join(lines))
    assert str(caught.value).startswith("graph text, line 4: ")


@pytest.mark.parametrize("text", ["", "graph double {\n}", 'graph "double" {', EXPECTED[:-2]])
def test_text_without_its_frame_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="graph text starts with"):
        parse(text)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_kept(dtype: str) -> None:
    g = Graph("constants")
    numbers = np.array([0, 1, 1, 0], DTYPES[dtype])  # one in every type; u4 and bool have no -1
    g.output("few", g.constant(numbers, dtype))
    g.output("many", g.constant(np.tile(numbers, 9), dtype))
    again = parse(show(g))
    for name, value in g.outputs.items():
        assert again.outputs[name].type == value.type and value.dtype == dtype
        assert again.outputs[name].data.tobytes() == value.data.tobytes()
    assert str(copied(g)) == show(g)
