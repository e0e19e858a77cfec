"""Siblings: which contractions can take turns; their results side by side are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native_regions import LEVELS, PieceRunner, arrays_for, relative_error

from smalti.fuse import Partition, partition
from smalti.fuse.siblings import siblings, side_by_side
from smalti.graph import Graph, Value, evaluate


def conv(x: Value, channels: int, window: int = 3) -> Value:
    g, name, pad = x.graph, f"w{len(x.graph.parameters)}", window // 2
    weight = g.parameter(name, (channels, x.shape[1], window, window))
    return g.apply("conv", x, weight, pads=(pad,) * 4)


def norm(x: Value) -> Value:
    g, c = x.graph, x.shape[1]
    name = f"s{len(g.parameters)}"
    return g.apply("silu", g.apply("group_normalization", x, g.parameter(name, (c,)),
                                   g.parameter(name + "b", (c,)), num_groups=2))


def residual(x: Value, channels: int) -> Value:
    return conv(norm(conv(norm(x), channels)), channels) + conv(x, channels, 1)


def cut_of(build: Callable[[Value], Value]) -> tuple[Graph, Partition]:
    g = Graph("family")
    g.output("y", conv(build(conv(g.input("x", (2, 3, 9, 7)), 24)), 4))
    return g, partition(g)


def three(x: Value) -> Value:
    return conv(norm(conv(x, 8)), 6) + conv(norm(conv(x, 4, 1)), 6) + conv(conv(x, 10), 6)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("build, count", [(lambda x: residual(x, 12), 2), (three, 3)])
def test_results_side_by_side_are_the_same(build: Callable, count: int, name: str) -> None:
    graph, found = cut_of(build)
    (numbers,) = siblings(found)
    assert len(numbers) == count
    moved, order = side_by_side(found, numbers)
    assert sorted(order) == list(range(len(found.regions)))
    first = order.index(numbers[0])
    assert order[first:first + count] == list(numbers)
    outs = [moved.regions[first + i].views["out"] for i in range(count)]
    assert len({out.storage for out in outs}) == 1
    assert outs[0].storage.size == sum(found.regions[n].views["out"].storage.size for n in numbers)
    assert siblings(moved) == []

    inputs, parameters = arrays_for(graph)
    runner = PieceRunner(parameters, name)
    for key, view in moved.inputs.items():
        runner.write(view, inputs[key])
    for region in moved.regions:
        runner.run(region)
    expected = evaluate(graph, inputs, parameters)["y"]
    assert relative_error(np.array(runner.array(moved.outputs["y"])), expected) < 1e-5


def read_by_a_map(x: Value) -> Value:
    """The sum reads x last, and it is no contraction."""
    return conv(norm(x), 24) * 2.0 + x


def one_from_the_other(x: Value) -> Value:
    return conv(norm(conv(x, 24)) * x, 24)


def of_other_sizes(x: Value) -> Value:
    g = x.graph
    half = g.apply("conv", x, g.parameter("half", (8, 24, 2, 2)), strides=(2, 2))
    whole = g.apply("reduce_mean", norm(conv(half, 8)), axes=(2, 3), keepdims=True)
    return norm(conv(x, 8, 1)) * whole


def in_a_concat(x: Value) -> Value:
    return x.graph.apply("concat", conv(x, 4), conv(x, 8, 1), axis=1)


@pytest.mark.parametrize("build", [read_by_a_map, one_from_the_other, of_other_sizes, in_a_concat])
def test_what_cannot_take_turns(build: Callable) -> None:
    assert siblings(cut_of(build)[1]) == []


def test_outputs_of_a_program_stay_where_they_are() -> None:
    g = Graph("outputs")
    x = conv(g.input("x", (1, 3, 9, 7)), 24)
    g.output("y", conv(x, 12))
    g.output("z", conv(x, 12, 1))
    assert siblings(partition(g)) == []
