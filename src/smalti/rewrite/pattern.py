"""Expressions such as `x * sigmoid(x)`, to be found in a graph or built into one.

The notation is Python's: a call is the operation of that name, `+ - * /` are add, sub, mul and
div, a number is a constant all of whose elements are that number. Names stand for values, names
after `=` for attributes: `reshape(reshape(x, shape=s), shape=t)`. The names a, b and c stand for
constants only, u, v and w for constants and parameters, also in another shape or order of axes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import OPERATIONS, Graph, Value

CONSTANT_NAMES, WEIGHT_NAMES = frozenset("abc"), frozenset("uvw")
RELATIVE_ERROR_MAX = 1e-6
"""How far a number in a graph may be from that of a pattern: both were rounded to f32."""

OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
Bindings = Mapping[str, Any]


@dataclass(frozen=True)
class PatternName:
    """A name in a pattern: it matches any value, but the same one wherever it stands."""

    name: str


@dataclass(frozen=True)
class PatternNumber:
    """A number in a pattern: it matches a constant all of whose elements are this number."""

    number: float


@dataclass(frozen=True)
class PatternCall:
    """An operation in a pattern; `attributes` pairs each attribute with the name that it binds."""

    operation: str
    inputs: tuple[Expression, ...]
    attributes: tuple[tuple[str, str], ...]


Expression = PatternName | PatternNumber | PatternCall


def expression(text: str) -> Expression:
    """The expression that `text` spells. Raises ValueError when it is none.

    >>> expression("x * 2").inputs
    (PatternName(name='x'), PatternNumber(number=2))
    """
    return _read(ast.parse(text, mode="eval").body)


def _read(tree: ast.expr) -> Expression:
    match tree:
        case ast.Name(id=name):
            return PatternName(name)
        case ast.Constant(value=int() | float() as number):
            return PatternNumber(number)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            return PatternCall(OPERATORS[type(operator)], (_read(left), _read(right)), ())
        case ast.Call(func=ast.Name(id=name), args=inputs, keywords=keywords) if name in OPERATIONS:
            named = tuple((str(k.arg), ast.unparse(k.value)) for k in keywords)
            return PatternCall(name, tuple(_read(tree) for tree in inputs), named)
    raise ValueError(f"no expression of a pattern: {ast.unparse(tree)}")


def names(pattern: Expression) -> tuple[set[str], set[str]]:
    """The names of values and the names of attributes in `pattern`.

    >>> names(expression("reshape(x, shape=s)"))
    ({'x'}, {'s'})
    """
    if isinstance(pattern, PatternName):
        return {pattern.name}, set()
    values: set[str] = set()
    attributes: set[str] = set()
    if isinstance(pattern, PatternCall):
        attributes.update(name for _, name in pattern.attributes)
        for inner in map(names, pattern.inputs):
            values |= inner[0]
            attributes |= inner[1]
    return values, attributes


def matches(pattern: Expression, value: Value, bound: Bindings) -> Iterator[Bindings]:
    """All ways in which `value` has the form of `pattern`, as bindings that extend `bound`."""
    if isinstance(pattern, PatternName):
        if bound.get(pattern.name, value) is value and _may_be(pattern.name, value):
            yield {**bound, pattern.name: value}
    elif isinstance(pattern, PatternNumber):
        if value.kind == "constant" and _is_number(value.data, pattern.number):
            yield bound
    elif value.node is not None and value.node.operation.name == pattern.operation:
        node, named = value.node, dict(pattern.attributes)
        bound = dict(bound)
        for attribute, given in node.attributes.items():
            wanted = (bound.setdefault(named[attribute], given) if attribute in named
                      else node.operation.attributes[attribute])
            if wanted != given:
                return
        orders = [node.inputs, node.inputs[::-1]] if node.operation.commutative else [node.inputs]
        for order in orders:
            if len(order) == len(pattern.inputs):
                yield from _match_all(pattern.inputs, order, bound)


def _match_all(patterns: tuple[Expression, ...], values: tuple[Value, ...],
               bound: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    for extended in matches(patterns[0], values[0], bound):
        yield from _match_all(patterns[1:], values[1:], extended)


def _may_be(name: str, value: Value) -> bool:
    """True if `value` is of the kind that `name` stands for."""
    if name in WEIGHT_NAMES:
        while value.node is not None and value.node.operation.name in ("reshape", "transpose"):
            value = value.node.inputs[0]
        return value.kind in ("constant", "parameter")
    return name not in CONSTANT_NAMES or value.kind == "constant"


def _is_number(data: np.ndarray, number: float) -> bool:
    return data.size > 0 and bool(np.all(np.abs(data - number)
                                         <= abs(number) * RELATIVE_ERROR_MAX))


def build(pattern: Expression, graph: Graph, bound: Bindings, dtype: str,
          made: Callable[[Value], Value] = lambda value: value) -> Value:
    """Add what `pattern` spells to `graph` and return its value.

    Names stand for what they are bound to, arrays becoming constants; numbers become constants of
    `dtype`. `made` is called with each new value, and what it returns is used instead.

    >>> g = Graph()
    >>> build(expression("silu(x) * 2"), g, {"x": g.input("x", (3,))}, "f32")
    <result of mul f32[3]>
    """
    if isinstance(pattern, PatternName):
        value = bound[pattern.name]
        return graph.constant(value, dtype) if isinstance(value, np.ndarray) else value
    if isinstance(pattern, PatternNumber):
        return graph.constant(pattern.number, dtype)
    inputs = [build(inner, graph, bound, dtype, made) for inner in pattern.inputs]
    attributes = {attribute: bound[name] for attribute, name in pattern.attributes}
    return made(graph.apply(pattern.operation, *inputs, **attributes))
