"""Builds the expressions of kernels: elements of a value, from elements that are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smalti.fuse.placement import Placement
from smalti.fuse.region import buffer_of
from smalti.fuse.support import CONVOLUTIONS, INTEGER_PRODUCTS, INTEGERS, STORED
from smalti.fuse.view import Storage, View, row_major
from smalti.graph import Node, Value
from smalti.graph.operations.contraction import WORD_FACTOR
from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Load, affine

At = tuple[Index, ...]
"""The place of an element of a value: an index for each of its axes, in terms of kernel axes."""


class Reader:
    """Builds the expressions of one kernel and collects the buffers that they load from.

    `extents` gives those of the kernel's axes by name; they are needed where a reshape has to split
    an index into two.
    """

    def __init__(self, placement: Placement, extents: Mapping[str, int] | None = None) -> None:
        self.placement, self.extents = placement, extents or {}
        self._names: dict[View, str] = {}

    def buffers(self, **named: View) -> list[Buffer]:
        """The buffers of all that was loaded so far, followed by those of the views `named`."""
        return [buffer_of(name, view) for name, view in self.views(**named).items()]

    def views(self, **named: View) -> dict[str, View]:
        """The view of each buffer by name, those `named` included."""
        return {**{name: view for view, name in self._names.items()}, **named}

    def load(self, view: View, at: tuple[Index | Load, ...]) -> Load:
        """The load of the element of `view` at an index."""
        name = self._names.setdefault(view, f"x{len(self._names)}")
        return Load(name, at)

    def array(self, data: np.ndarray, at: At) -> Expr:
        """The element of a constant array at an index; a number if all elements are equal."""
        if one_number(data):
            return Const(float(data.flat[0]))
        storage = Storage("constant", data.size, data=data)
        return self.load(View(storage, 0, data.shape, row_major(data.shape)), at)

    def value(self, value: Value, at: At, known: Mapping[Value, Expr] | None = None,
              anchor: Node | None = None) -> Expr:
        """The element of `value` at `at`: a load if it is stored, else the expression that makes
        it.

        `known` gives expressions for values that the kernel itself has, such as the sum of its
        `anchor`, to which the bias of a convolution is added here.
        """
        if known and value in known:
            expr = known[value]
            if anchor is None or anchor.output is not value:
                return expr
            channel = at[1] if anchor.operation.name in CONVOLUTIONS else at[-1]
            assert isinstance(expr, Load), expr
            moved = channel.plus(affine(expr)[3].offset)  # by slices, and to a group's first one
            expr = Load(expr.buffer, (*expr.index[:3], moved))
            if len(anchor.inputs) == 3 and anchor.operation.name not in INTEGER_PRODUCTS:
                expr = Call("add", (expr, self.load(self.placement.view(anchor.inputs[2]),
                                                    (channel,))))
            return expr
        if value.kind == "constant" and one_number(value.data):
            return Const(float(value.data.flat[0]))
        stored = value.node is None or value in self.placement.views
        if stored or self._viewed(value):
            return self.load(self.placement.view(value), at)
        return self.node(value.node, at, known, anchor)

    def _viewed(self, value: Value) -> bool:
        """True if `value` is a chain of views of something stored."""
        while value.node is not None and value not in self.placement.views:
            if not self.placement.is_view(value.node):
                return False
            value = value.node.inputs[0]
        return True

    def node(self, node: Node, at: At, known: Mapping[Value, Expr] | None = None,
             anchor: Node | None = None) -> Expr:
        """The expression of the element at `at` of the result of `node`; see `value`."""
        name, attributes = node.operation.name, node.attributes

        def read(value: Value, place: At) -> Expr:
            return self.value(value, place, known, anchor)

        if node.operation.pointwise:
            return Call(name, tuple(read(v, broadcast(v, at)) for v in node.inputs))
        x = node.inputs[0]
        if name == "transpose":
            place = [at[attributes["perm"].index(i)] for i in range(len(at))]
            return read(x, tuple(place))
        if name == "slice":
            k = attributes["axis"]
            return read(x, (*at[:k], at[k].plus(attributes["start"]), *at[k + 1:]))
        if name == "cast":  # loads widen, stores round
            value = read(x, at)
            cut = x.dtype in STORED and attributes["to"] in (*INTEGERS, WORD_FACTOR) \
                and not is_whole(value)
            return Call("trunc", (value,)) if cut else value
        if name == "expand":
            return read(x, broadcast(x, at))
        if name == "resize":
            return read(x, tuple(_divided(i, int(s)) for i, s in zip(at, attributes["scales"])))
        if name == "reshape":
            return read(x, _reshaped(at, node.output.shape, x.shape, self.extents))
        if name == "gather":
            table, rows = self.placement.view(x), self.placement.view(node.inputs[1])
            self.placement.builder.note_rows(rows, table.shape[0])
            return self.load(table, (self.load(rows, at[:-1]), at[-1]))
        if name == "group_normalization":
            scale, shift = (self.load(v, at[:2]) for v in self.placement.statistics[node])
            return Call("add", (Call("mul", (read(x, at), scale)), shift))
        if name == "layer_normalization":
            first = attributes["axis"] % len(at)
            scale, shift = (self.load(v, at[:first]) for v in self.placement.statistics[node])
            normal = Call("add", (Call("mul", (read(x, at), scale)), shift))
            gamma, beta = (read(v, at[first:]) for v in node.inputs[1:])
            scaled = normal if gamma == Const(1.0) else Call("mul", (normal, gamma))
            return scaled if beta == Const(0.0) else Call("add", (scaled, beta))
        if name == "rms_normalization":
            first = attributes["axis"] % len(at)
            (scale,) = (self.load(v, at[:first]) for v in self.placement.statistics[node])
            return Call("mul", (Call("mul", (read(x, at), scale)),
                                self.load(self.placement.view(node.inputs[1]), at[first:])))
        raise AssertionError(f"{name} has no expression")


def one_number(data: np.ndarray) -> bool:
    """True if all elements are the same number; 0 and -0 are two.

    >>> one_number(np.zeros(2)), one_number(np.array([0.0, -0.0]))
    (True, False)
    """
    first = data.flat[0]
    if data.dtype.kind == "f" and first == 0 and np.signbit(data).any() != np.signbit(data).all():
        return False
    return bool((data == first).all())


def is_whole(expr: Expr) -> bool:
    """True if an expression is surely a whole number: rounded, then moved or bounded by whole ones.

    >>> x = Load("x", ())
    >>> is_whole(Call("min", (Call("round", (x,)), Const(255.0)))), is_whole(x)
    (True, False)
    """
    if isinstance(expr, Const):
        return float(expr.value).is_integer()
    if isinstance(expr, Load):
        return False
    if expr.function in ("add", "sub", "max", "min"):
        return all(map(is_whole, expr.arguments))
    return expr.function in ("round", "floor", "ceil", "trunc")


def broadcast(value: Value, at: At) -> At:
    """The index of the element of `value` that, when `value` is broadcast, is at the index `at`."""
    tail = at[len(at) - len(value.shape):]
    return tuple(Index() if n == 1 else i for i, n in zip(tail, value.shape))


def _divided(index: Index, divisor: int) -> Index:
    """index // divisor."""
    if divisor == 1 or not index.terms:
        return index
    return Index(index.terms, index.offset, index.divisor * divisor)


def _reshaped(at: At, shape: Sequence[int], old: Sequence[int],
              extents: Mapping[str, int]) -> At:
    """The index, in a value of the shape `old`, of the element that is at `at` once the value is
    reshaped to `shape`."""
    inner = [(i, n) for i, n in zip(at, shape) if n != 1]
    wanted = [n for n in old if n != 1]
    if [n for _, n in inner] == wanted:
        left = iter(i for i, _ in inner)
        return tuple(Index() if n == 1 else next(left) for n in old)
    flat, stride = Index(), 1
    for index, extent in reversed(inner):
        terms = tuple((name, stride * c) for name, c in index.terms)
        flat = Index((*terms, *flat.terms), flat.offset + stride * index.offset)
        stride *= extent
    places = []
    for extent in reversed(old):
        flat, rest = _divmod(flat, extent, extents)
        places.append(rest)
    return tuple(reversed(places))


def _divmod(index: Index, extent: int, extents: Mapping[str, int]) -> tuple[Index, Index]:
    """index // extent and index % extent, as indices.

    Terms whose coefficient is a multiple of `extent` make the quotient; all others together have to
    stay below `extent`. Raises AssertionError if they do not.

    >>> _divmod(Index((("h", 8), ("i", 2)), 1), 8, {"h": 3, "i": 4})
    (Index(terms=(('h', 1),), offset=0, divisor=1), Index(terms=(('i', 2),), offset=1, divisor=1))
    """
    whole, offset = divmod(index.offset, extent)
    outer = tuple((name, c // extent) for name, c in index.terms if c % extent == 0)
    rest = tuple((name, c) for name, c in index.terms if c % extent)
    ends = [c * (extents[name] - 1) for name, c in rest]
    if offset + sum(e for e in ends if e < 0) < 0 or offset + sum(
            e for e in ends if e > 0) >= extent:
        raise AssertionError(f"{index} in parts of {extent} is no plain index")
    return Index(outer, whole), Index(rest, offset)
