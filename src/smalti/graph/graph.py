"""A pure value graph in single-assignment form.

Leaves are inputs (named), parameters (named as in the checkpoint) and small constants. Every other
value is the result of a node. Nodes stand in an order in which each uses only earlier values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import DTYPES, OPERATIONS, Operation, Type

CONSTANT_ELEMENTS_MAX = 1 << 20
"""Constants are part of a program and of its text; larger arrays are weights, and bound to it."""
VALUE_BYTES_MAX = 1 << 40
"""Bytes that a value may have, 1 TiB: no computer that is compiled for has the memory for more."""


class Value:
    """One value: a type, and where it comes from.

    `kind` is "input", "parameter", "constant" or "result". `name` is set for inputs and
    parameters, `data` for constants, `node` for results.
    """

    __slots__ = ("data", "graph", "kind", "name", "node", "type")

    def __init__(self, graph: Graph, type: Type, kind: str, *, name: str = "",
                 data: np.ndarray | None = None, node: Node | None = None) -> None:
        self.graph, self.type, self.kind = graph, type, kind
        self.name, self.data, self.node = name, data, node

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """One of `operation.DTYPES`."""
        return self.type.dtype

    def _with(self, operation: str, other: Value | float, *, swap: bool = False) -> Value:
        if not isinstance(other, Value):
            other = self.graph.constant(other, self.dtype)
        pair = (other, self) if swap else (self, other)
        return self.graph.apply(operation, *pair)

    def __add__(self, other: Value | float) -> Value:
        return self._with("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._with("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("div", other)

    def __radd__(self, other: float) -> Value:
        return self._with("add", other, swap=True)

    def __rsub__(self, other: float) -> Value:
        return self._with("sub", other, swap=True)

    def __rmul__(self, other: float) -> Value:
        return self._with("mul", other, swap=True)

    def reshape(self, *shape: int) -> Value:
        """The same elements in another shape; one extent may be -1."""
        return self.graph.apply("reshape", self, shape=self._whole("reshape", shape))

    def transpose(self, *perm: int) -> Value:
        """Axes in the order `perm`."""
        return self.graph.apply("transpose", self, perm=self._whole("transpose", perm))

    def _whole(self, method: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """`numbers` as integers. Raises InputError for others, a tuple of them, too."""
        if not all(isinstance(number, int | np.integer) for number in numbers):
            raise InputError(f"graph {self.graph.name}: {method} is given "
                             f"{', '.join(map(repr, numbers))}; expected whole numbers, such as "
                             f"x.{method}(1, 0)")
        return tuple(map(int, numbers))

    def __repr__(self) -> str:
        """What it is, its name or the number that it holds, and its type.

        >>> g = Graph()
        >>> g.constant(2.5), g.input("x", (2, 3)), g.input("y", (3,)) * 2
        (<constant 2.5 f32[]>, <input 'x' f32[2, 3]>, <result of mul f32[3]>)
        """
        if self.node is not None:
            return f"<result of {self.node.operation.name} {self.type}>"
        label = f"{self.data} " if self.data is not None and self.data.ndim == 0 else ""
        return f"<{self.kind} {repr(self.name) + ' ' if self.name else label}{self.type}>"


class Node:
    """An operation applied to values; `scope` says which part of the model it belongs to."""

    __slots__ = ("attributes", "inputs", "operation", "output", "scope")

    def __init__(self, operation: Operation, inputs: tuple[Value, ...],
                 attributes: dict[str, Any], scope: str) -> None:
        self.operation, self.inputs = operation, inputs
        self.attributes, self.scope = attributes, scope
        self.output: Value

    def __repr__(self) -> str:
        """The operation, the types that it reads and gives, and where it stands.

        >>> g = Graph()
        >>> with g.scope("block"):
        ...     (g.input("x", (2, 3)) + g.input("y", (3,))).node
        <node add(f32[2, 3], f32[3]) -> f32[2, 3] in block>
        """
        types = ", ".join(str(value.type) for value in self.inputs)
        place = f" in {self.scope}" if self.scope else ""
        return f"<node {self.operation.name}({types}) -> {self.output.type}{place}>"

    @property
    def flops(self) -> int:
        """Floating-point operations that compute the result."""
        types = [value.type for value in self.inputs]
        return self.operation.flops(types, self.output.type, self.attributes)

    @property
    def cost(self) -> int:
        """Floating-point operations, and elements that are made."""
        return self.flops + self.output.type.size


class Graph:
    """A computation: inputs and parameters in, named outputs out.

    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> from smalti.graph import evaluate
    >>> evaluate(g, {"x": np.ones((2, 3), np.float32)}, {})["y"].sum()
    np.float32(12.0)
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: dict[str, Value] = {}
        self.parameters: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.folded_flops = 0
        """What was computed for constants so far, see `folding.py`."""
        self._scope: list[str] = []

    # ------------------------------------------------------------------ building

    @contextmanager
    def scope(self, name: str | int) -> Iterator[None]:
        """Names made inside start with `name` and a dot; scopes nest."""
        self._scope.append(str(name))
        try:
            yield
        finally:
            self._scope.pop()

    @property
    def scope_name(self) -> str:
        """The current scope, joined with dots."""
        return ".".join(self._scope)

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Value:
        """A named input of the program. Raises InputError when the name is taken, and for shapes
        that are not fixed: extents are whole numbers from 0."""
        if name in self.inputs:
            raise InputError(f"graph {self.name} has two inputs named {name!r}")
        value = Value(self, self._type(self._text(name), shape, dtype), "input", name=name)
        self.inputs[name] = value
        return value

    def parameter(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Value:
        """The parameter `name` under the current scope; asked for twice, it is the same value."""
        full = ".".join([*self._scope, self._text(name)])
        type = self._type(full, shape, dtype)
        known = self.parameters.get(full)
        if known is None:
            known = self.parameters[full] = Value(self, type, "parameter", name=full)
        elif known.type != type:
            raise InputError(f"parameter {full} is {known.type}, asked for as {type}")
        return known

    def _text(self, name: object) -> str:
        """`name` itself. Raises InputError for a name that is no text."""
        if not isinstance(name, str):
            raise InputError(f"graph {self.name}: a name is {name!r}; expected a text")
        return name

    def _type(self, name: str, shape: object, dtype: object) -> Type:
        """The type of an input or parameter. Raises InputError for one that there cannot be."""
        extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if not isinstance(shape, Iterable) or not all(
                isinstance(extent, int | np.integer) and extent >= 0 for extent in extents):
            raise InputError(f"graph {self.name}: the shape of {name!r} is {shape!r}; expected "
                             f"whole numbers from 0, such as (1, 3, 64, 64)")
        if dtype not in DTYPES:
            raise InputError(f"graph {self.name}: the dtype of {name!r} is {dtype!r}; known: "
                             f"{', '.join(DTYPES)}")
        return Type(tuple(map(int, extents)), dtype)

    def constant(self, data: np.ndarray | float, dtype: str = "") -> Value:
        """A small constant of `dtype`; without one it is that of the array, f32 for float64.

        Raises InputError for what is no array of numbers, and for more than
        `CONSTANT_ELEMENTS_MAX` of them.
        """
        if dtype and dtype not in DTYPES:
            raise InputError(f"graph {self.name}: the dtype of a constant is {dtype!r}; known: "
                             f"{', '.join(DTYPES)}")
        try:
            array = np.asarray(data)
            if dtype or array.dtype == np.float64:
                array = array.astype(DTYPES[dtype or "f32"])
        except (TypeError, ValueError) as error:  # ragged lists, texts, objects
            raise InputError(f"graph {self.name}: {str(data)[:80]!r} is no constant ({error}); "
                             f"give a number or an array of numbers") from None
        names = [name for name, dtype in DTYPES.items() if array.dtype == dtype]
        if not names:
            raise InputError(f"graph {self.name}: a constant of numpy's dtype {array.dtype}; "
                             f"give an array of numbers, of one of {', '.join(DTYPES)}")
        if array.size > CONSTANT_ELEMENTS_MAX:
            raise InputError(f"graph {self.name}: a constant of {array.size} elements; at most "
                             f"{CONSTANT_ELEMENTS_MAX} are held by a graph, make it a parameter")
        array = array.copy()
        array.setflags(write=False)
        return Value(self, Type(array.shape, names[0]), "constant", data=array)

    def apply(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        """The result of the operation `name`. Raises InputError when inputs do not fit it."""
        operation = OPERATIONS.get(name)
        if operation is None:
            near = get_close_matches(str(name), OPERATIONS, 3)
            advice = f"did you mean {' or '.join(near)}?" if near else \
                "smalti.graph.OPERATIONS has all"
            raise InputError(f"no operation is named {name!r}; {advice}")
        for number, value in enumerate(inputs):
            self._check_own(f"input {number} of {name}", value)
        full = operation.complete(attributes)
        try:
            type = operation.infer([v.type for v in inputs], full)
        except InputError as error:
            raise InputError(f"{self.scope_name or self.name}: {error}") from None
        node = Node(operation, tuple(inputs), full, self.scope_name)
        node.output = Value(self, type, "result", node=node)
        self.nodes.append(node)
        return node.output

    def output(self, name: str, value: Value) -> None:
        """Make `value` an output. Raises InputError when the name is taken, and for what is no
        value of a graph."""
        if name in self.outputs:
            raise InputError(f"graph {self.name} has two outputs named {name!r}")
        self._check_own(f"the output {self._text(name)!r}", value)
        self.outputs[name] = value

    def _check_own(self, what: str, value: object) -> None:
        """Raise InputError for what is no value, and for one of another graph."""
        place = f"graph {self.name}" + (f", {self.scope_name}" if self._scope else "")
        if not isinstance(value, Value):
            raise InputError(f"{place}: {what} is {value!r}; expected a value of the graph, such "
                             f"as graph.input(...), graph.constant(...) or graph.apply(...) gives")
        if value.graph is not self and value.kind != "constant":
            raise InputError(f"{place}: {what} is {value!r} of another graph, "
                             f"{value.graph.name}; build all of it in one graph")

    # ------------------------------------------------------------------ asking

    def users(self) -> dict[Value, list[Node]]:
        """For each value that some node reads: those nodes, in order."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def flops(self) -> int:
        """Additions and multiplications of one run."""
        return sum(node.flops for node in self.nodes)

    def __repr__(self) -> str:
        ends = (", ".join(f"{name} {value.type}" for name, value in values.items())
                for values in (self.inputs, self.outputs))
        return (f"<smalti.Graph {self.name!r}: {len(self.nodes)} operations, "
                f"{len(self.parameters)} parameters, {' -> '.join(end or 'none' for end in ends)}>")

    def __str__(self) -> str:
        from smalti.graph.text import show
        return show(self)


def rebuilt(values: Mapping[Value, Value], node: Node, target: Graph) -> Value:
    """`node` applied in `target` to the images of its inputs under `values`."""
    target._scope = [node.scope] if node.scope else []
    result = target.apply(node.operation.name, *(values[v] for v in node.inputs),
                          **node.attributes)
    target._scope = []
    return result
