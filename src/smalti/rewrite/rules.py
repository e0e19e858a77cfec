"""The rules by which expressions become simpler ones.

Each says what it looks for (`before`), what it puts there (`after`) and an example, on which the
tests evaluate both. To add a rule, add it to `RULES`: that is the only place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from smalti.graph import Graph, Node, Value
from smalti.graph.folding import FOLDED_ELEMENTS_MAX, folded
from smalti.graph.graph import rebuilt
from smalti.graph.operation import Type
from smalti.rewrite.pattern import Bindings, Expression, PatternCall, build, expression, matches
from smalti.rewrite.rebuilding import Images, copied

Made = Callable[[Value], Value]


@dataclass(frozen=True)
class Rule:
    """`before` -> `after`, in the notation of `pattern`.

    It applies where `before` matches, `when(bindings)` holds and `after` has the type of `before`:
    that last condition is what keeps `x + 0` from losing the broadcast of a zero of another shape.
    `derive(bindings)` gives the names in `after` that do not stand in `before`: attributes, and
    arrays that become constants. `example` gives shapes for names of values (default [2, 3]; for
    a, b, c it is []), or an array for one of a, b, c, and values for names of attributes.
    """

    before: str
    after: str
    when: Callable[[Bindings], bool] = lambda bound: True
    derive: Callable[[Bindings], Mapping[str, Any]] = lambda bound: {}
    example: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def left(self) -> PatternCall:
        """`before` as an expression, the root of which is an operation."""
        pattern = expression(self.before)
        assert isinstance(pattern, PatternCall), f"{self.before} is no operation"
        return pattern

    @cached_property
    def right(self) -> Expression:
        """`after` as an expression."""
        return expression(self.after)

    @property
    def roots(self) -> tuple[str, ...]:
        """The operations at which to look for it."""
        return (self.left.operation,)

    def applied(self, value: Value, made: Made) -> Value | None:
        """What it makes of `value`, or None where it does not apply."""
        for bound in matches(self.left, value, {}):
            if self.when(bound):
                result = build(self.right, value.graph, {**bound, **self.derive(bound)},
                               value.dtype, made)
                if result.type == value.type:
                    return result
        return None


@dataclass(frozen=True)
class Procedure:
    """What no expression can spell: `applied(value, made)` looks at a value of an operation of
    `roots` and gives an equal one, each node of which went through `made`, or None."""

    roots: tuple[str, ...]
    applied: Callable[[Value, Made], Value | None]


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


def _from_behind(bound: Bindings) -> bool:
    return any(axis < 0 for axis in bound["k"])


def _from_front(bound: Bindings) -> Mapping[str, Any]:
    rank = len(bound["x"].shape)
    return {"l": tuple(sorted(axis % rank for axis in bound["k"]))}


def _whole(bound: Bindings) -> Mapping[str, Any]:
    known = -math.prod(bound["s"])
    rest = bound["x"].type.size // known if known else 0
    return {"t": tuple(rest if n == -1 else n for n in bound["s"])}


def _in_order(bound: Bindings) -> bool:
    return tuple(bound["p"]) == tuple(range(len(bound["p"])))


def _wider(bound: Bindings) -> bool:
    return (bound["x"].dtype, bound["t"]) == ("f32", "f64")


def _counts(bound: Bindings) -> bool:
    return bound["x"].dtype == "bool" and bound["t"] in ("i32", "i64") and bool(bound["k"]) \
        and bound["c"].type.size == 1 and not bound["c"].data.any()


RULES: tuple[Rule, ...] = (
    # --- what changes nothing
    Rule("x + 0", "x"),
    Rule("x - 0", "x"),
    Rule("x * 1", "x"),
    Rule("x / 1", "x"),
    Rule("1 / x", "reciprocal(x)"),
    Rule("neg(neg(x))", "x"),
    Rule("reshape(x, shape=s)", "x", example={"s": (2, 3)}),
    Rule("expand(x, shape=s)", "x", example={"s": (2, 3)}),
    Rule("resize(x, scales=s)", "x", example={"s": (1, 1)}),
    Rule("cast(x, to=t)", "x", example={"t": "f32"}),
    Rule("slice(x, axis=k, start=i, end=j)", "x", example={"k": 1, "i": 0, "j": 3}),
    Rule("concat(x, axis=k)", "x", example={"k": 1}),
    Rule("transpose(x, perm=p)", "x", when=_in_order, example={"p": (0, 1)}),

    # --- axes are counted from the first, and shapes are whole
    Rule("reshape(x, shape=s)", "reshape(x, shape=t)", lambda bound: -1 in bound["s"], _whole,
         {"s": (3, -1)}),
    *(Rule(f"{name}(x, axes=k, keepdims=d)", f"{name}(x, axes=l, keepdims=d)", _from_behind,
           _from_front, {"k": (-1,), "d": 1})
      for name in ("reduce_max", "reduce_mean", "reduce_sum")),

    # --- movement after movement
    Rule("expand(expand(x, shape=s), shape=t)", "expand(x, shape=t)",
         example={"x": (3,), "s": (2, 3), "t": (4, 2, 3)}),

    # --- questions, as half precision asks whether something overflowed
    Rule("is_inf(cast(x, to=t))", "is_inf(x)", _wider, example={"t": "f64"}),
    Rule("is_nan(cast(x, to=t))", "is_nan(x)", _wider, example={"t": "f64"}),
    Rule("greater(reduce_sum(cast(x, to=t), axes=k, keepdims=d), c)",
         "cast(reduce_max(cast(x, to=u), axes=k, keepdims=d), to=v)", _counts,
         lambda bound: {"u": "f32", "v": "bool"},
         {"x": Type((2, 3), "bool"), "t": "i64", "k": (1,), "d": 1,
          "c": np.zeros((), np.int64)}),

    # --- arithmetic with constants; what stands in brackets is folded at once
    Rule("x / c", "x * (1 / c)", when=_invertible),
    Rule("x - c", "x + (0 - c)", when=_foldable),
    Rule("x * a * b", "x * (a * b)", when=_cheap_together, example={"b": (3,)}),
    Rule("x + a + b", "x + (a + b)", when=_cheap_together, example={"a": (2, 1)}),
)


def apply_rules(graph: Graph, rules: Sequence[Rule | Procedure]) -> Graph:
    """Every node replaced by the first rule that fits, until none does."""
    by_root: dict[str, list[Rule | Procedure]] = {}
    for rule in rules:
        for root in rule.roots:
            by_root.setdefault(root, []).append(rule)

    def simplified(value: Value) -> Value:
        value = folded(value)
        if value.node is None:
            return value
        for rule in by_root.get(value.node.operation.name, ()):
            outer, value.graph._scope = value.graph._scope, [value.node.scope]
            replacement = rule.applied(value, simplified)
            value.graph._scope = outer
            if replacement is not None:
                return replacement
        return value

    def step(images: Images, node: Node, target: Graph) -> Value:
        return simplified(rebuilt(images, node, target))

    return copied(graph, step)
