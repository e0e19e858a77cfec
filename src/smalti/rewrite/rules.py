"""The rules by which expressions become simpler ones.

Each says what it looks for (`before`), what it puts there (`after`) and an example, on which the
tests evaluate both. To add a rule, add it to `RULES`: that is the only place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from smalti.graph import Graph, Node, Value
from smalti.graph.folding import FOLDED_ELEMENTS_MAX, folded
from smalti.graph.graph import rebuilt
from smalti.rewrite.pattern import Bindings, Call, Expression, build, expression, matches
from smalti.rewrite.rebuilding import Images, copied


@dataclass(frozen=True)
class Rule:
    """`before` -> `after`, in the notation of `pattern`.

    It applies where `before` matches, `when(bindings)` holds and `after` has the type of `before`:
    that last condition is what keeps `x + 0` from losing the broadcast of a zero of another shape.
    `derive(bindings)` gives the names of attributes in `after` that do not stand in `before`.
    `example` gives shapes for names of values (default [2, 3]; for a, b, c it is []) and values
    for names of attributes.
    """

    before: str
    after: str
    when: Callable[[Bindings], bool] = lambda bound: True
    derive: Callable[[Bindings], Mapping[str, Any]] = lambda bound: {}
    example: Mapping[str, tuple[int, ...] | str | int] = field(default_factory=dict)

    @cached_property
    def left(self) -> Call:
        """`before` as an expression, the root of which is an operation."""
        pattern = expression(self.before)
        assert isinstance(pattern, Call), f"{self.before} is no operation"
        return pattern

    @cached_property
    def right(self) -> Expression:
        """`after` as an expression."""
        return expression(self.after)


def _foldable(bound: Bindings) -> bool:
    """What is computed from c is folded; were it not, the rule would apply to it again."""
    return bound["c"].type.size <= FOLDED_ELEMENTS_MAX


def _invertible(bound: Bindings) -> bool:
    """1 / c is an ordinary number, so that x / c and x * (1 / c) differ by rounding only."""
    c = bound["c"].data
    if c.dtype != np.float32 or not _foldable(bound):
        return False
    size = np.abs(c)
    return bool(np.all((size > 1e-37) & (size < 1e37)))


def _cheap_together(bound: Bindings) -> bool:
    """a and b combine to a constant no larger than the larger of them, which is folded."""
    sizes = sorted((bound["a"].type.size, bound["b"].type.size))
    return sizes[0] == 1 and sizes[1] <= FOLDED_ELEMENTS_MAX


def _in_order(bound: Bindings) -> bool:
    return tuple(bound["p"]) == tuple(range(len(bound["p"])))


def _composed(bound: Bindings) -> Mapping[str, Any]:
    return {"r": tuple(bound["p"][axis] for axis in bound["q"])}


RULES: tuple[Rule, ...] = (
    # --- what changes nothing
    Rule("x + 0", "x"),
    Rule("x - 0", "x"),
    Rule("x * 1", "x"),
    Rule("x / 1", "x"),
    Rule("neg(neg(x))", "x"),
    Rule("reshape(x, shape=s)", "x", example={"s": (2, 3)}),
    Rule("expand(x, shape=s)", "x", example={"s": (2, 3)}),
    Rule("resize(x, scales=s)", "x", example={"s": (1, 1)}),
    Rule("cast(x, to=t)", "x", example={"t": "f32"}),
    Rule("slice(x, axis=k, start=i, end=j)", "x", example={"k": 1, "i": 0, "j": 3}),
    Rule("concat(x, axis=k)", "x", example={"k": 1}),
    Rule("transpose(x, perm=p)", "x", when=_in_order, example={"p": (0, 1)}),

    # --- movement after movement
    Rule("reshape(reshape(x, shape=s), shape=t)", "reshape(x, shape=t)",
         example={"s": (6,), "t": (3, 2)}),
    Rule("transpose(transpose(x, perm=p), perm=q)", "transpose(x, perm=r)", derive=_composed,
         example={"x": (2, 3, 4), "p": (1, 2, 0), "q": (0, 2, 1)}),
    Rule("expand(expand(x, shape=s), shape=t)", "expand(x, shape=t)",
         example={"x": (3,), "s": (2, 3), "t": (4, 2, 3)}),

    # --- arithmetic with constants; what stands in brackets is folded at once
    Rule("x / c", "x * (1 / c)", when=_invertible),
    Rule("x - c", "x + (0 - c)", when=_foldable),
    Rule("x * a * b", "x * (a * b)", when=_cheap_together, example={"b": (3,)}),
    Rule("x + a + b", "x + (a + b)", when=_cheap_together, example={"a": (2, 1)}),

    # --- what no kernel computes as a whole
    Rule("softmax(x, axis=k)",
         "exp(x - reduce_max(x, axes=a)) / reduce_sum(exp(x - reduce_max(x, axes=a)), axes=a)",
         derive=lambda bound: {"a": (bound["k"],)}, example={"k": 1}),

    # --- spelled-out activations
    Rule("x * sigmoid(x)", "silu(x)"),
    Rule("x / (exp(neg(x)) + 1)", "silu(x)"),
    Rule("x * sigmoid(x * 1.702)", "quick_gelu(x)"),
    Rule("x * 0.5 * (erf(x * 0.7071067811865476) + 1)", "gelu(x)"),
    Rule("x * (erf(x * 0.7071067811865476) + 1) * 0.5", "gelu(x)"),
    Rule("x * ((erf(x * 0.7071067811865476) + 1) * 0.5)", "gelu(x)"),
)


def apply_rules(graph: Graph, rules: tuple[Rule, ...] = RULES) -> Graph:
    """Every node replaced by the first rule that fits, until none does."""
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        by_root.setdefault(rule.left.operation, []).append(rule)

    def simplified(value: Value) -> Value:
        value = folded(value)
        if value.node is None:
            return value
        for rule in by_root.get(value.node.operation.name, ()):
            replacement = _applied(rule, value, simplified)
            if replacement is not None:
                return replacement
        return value

    def step(images: Images, node: Node, target: Graph) -> Value:
        return simplified(rebuilt(images, node, target))

    return copied(graph, step)


def _applied(rule: Rule, value: Value, made: Callable[[Value], Value]) -> Value | None:
    """What `rule` makes of `value`, or None where it does not apply."""
    for bound in matches(rule.left, value, {}):
        if rule.when(bound):
            with value.graph.scope(value.node.scope):
                result = build(rule.right, value.graph, {**bound, **rule.derive(bound)},
                               value.dtype, made)
            if result.type == value.type:
                return result
    return None
