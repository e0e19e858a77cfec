"""Shortens chains of reshapes, transposes and slices, called movements: they compute nothing.

Any chain of reshapes and transposes splits the axes of its source into parts, reorders the parts
and joins them to the axes of the result. Exporters write five or six nodes for that, with axes of
extent 1 that come and go; `reshape(transpose(reshape(x)))` can replace them, if no axis ends inside
of a part that cannot be divided there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from smalti.dataclass import dataclass
from smalti.graph import Node, Value
from smalti.rewrite.rules import Made, Procedure

MOVEMENTS = ("reshape", "transpose")


@dataclass(eq=False)
class Part:
    """A part of an axis: an axis of 12 may have a part of 3 and, inside of it, one of 4."""

    extent: int


class Layout:
    """Where a value that was reshaped and transposed has the elements of its source.

    `source` lists all parts of axes in their order in the source, outermost first; `axes` lists the
    same parts for each axis of the value. Parts of extent 1 are left out.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.axes = [[Part(n)] if n != 1 else [] for n in shape]
        self.source = [part for axis in self.axes for part in axis]

    def transpose(self, perm: Sequence[int]) -> None:
        """Put the axes into the order `perm`."""
        self.axes = [self.axes[axis] for axis in perm]

    def reshape(self, shape: Sequence[int]) -> bool:
        """Make the axes those of `shape`, and split parts in which one of these axes ends.

        False if an axis ends inside of a part where that cannot be divided evenly; the layout is of
        no more use then.
        """
        rest = self._joined([part for axis in self.axes for part in axis])[::-1]
        axes: list[list[Part]] = []
        for extent in shape:
            axis: list[Part] = []
            while extent > 1:
                part = rest.pop()
                if part.extent > extent:
                    if part.extent % extent:
                        return False
                    rest.append(self._cut(part, extent))
                elif extent % part.extent:
                    return False
                axis.append(part)
                extent //= part.extent
            axes.append(axis)
        self.axes = axes
        return True

    def _joined(self, parts: list[Part]) -> list[Part]:
        """`parts` in order, with those joined that also follow each other in the source."""
        joined: list[Part] = []
        for part in parts:
            before = self.source.index(part) - 1
            if joined and before >= 0 and self.source[before] is joined[-1]:
                joined[-1].extent *= part.extent
                self.source.remove(part)
            else:
                joined.append(part)
        return joined

    def _cut(self, part: Part, extent: int) -> Part:
        """Split `part`: it keeps the outer `extent`; the new inner part is returned."""
        inner = Part(part.extent // extent)
        part.extent = extent
        self.source.insert(self.source.index(part) + 1, inner)
        return inner

    def order(self) -> tuple[list[int], list[int]]:
        """The extents of the parts in the order of the source, and the numbers of these parts in
        the order in which the value has them."""
        parts = self._joined([part for axis in self.axes for part in axis])
        return [part.extent for part in self.source], [self.source.index(part) for part in parts]


def shortened(value: Value, made: Made = lambda value: value) -> Value | None:
    """A value equal to `value` made by fewer reshapes and transposes; None if there is none.

    >>> from smalti.graph import Graph
    >>> x = Graph().input("x", (1, 77, 768))
    >>> keys = x.reshape(1, 77, 12, 64).transpose(0, 2, 1, 3).reshape(12, 77, 64)
    >>> keys = shortened(keys.transpose(0, 2, 1).reshape(1, 12, 64, 77))
    >>> keys.node.attributes, keys.node.inputs[0].node.attributes, keys.node.inputs[0].node.inputs
    ({'shape': (1, 12, 64, 77)}, {'perm': (0, 2, 1)}, (<input 'x' f32[1, 77, 768]>,))
    """
    if value.type.size == 0:
        return None
    chain: list[Node] = []
    source = value
    while source.node is not None and source.node.operation.name in MOVEMENTS:
        chain.insert(0, source.node)
        source = source.node.inputs[0]
    for length in range(len(chain), 1, -1):
        nodes = chain[-length:]
        source = nodes[0].inputs[0]
        layout = _moved(source.shape, nodes)
        if layout is not None:
            steps = _steps(source.shape, *layout.order(), value.shape)
            return _applied(source, steps, made) if len(steps) < length else None
    return None


def _moved(shape: Sequence[int], nodes: Sequence[Node]) -> Layout | None:
    """The layout of a value of `shape` after a chain of movements; None if it cannot be told.

    Of several reshapes in a row only the last one counts.
    """
    layout = Layout(shape)
    for node, behind in zip(nodes, [*nodes[1:], None]):
        if node.operation.name == "transpose":
            layout.transpose(node.attributes["perm"])
        elif (behind is None or behind.operation.name == "transpose") \
                and not layout.reshape(node.output.shape):
            return None
    return layout


def _steps(shape: tuple[int, ...], extents: list[int], order: list[int],
           wanted: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """The movements (name, numbers) that bring a value of `shape` to the shape `wanted`.

    `extents` and `order` are those of `Layout.order`. Where the axes of `shape`, or those of
    `wanted`, are split finely enough already, the first or the last reshape is saved; axes of
    extent 1 are placed such that they need no reshape of their own.
    """
    if order == sorted(order):
        return [("reshape", wanted)] if wanted != shape else []
    parts = _grouped(shape, extents)
    as_it_is = parts is not None
    if parts is None:
        ends = _grouped(wanted, [extents[i] for i in order])
        parts = [[n] for n in extents] if ends is None else [ends[order.index(i)]
                                                             for i in range(len(order))]
    first = [sum(map(len, parts[:i])) for i in range(len(parts))]
    order = [first[i] + k for i in order for k in range(len(parts[i]))]
    split = [n for part in parts for n in part]
    ends_there = [n for n in wanted if n != 1] == [split[i] for i in order]
    places = [i for i, n in enumerate(wanted) if n == 1] if ends_there else []
    ones = [i for i, n in enumerate(shape) if n == 1]
    if not as_it_is:  # as many axes of extent 1 in front as `wanted` has
        ones = list(range(len(places)))
        shape = (*(1 for _ in ones), *split)
    if len(ones) != len(places):
        places = list(range(len(ones)))
    axes, rest = [i for i in range(len(shape)) if i not in ones], iter(order)
    perm = tuple(ones[places.index(i)] if i in places else axes[next(rest)]
                 for i in range(len(shape)))
    steps = [] if as_it_is else [("reshape", shape)]
    steps.append(("transpose", perm))
    if tuple(shape[i] for i in perm) != wanted:
        steps.append(("reshape", wanted))
    return steps


def _grouped(shape: Sequence[int], extents: Sequence[int]) -> list[list[int]] | None:
    """The axes of `shape`, without those of extent 1, grouped so that the product of each group is
    its number in `extents`; None if they do not divide so."""
    rest, groups = [n for n in shape if n != 1][::-1], []
    for extent in extents:
        group: list[int] = []
        while math.prod(group) < extent:
            group.append(rest.pop())
        if math.prod(group) != extent:
            return None
        groups.append(group)
    return groups


def _applied(value: Value, steps: Sequence[tuple[str, tuple[int, ...]]], made: Made) -> Value:
    for name, numbers in steps:
        value = made(value.reshape(*numbers) if name == "reshape" else value.transpose(*numbers))
    return value


def cut_short(value: Value, made: Made = lambda value: value) -> Value | None:
    """A slice of a slice, or of one operand of a concat, as a slice of what these take it from.

    None for any other slice.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> both = g.apply("concat", g.input("x", (2, 4)), g.input("y", (2, 3)), axis=1)
    >>> cut_short(g.apply("slice", both, axis=1, start=4, end=6)).node.inputs
    (<input 'y' f32[2, 3]>,)
    """
    node, inner = value.node, value.node.inputs[0].node
    axis, start, end = (node.attributes[name] for name in ("axis", "start", "end"))
    if inner is None or inner.operation.name not in ("slice", "concat") \
            or inner.attributes["axis"] % len(value.shape) != axis:
        return None
    if inner.operation.name == "slice":
        source, first = inner.inputs[0], -inner.attributes["start"]
    else:
        first = 0
        for source in inner.inputs:
            if start < first + source.shape[axis]:
                break
            first += source.shape[axis]
        if end > first + source.shape[axis]:
            return None
    return made(value.graph.apply("slice", source, axis=axis, start=start - first,
                                  end=end - first))


def joined_earlier(value: Value, made: Made = lambda value: value) -> Value | None:
    """A concat of reshaped values as the reshape of a concat.

    None if a reshape changes the axis of the concat or one in front of it.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> parts = [g.input(name, (2, n, 12)).reshape(2, n, 3, 4) for name, n in (("x", 5), ("y", 7))]
    >>> joined_earlier(g.apply("concat", *parts, axis=1)).node.inputs
    (<result of concat f32[2, 12, 12]>,)
    """
    axis = value.node.attributes["axis"] % len(value.shape)
    sources = []
    for part in value.node.inputs:
        if part.node is None or part.node.operation.name != "reshape":
            return None
        sources.append(part.node.inputs[0])
        if sources[-1].shape[:axis + 1] != part.shape[:axis + 1] \
                or sources[-1].shape[axis + 1:] != sources[0].shape[axis + 1:]:
            return None
    whole = made(value.graph.apply("concat", *sources, axis=axis))
    return made(whole.reshape(*value.shape))


MOVEMENT_RULES = (Procedure(MOVEMENTS, shortened), Procedure(("slice",), cut_short),
                  Procedure(("concat",), joined_earlier))
