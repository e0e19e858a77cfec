"""Recurrent layers, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import LEVELS, arrays_for, check_graph

from smalti.codegen.cpu.functions import FUNCTIONS
from smalti.fuse.support import lacking
from smalti.graph import Graph, evaluate
from smalti.rewrite import rewrite
from smalti.rewrite.recurrent import STEPS_MAX

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
USUAL = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}


def layer(name: str, time: int = 5, batch: int = 2, direction: str = "forward",
          activations: tuple[str, ...] = (), lengths: object = None, peeps: bool = False,
          **attributes) -> Graph:
    """A layer of 12 states a direction that reads 8 numbers a step."""
    g = Graph(name)
    d, h, rows = 2 if direction == "bidirectional" else 1, 12, GATES[name] * 12
    operands = [g.input("x", (time, batch, 8)), g.parameter("w", (d, rows, 8)),
                g.parameter("r", (d, rows, h)), g.parameter("b", (d, 2 * rows)),
                g.constant(np.full(batch, time) if lengths is None else lengths, "i32"),
                g.input("h", (d, batch, h))]
    if name == "lstm":
        operands += [g.input("c", (d, batch, h)), g.parameter("p", (d, 3 * h)) if peeps
                     else g.constant(np.zeros((d, 3 * h), np.float32))]
    functions = (activations or USUAL[name]) * d
    y = g.apply(name, *operands, direction=direction, activations=functions,
                alphas=(0.3,) * len(functions), betas=(0.4,) * len(functions), **attributes)
    g.output("y", y)
    return g


def native(graph: Graph) -> Graph:
    return rewrite(graph, lambda node: not lacking(node, FUNCTIONS))


CASES = {
    "rnn": layer("rnn"), "rnn backwards": layer("rnn", direction="reverse", batch=1),
    "gru": layer("gru", linear_before_reset=1), "gru, reset first": layer("gru"),
    "gru, both ways": layer("gru", direction="bidirectional", linear_before_reset=1, batch=1),
    "lstm": layer("lstm"), "lstm, both ways": layer("lstm", direction="bidirectional"),
    "lstm, one step": layer("lstm", time=1, batch=1),
    "lstm, peeps": layer("lstm", peeps=True, clip=0.5),
    "lstm, coupled": layer("lstm", input_forget=1, peeps=True, direction="reverse"),
    "functions": layer("lstm", activations=("hardsigmoid", "softsign", "affine")),
    "more functions": layer("gru", activations=("hardsigmoid", "relu")),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_native(case: str, name: str) -> None:
    result = native(CASES[case])
    assert not [node for node in result.nodes if lacking(node, FUNCTIONS)]
    check_graph(result, name)


@pytest.mark.parametrize("case", CASES)
def test_it_means_the_same(case: str) -> None:
    given = arrays_for(CASES[case])
    expected, found = (evaluate(graph, *given)["y"] for graph in (CASES[case], native(CASES[case])))
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("graph", [
    layer("lstm", time=STEPS_MAX + 1), layer("gru", lengths=[5, 3]),
    layer("rnn", activations=("softplus",))], ids=["long", "uneven", "function"])
def test_others_stay_whole(graph: Graph) -> None:
    assert graph.name in {node.operation.name for node in native(graph).nodes}


def test_states_are_computed_where_they_belong() -> None:
    runner = check_graph(native(layer("rnn", time=7)), LEVELS[-1])
    assert len(runner.schedules) == 1 + 7 + 1  # all steps are read, each step, the sum of biases
