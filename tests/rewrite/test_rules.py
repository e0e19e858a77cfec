"""Both sides of every rule on random values, and that the rule is found and applied."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graph_strategies import arrays_for

from smalti.graph import Graph, Value, evaluate, show
from smalti.graph.folding import FOLDED_ELEMENTS_MAX
from smalti.graph.operation import Type
from smalti.rewrite import ALL_RULES, Rule, rewrite
from smalti.rewrite.folding import fold_constants
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.lowering import LOWERINGS
from smalti.rewrite.pattern import (
    CONSTANT_NAMES,
    WEIGHT_NAMES,
    Expression,
    build,
    expression,
    names,
)
from smalti.rewrite.rules import apply_rules

SPELLED = [rule for rule in (*ALL_RULES, *LOWERINGS) if isinstance(rule, Rule)]


def example(rule: Rule, side: Expression) -> Graph:
    """One side of a rule as a graph on the values of its example."""
    g, rng = Graph("example"), np.random.default_rng(7)
    values, attributes = names(rule.left)
    bound: dict = {name: rule.example[name] for name in sorted(attributes)}
    for name in sorted(values):
        if name in CONSTANT_NAMES:
            given = rule.example.get(name, ())
            bound[name] = g.constant(given if isinstance(given, np.ndarray) else
                                     rng.uniform(0.5, 2, given).astype(np.float32))
        elif name in WEIGHT_NAMES:
            bound[name] = g.parameter(name, rule.example.get(name, (2, 3)))
        else:
            given = rule.example.get(name, (2, 3))
            type = given if isinstance(given, Type) else Type(given)
            bound[name] = g.input(name, type.shape, type.dtype)
    g.output("result", build(side, g, {**bound, **rule.derive(bound)}, "f32"))
    return g


@pytest.mark.parametrize("rule", SPELLED, ids=lambda rule: f"{rule.before} -> {rule.after}")
def test_both_sides_are_equal_and_the_first_becomes_the_second(rule: Rule) -> None:
    before, after = example(rule, rule.left), example(rule, rule.right)
    arrays = arrays_for(before)
    with np.errstate(all="ignore"):
        expected, found = (evaluate(g, *arrays)["result"] for g in (before, after))
    assert before.outputs["result"].type == after.outputs["result"].type
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    result = remove_dead_nodes(apply_rules(before, (rule,)))
    assert show(result) == show(remove_dead_nodes(fold_constants(after)))


def only_output(make: Callable[[Graph, Value], Value]) -> Graph:
    g = Graph()
    x = g.input("x", (3,))
    g.output("y", make(g, x))
    return g


def operations(graph: Graph) -> list[str]:
    return [node.operation.name for node in remove_dead_nodes(graph).nodes]


REFUSED = {
    "a zero that broadcasts": lambda g, x: x + np.zeros((2, 1), np.float32),
    "a number that is nearly one": lambda g, x: x * 1.00001,
    "the sigmoid of another value": lambda g, x: x * g.apply("sigmoid", x + x),
    "another factor than 1.702": lambda g, x: x * g.apply("sigmoid", x * 1.7),
    "one over c would overflow": lambda g, x: x / np.float32(1e-38),
    "one over c is infinite": lambda g, x: x / 0.0,
    "constants that would grow": lambda g, x: x.reshape(1, 3) * np.full((2, 1), 3, np.float32)
        * np.full((1, 3), 2, np.float32),
    "a sum of a product": lambda g, x: (x * 2.0 + 1.0) * 3.0,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_rule_does_not_apply_to(why: str) -> None:
    graph = only_output(REFUSED[why])
    assert operations(apply_rules(graph, ALL_RULES)) == operations(graph)


def test_a_divisor_too_large_to_fold_stays() -> None:
    """Were it rewritten, 1 / c would itself be a division by c, and so on without end."""
    g = Graph()
    x, c = g.input("x", ()), g.constant(np.full(FOLDED_ELEMENTS_MAX + 1, 2, np.float32))
    g.output("quotient", x / c)
    g.output("difference", x - c)
    assert operations(apply_rules(g, ALL_RULES)) == ["div", "sub"]


def test_integers_are_not_divided_by_reciprocals() -> None:
    g = Graph()
    g.output("y", g.input("x", (3,), "i32") / 2)
    assert operations(apply_rules(g, ALL_RULES)) == ["div"]


def test_a_number_in_any_position_and_of_any_shape() -> None:
    ones = np.ones((1, 3), np.float32)
    graph = only_output(lambda g, x: (g.constant(ones) * x.reshape(1, 3)).reshape(3) + 0.0)
    assert operations(apply_rules(graph, ALL_RULES)) == []


def test_chains_of_constants_become_one() -> None:
    graph = apply_rules(only_output(lambda g, x: 4.0 * (x * 0.5 * 3.0 / 2.0) * 2.0), ALL_RULES)
    assert operations(graph) == ["mul"]
    assert remove_dead_nodes(graph).nodes[0].inputs[1].data == np.float32(6)


def test_gelu_as_exported_with_a_division() -> None:
    graph = only_output(
        lambda g, x: x * (g.apply("erf", x / 1.4142135381698608) + 1.0) * 0.5)
    assert operations(apply_rules(graph, ALL_RULES)) == ["gelu"]


def test_group_normalization_as_exported_with_a_scale_for_each_group() -> None:
    g = Graph("group_normalization")
    x, groups = g.input("x", (2, 6, 4, 5)), {"num_groups": 3, "epsilon": 1e-5}
    rows = g.apply("group_normalization", x.reshape(2, 3, 40), g.parameter("ones", (3,)),
                   g.parameter("zeros", (3,)), **groups)
    scaled = rows.reshape(2, 6, 4, 5) * g.parameter("scale", (6, 1, 1))
    g.output("y", scaled + g.parameter("shift", (6, 1, 1)))
    result = rewrite(g)
    last = result.outputs["y"].node
    assert (last.operation.name, last.attributes) == ("group_normalization", groups)
    assert last.inputs[0] is result.inputs["x"]


def test_new_nodes_keep_the_scope_of_the_replaced_one() -> None:
    def make(g: Graph, x: Value) -> Value:
        with g.scope("block.3"):
            return x * g.apply("sigmoid", x)

    (node,) = remove_dead_nodes(apply_rules(only_output(make), ALL_RULES)).nodes
    assert (node.operation.name, node.scope) == ("silu", "block.3")


@pytest.mark.parametrize("text", ["x @ y", "unknown(x)", "x if y else z", "-x"])
def test_what_is_no_expression_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="no expression of a pattern"):
        expression(text)
