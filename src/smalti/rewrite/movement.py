"""Chains of reshapes, transposes and slices, made as short as they can be.

Whatever reshapes and transposes do, they cut the axes of their source into parts, change their
order and join them again: `reshape(transpose(reshape(x)))`. Exporters write the same as five or six
nodes, with axes of extent 1 that come and go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smalti.graph import Node, Value
from smalti.rewrite.rules import Made, Procedure

MOVEMENTS = ("reshape", "transpose")


@dataclass(eq=False)
class Part:
    """A part of an axis."""

    extent: int


class Layout:
    """How the elements of a value lie in its source: parts of the source's axes in a new order.

    `source` are all parts as they follow each other in the source, `axes` the same parts by the
    axes of the value. Parts of extent 1 are left out.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.axes = [[Part(n)] if n != 1 else [] for n in shape]
        self.source = [part for axis in self.axes for part in axis]

    def transpose(self, perm: Sequence[int]) -> None:
        """Axes in the order `perm`."""
        self.axes = [self.axes[axis] for axis in perm]

    def reshape(self, shape: Sequence[int]) -> bool:
        """The axes of another shape, with parts cut where these end. False where they end inside of
        a part that does not divide there."""
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
        """`parts` in their order, those as one that follow each other in the source, too."""
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
        """Cut a part after its outer `extent`; it becomes the outer one, the inner is returned."""
        inner = Part(part.extent // extent)
        part.extent = extent
        self.source.insert(self.source.index(part) + 1, inner)
        return inner

    def order(self) -> tuple[list[int], list[int]]:
        """Extents of the parts as they follow each other in the source, and their order in the
        value."""
        parts = self._joined([part for axis in self.axes for part in axis])
        return [part.extent for part in self.source], [self.source.index(part) for part in parts]


def shortened(value: Value, made: Made = lambda value: value) -> Value | None:
    """`value` as a shorter chain of movements, or None where there is no shorter one.

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
    """The layout behind a chain of movements; of reshapes in a row only the last one counts."""
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
    """The movements that bring the parts of `shape` into `order` and give them the shape `wanted`.

    Parts are the axes of `shape`, else those of `wanted`, where that saves a reshape; and axes of
    extent 1 stand where they save one.
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
    if not as_it_is:  # as many ones in front as are wanted in the end
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
    """The axes of `shape`, those of extent 1 left out, that make up each of `extents`."""
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
    """A slice of a slice, or of one operand of a concat, as a slice of what is in there.

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
    """A concat of reshapes that leave the axes up to its own as they are, as a reshape of one.

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
