"""The passes one by one, their order, and that the whole keeps what a graph means."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from graph_strategies import arrays_for, graphs
from hypothesis import given

from smalti.errors import VerificationError
from smalti.graph import Graph, Node, evaluate, show
from smalti.graph.folding import FOLDED_ELEMENTS_MAX
from smalti.models import SD15, unet_graph
from smalti.rewrite import PASSES, GraphPass, pipeline, rewrite
from smalti.rewrite.folding import fold_constants
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.sharing import share_equal_nodes

SECONDS_MAX = 3.0
"""Ten times what is wanted of the full UNet, for a machine that is busy."""


def operations(graph: Graph) -> list[str]:
    return [node.operation.name for node in graph.nodes]


@examples(150)
@given(graphs())
def test_meaning_and_interface_stay(graph: Graph) -> None:
    before, inputs = show(graph), arrays_for(graph)
    result = rewrite(graph)
    assert show(graph) == before
    assert len(result.nodes) <= len(graph.nodes)
    expected = evaluate(graph, *inputs)
    found = evaluate(result, *inputs)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5,
                                   err_msg=before)


@examples(50)
@given(graphs())
def test_a_second_time_changes_nothing(graph: Graph) -> None:
    once = rewrite(graph)
    assert show(rewrite(once)) == show(once)


def test_each_pass_comes_after_what_it_needs() -> None:
    given_so_far: set[str] = set()
    for step in PASSES:
        assert set(step.needs) <= given_so_far, step.name
        given_so_far |= set(step.gives)


def test_inputs_and_parameters_stay_even_when_unused() -> None:
    g = Graph()
    g.parameter("w", (2, 3))
    g.output("y", g.input("x", (3,)))
    g.output("same", g.input("z", (3,), "i32"))
    assert show(rewrite(g)) == show(g)


def test_constants_fold_up_to_the_limit() -> None:
    g = Graph()
    one = g.constant(np.ones(1, np.float32))
    small = g.apply("expand", one, shape=(FOLDED_ELEMENTS_MAX,))
    large = g.apply("expand", one, shape=(FOLDED_ELEMENTS_MAX + 1,))
    g.output("small", g.apply("exp", small))
    g.output("large", large)
    folded = remove_dead_nodes(fold_constants(g))
    assert operations(folded) == ["expand"]
    np.testing.assert_array_equal(folded.outputs["small"].data, np.exp(small.node.operation.meaning(
        one.data, shape=small.shape)))


def test_folding_is_silent_about_infinities() -> None:
    g = Graph()
    g.output("y", g.constant(1.0) / 0.0)
    with np.errstate(all="raise"):
        assert np.isinf(fold_constants(g).outputs["y"].data)


def test_equal_nodes_are_shared() -> None:
    g = Graph()
    x, y = g.input("x", (3,)), g.input("y", (3,))
    g.output("a", (x + y) * 2.0)
    g.output("b", (y + x) * 2.0)
    g.output("c", x - y)
    g.output("d", y - x)
    g.output("e", x.reshape(3, 1))
    g.output("f", x.reshape(1, 3))
    assert operations(share_equal_nodes(g)) == ["add", "mul", "sub", "sub", "reshape", "reshape"]


def test_constants_are_equal_by_type_and_value() -> None:
    g = Graph()
    x = g.input("x", (1,))
    for number in (np.float32(2), np.float32(2), np.ones((1,), np.float32), np.float32(1)):
        g.output(f"y{len(g.outputs)}", x * g.constant(number))
    shared = share_equal_nodes(g)
    assert len(shared.nodes) == 3
    assert shared.outputs["y0"] is shared.outputs["y1"]


def test_nodes_that_no_output_reads_go() -> None:
    g = Graph()
    x = g.input("x", (3,))
    g.apply("exp", x + 1.0)
    g.output("y", x * 2.0)
    assert operations(remove_dead_nodes(g)) == ["mul"]


def broken_type(graph: Graph) -> Graph:
    result = remove_dead_nodes(graph)
    value = result.nodes[-1].output
    value.type = replace(value.type, shape=(9, 9))
    return result


def lost_input(graph: Graph) -> Graph:
    result = remove_dead_nodes(graph)
    del result.inputs["unused"]
    return result


def twice(graph: Graph) -> Graph:
    result = remove_dead_nodes(graph)
    first: Node = result.nodes[0]
    result.nodes.append(first)
    return result


@pytest.mark.parametrize(("function", "words"), [
    (broken_type, "after wrong, graph unlucky, node 1 (exp block.7): expected a result of f32[3], "
                  "found f32[9, 9]"),
    (twice, "after wrong, graph unlucky, node 2 (add ): expected each value defined once"),
    (lost_input, "after wrong, graph unlucky: expected the inputs to stay as they were, found a "
                 "difference in ['unused f32[1]']"),
])
def test_a_pass_that_breaks_the_graph_is_named(function, words, monkeypatch) -> None:
    g = Graph("unlucky")
    x = g.input("x", (3,))
    g.input("unused", (1,))
    y = x + 1.0
    with g.scope("block.7"):
        g.output("y", g.apply("exp", y))
    monkeypatch.setattr(pipeline, "PASSES", (*PASSES, GraphPass("wrong", function)))
    with pytest.raises(VerificationError) as caught:
        rewrite(g)
    assert words in str(caught.value)


def test_the_full_unet_is_simplified_quickly() -> None:
    start = time.thread_time()
    graph = unet_graph(SD15.denoiser, 2, 64, 64)
    result = rewrite(graph)
    assert time.thread_time() - start < SECONDS_MAX
    count = operations(graph).count, operations(result).count
    residual_blocks = 22  # each makes silu(time) for itself
    assert count[0]("silu") - count[1]("silu") == residual_blocks - 1
    assert count[0]("conv") == count[1]("conv")
    assert count[0]("attention") == count[1]("attention") == 32
