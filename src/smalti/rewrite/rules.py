"""Algebraic rules that replace expressions of a graph by simpler ones.

Each rule says what it looks for (`before`), what it puts in its place (`after`), and an example on
which the tests evaluate both. To add a rule, add it to `RULES`: that is the only place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import Graph, Node, Value
from smalti.graph.folding import FOLDED_ELEMENTS_MAX, folded
from smalti.graph.graph import rebuilt
from smalti.graph.operation import Type
from smalti.rewrite.pattern import Bindings, Expression, PatternCall, build, expression, matches
from smalti.rewrite.rebuilding import Images, copied

Made = Callable[[Value], Value]


@dataclass(frozen=True)
class Rule:
    """A rewrite `before` -> `after`, both in the notation of `pattern.py`.

    A rule applies where `before` matches, `when(bindings)` is True, and `after` has the shape and
    dtype of `before`: the last condition keeps `x + 0` where the zero broadcasts x to a larger
    shape. `derive(bindings)` gives what the names that stand in `after` only are bound to:
    attributes, and arrays that become constants. `example` gives the shapes of values by name
    (default [2, 3]; for a, b and c []), or an array for one of a, b, c, and the values of
    attributes.
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
        """The operations whose results the rule may replace."""
        return (self.left.operation,)

    def applied(self, value: Value, made: Made) -> Value | None:
        """The value that replaces `value`, or None if the rule does not apply to it."""
        for bound in matches(self.left, value, {}):
            if self.when(bound):
                result = build(self.right, value.graph, {**bound, **self.derive(bound)},
                               value.dtype, made)
                if result.type == value.type:
                    return result
        return None


@dataclass(frozen=True)
class Procedure:
    """A rule that a function applies, where no pattern can express it.

    `applied(value, made)` gets the result of one of the operations `roots`, and returns a value
    equal to it, or None. It has to pass each value that it makes through `made`, which simplifies
    it in turn.
    """

    roots: tuple[str, ...]
    applied: Callable[[Value, Made], Value | None]


def _foldable(bound: Bindings) -> bool:
    """True if c is small enough to be folded; else the rule would match its own result again."""
    return bound["c"].type.size <= FOLDED_ELEMENTS_MAX


def _invertible(bound: Bindings) -> bool:
    """True if 1 / c is a normal f32, so that x / c and x * (1 / c) differ by rounding only."""
    c = bound["c"].data
    if c.dtype != np.float32 or not _foldable(bound):
        return False
    size = np.abs(c)
    return bool(np.all((size > 1e-37) & (size < 1e37)))


def _cheap_together(bound: Bindings) -> bool:
    """True if a and b make a constant no larger than the larger of them, small enough to fold."""
    sizes = sorted((bound["a"].type.size, bound["b"].type.size))
    return sizes[0] == 1 and sizes[1] <= FOLDED_ELEMENTS_MAX


def _from_behind(bound: Bindings) -> bool:
    return any(axis < 0 for axis in bound["k"])


def _from_front(bound: Bindings) -> Mapping[str, Any]:
    rank = len(bound["x"].shape)
    return {"l": tuple(sorted(axis % rank for axis in bound["k"]))}


def _whole(bound: Bindings) -> Mapping[str, Any]:
    """t: the shape s with its -1 replaced by the extent it stands for."""
    known = -math.prod(bound["s"])
    rest = bound["x"].type.size // known if known else 0
    return {"t": tuple(rest if n == -1 else n for n in bound["s"])}


def _in_order(bound: Bindings) -> bool:
    return tuple(bound["p"]) == tuple(range(len(bound["p"])))


def _wider(bound: Bindings) -> bool:
    return (bound["x"].dtype, bound["t"]) == ("f32", "f64")


def _counts(bound: Bindings) -> bool:
    """True if the sum counts which of x, truth values, are True, and is compared with 0."""
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
    """`graph` with each node replaced by the first rule that applies, until none does."""
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
