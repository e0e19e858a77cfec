"""The MLIR text of a graph is accepted by a parser that is not ours, and keeps all names."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from examples import examples
from graph_strategies import graphs
from hypothesis import given
from mlir_graphs import OPERATIONS_ALONE, tiny_models
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, linalg, math, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from smalti.errors import UnsupportedError
from smalti.export.mlir import export
from smalti.graph import Graph

EXPECTED = """\
module {
  func.func @double(%x: tensor<2x3xf32> {smalti.name = "x"}, %block_w: tensor<3xf32> \
{smalti.name = "block.w"}) -> (tensor<2x3xf32> {smalti.name = "y"}) {
    // block
    %empty = tensor.empty() : tensor<2x3xf32>
    %add = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, \
affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], \
iterator_types = ["parallel", "parallel"]} \
ins(%x, %block_w : tensor<2x3xf32>, tensor<3xf32>) outs(%empty : tensor<2x3xf32>) {
    ^bb0(%a0: f32, %a1: f32, %o: f32):
      %e = arith.addf %a0, %a1 : f32
      linalg.yield %e : f32
    } -> tensor<2x3xf32>
    return %add : tensor<2x3xf32>
  }
}
"""


def parsed(text: str) -> ModuleOp:
    """The module as xDSL reads and verifies it, with the dialects that are promised only."""
    context = Context()
    for dialect in (arith.Arith, builtin.Builtin, func.Func, linalg.Linalg, math.Math,
                    tensor.Tensor):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def signature(graph: Graph) -> tuple[int, int]:
    """How many arguments and results the function of `graph` has, as xDSL reads it."""
    (function,) = parsed(export(graph)).body.block.ops
    kind = function.function_type
    return len(kind.inputs), len(kind.outputs)


def test_expected_text() -> None:
    g = Graph("double")
    x = g.input("x", (2, 3))
    with g.scope("block"):
        g.output("y", x + g.parameter("w", (3,)))
    assert export(g) == EXPECTED
    assert signature(g) == (2, 1)


@pytest.mark.parametrize("name", OPERATIONS_ALONE)
def test_every_operation_is_accepted(name: str) -> None:
    graph = OPERATIONS_ALONE[name]()
    assert signature(graph) == (len(graph.inputs) + len(graph.parameters), len(graph.outputs))


@pytest.mark.parametrize("build", [
    pytest.param(build, id=build.__name__,
                 marks=() if build.__name__ in ("mobilenet_v2", "unet") else pytest.mark.sweep)
    for build in tiny_models()])
def test_models_are_accepted(build: Callable[[], Graph]) -> None:
    graph = build()
    assert signature(graph) == (len(graph.inputs) + len(graph.parameters), len(graph.outputs))
    text = export(graph)
    for name, value in graph.parameters.items():  # in their order, with their own names and shapes
        shape = "x".join(map(str, value.shape))
        assert f': tensor<{shape}xf32> {{smalti.name = "{name}"}}' in text


@examples(100)
@given(graphs())
def test_any_graph_is_accepted(graph: Graph) -> None:
    assert signature(graph) == (len(graph.inputs) + len(graph.parameters), len(graph.outputs))


@pytest.mark.parametrize("name", ['a"b', "line\nbreak", "%x", "naïve", "0", "", "}", "// no"])
def test_hostile_names(name: str) -> None:
    g = Graph(name)
    x = g.input(name, (2,))
    with g.scope(name):
        g.output(name, x + g.parameter("w", (2,)))
    (function,) = parsed(export(g)).body.block.ops
    names = [entry.data["smalti.name"].data for entry in function.arg_attrs.data]
    assert names == [name, f"{name}.w"]
    assert re.fullmatch(r"\w+", function.sym_name.data)


@pytest.mark.parametrize("array", [
    np.array([np.nan, np.inf, -np.inf], np.float32), np.array([True, False, True]),
    np.arange(40, dtype=np.float32) * 0.1, np.array([-(2**62), 2**62], np.int64),
    np.array(1e-45, np.float32), np.arange(20) % 3 == 0,
], ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_constants_keep_every_bit(array: np.ndarray) -> None:
    g = Graph("constants")
    g.output("y", g.constant(array))
    (function,) = parsed(export(g)).body.block.ops
    constant = next(op for op in function.body.block.ops if op.name == "arith.constant")
    values = np.array(constant.value.get_values(), array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(values, array)


def test_what_cannot_be_written_is_listed_completely() -> None:
    g = Graph("mixed")
    x = g.input("x", (4,), "f8e5m2")
    y = g.apply("cast", x, to="f32")
    with g.scope("tail"):
        g.output("y", g.apply("cast", y, to="f8e4m3fn"))
    with pytest.raises(UnsupportedError) as caught:
        export(g)
    assert [node[:2] for node in caught.value.nodes] == [
        ("(top)", "cast"), ("tail", "cast"), ("x", "input")]
    for words in ("f8e5m2[4]", "f32[4]", "dtype f8e5m2"):
        assert words in str(caught.value)
