"""Attention is found in every spelling, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from graph_strategies import arrays_for

from smalti.graph import Graph, Node, Value, evaluate
from smalti.rewrite import rewrite

N, H, T, S, D, E = 2, 3, 5, 7, 4, 6
SCALE = 1 / math.sqrt(D)
LATER = np.where(np.arange(T)[:, None] >= np.arange(T), 0, -np.inf).astype(np.float32)


def heads(x: Value, *perm: int) -> Value:
    """[n, t, h * d] -> [n, h, t, d] or [n, h, d, t]."""
    return x.reshape(*x.shape[:2], H, x.shape[2] // H).transpose(*perm)


def joined(x: Value) -> Value:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def softmax(scores: Value) -> Value:
    return scores.graph.apply("softmax", scores)


def product(x: Value, y: Value) -> Value:
    return x.graph.apply("mat_mul", x, y)


def plain(q: Value, k: Value, v: Value) -> Value:
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
    return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))


def divided(q: Value, k: Value, v: Value) -> Value:
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) / math.sqrt(D)
    return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))


def both_scaled(q: Value, k: Value, v: Value) -> Value:
    """The exporter by torch.export: keys are transposed as [n * h, s, d]."""
    keys = heads(k, 0, 2, 1, 3).reshape(N * H, -1, D).transpose(0, 2, 1).reshape(N, H, D, -1)
    root = math.sqrt(SCALE)
    scores = product(heads(q, 0, 2, 1, 3) * root, keys * root)
    return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))


def scaled_before_heads(q: Value, k: Value, v: Value) -> Value:
    scores = product(heads(q * SCALE, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))


def batch_and_heads_as_one(q: Value, k: Value, v: Value) -> Value:
    q, v = (heads(x, 0, 2, 1, 3).reshape(N * H, x.shape[1], -1) for x in (q, v))
    scores = product(q * SCALE, heads(k, 0, 2, 3, 1).reshape(N * H, D, -1))
    return joined(product(softmax(scores), v).reshape(N, H, T, E))


def spelled_softmax(q: Value, k: Value, v: Value) -> Value:
    g = q.graph
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
    powers = g.apply("exp", scores - g.apply("reduce_max", scores, axes=(3,)))
    weights = powers / g.apply("reduce_sum", powers, axes=(-1,))
    return joined(product(weights, heads(v, 0, 2, 1, 3)))


def guarded(q: Value, k: Value, v: Value) -> Value:
    g = q.graph
    weights = softmax(product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE)
    weights = g.apply("where", g.apply("is_nan", weights), g.constant(0.0), weights)
    return joined(product(weights, heads(v, 0, 2, 1, 3)))


def masked(shape: tuple[int, ...]) -> Callable[[Value, Value, Value], Value]:
    def spelling(q: Value, k: Value, v: Value) -> Value:
        mask = q.graph.input("mask", shape)
        scores = mask + product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
        return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))

    return spelling


def asked(q: Value, k: Value, v: Value) -> Value:
    g = q.graph
    seen = g.apply("greater", g.input("mask", (N, 1, 1, S)), g.constant(-1.5))
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
    scores = g.apply("where", seen, scores, g.constant(-3.4e38))
    return joined(product(softmax(scores), heads(v, 0, 2, 1, 3)))


SPELLINGS = [plain, divided, both_scaled, scaled_before_heads, batch_and_heads_as_one,
             spelled_softmax, guarded, masked((T, S)), masked((N, 1, 1, S)), masked((1, H, T, S)),
             asked]


def built(spelling: Callable[[Value, Value, Value], Value], *, keys: int = S) -> Graph:
    g = Graph("spelling")
    q, k, v = (g.input(name, (N, count, H * depth))
               for name, count, depth in (("q", T, D), ("k", keys, D), ("v", keys, E)))
    g.output("y", spelling(q, k, v))
    return g


def attention_of(graph: Graph) -> Node:
    """The one attention that a graph became; its meaning is that of the graph."""
    result = rewrite(graph)
    arrays = arrays_for(graph)
    np.testing.assert_allclose(evaluate(result, *arrays)["y"], evaluate(graph, *arrays)["y"],
                               rtol=1e-4, atol=1e-5)
    (node,) = (node for node in result.nodes if node.operation.name == "attention")
    return node


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__qualname__.split(".")[0])
def test_a_spelling_is_found_and_nothing_is_moved(spelling) -> None:
    node = attention_of(built(spelling))
    assert [value.kind for value in node.inputs[:3]] == ["input"] * 3
    assert node.attributes["num_heads"] == H
    assert node.attributes["scale"] == pytest.approx(SCALE)
    assert rewrite(built(spelling)).outputs["y"].node.operation.name == "attention"


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("shape", [(T, T), (1, 1, T, T)])
def test_a_causal_mask_is_a_flag(lowest: float, shape: tuple[int, ...]) -> None:
    def spelling(q: Value, k: Value, v: Value) -> Value:
        mask = np.where(np.isinf(LATER), np.float32(lowest), LATER).reshape(shape)
        scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
        return joined(product(softmax(scores + mask), heads(v, 0, 2, 1, 3)))

    node = attention_of(built(spelling, keys=T))
    assert (node.attributes["is_causal"], len(node.inputs)) == (1, 3)


@pytest.mark.parametrize("shape", [(), (1,), (S,), (1, S)])
def test_a_constant_of_few_axes_that_is_added_to_the_scores_is_a_mask(
        shape: tuple[int, ...]) -> None:
    def spelling(q: Value, k: Value, v: Value) -> Value:
        bias = np.linspace(-1, 2, math.prod(shape), dtype=np.float32).reshape(shape)
        scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)) * SCALE
        return joined(product(softmax(scores + bias), heads(v, 0, 2, 1, 3)))

    node = attention_of(built(spelling))
    assert (node.attributes["is_causal"], len(node.inputs)) == (0, 4)


def test_one_head_without_any_movement() -> None:
    g = Graph()
    q, k, v = (g.input(name, (2, 5, 4)) for name in "qkv")
    g.output("y", product(softmax(product(q, k.transpose(0, 2, 1)) * 0.5), v))
    node = attention_of(g)
    assert node.attributes["num_heads"] == 1
    assert list(node.inputs) == list(node.inputs[0].graph.inputs.values())


def other_axis(q: Value, k: Value, v: Value) -> Value:
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    return joined(product(q.graph.apply("softmax", scores, axis=2), heads(v, 0, 2, 1, 3)))


@pytest.mark.parametrize("spelling, hidden", [
    (masked((N, 1, 1, S)), -3.4e38), (masked((N, 1, T, S)), -1e32), (asked, -2.0)])
def test_a_row_that_a_large_number_masks_is_the_mean(spelling, hidden: float) -> None:
    """Padding as transformers writes it, by the least number of f32: it is no infinity."""
    graph = built(spelling)
    inputs, weights = arrays_for(graph)
    inputs["mask"] = np.zeros_like(inputs["mask"])
    inputs["mask"][0], inputs["mask"][1, ..., 3:] = hidden, hidden
    result = rewrite(graph)
    assert "attention" in {node.operation.name for node in result.nodes}
    found = evaluate(result, inputs, weights)["y"]
    np.testing.assert_allclose(found, evaluate(graph, inputs, weights)["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[0], np.tile(inputs["v"][0].mean(0), (T, 1)), rtol=1e-4,
                               atol=1e-5)


def masked_whole(q: Value, k: Value, v: Value) -> Value:
    scores = product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    mask = np.where(np.arange(T)[:, None] > 0, 0, -3e38).astype(np.float32)
    return joined(product(softmax(scores + mask), heads(v, 0, 2, 1, 3)))


@pytest.mark.parametrize("spelling", [other_axis, masked_whole])
def test_no_attention_is_found_in(spelling) -> None:
    assert "attention" not in {n.operation.name for n in rewrite(built(spelling)).nodes}


def test_scores_that_something_else_reads_are_computed_for_it() -> None:
    def spelling(q: Value, k: Value, v: Value) -> Value:
        weights = softmax(product(heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)))
        q.graph.output("weights", weights)
        return joined(product(weights, heads(v, 0, 2, 1, 3)))

    assert attention_of(built(spelling)).attributes["scale"] == 1
