"""Maps: kernels that compute each element of a result from stored elements, without any sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smalti.fuse.placement import Placement
from smalti.fuse.reader import Reader
from smalti.fuse.view import View
from smalti.graph import Node
from smalti.kernel import build
from smalti.kernel.form import Expr, axis


def emit_map(placement: Placement, node: Node) -> None:
    """Add the map that computes `node`, and all values it reads that are not stored."""
    value = node.output
    reader, axes = Reader(placement), [(f"i{k}", n) for k, n in enumerate(value.shape)]
    expr = reader.node(node, tuple(axis(name) for name, _ in axes))
    add_map(reader, node, axes, expr, placement.place(value), placement.decisions.reason(value))


def emit_concat(placement: Placement, node: Node) -> None:
    """Add a map for each operand of a concat that its own kernel does not write directly into its
    part of the result."""
    whole = placement.place_once(node.output)
    dimension, at = node.attributes["axis"] % len(whole.shape), 0
    for value in node.inputs:
        part = whole.slice(dimension, at, at + value.shape[dimension])
        at += value.shape[dimension]
        if placement.is_inside(value, node.output):
            continue
        reader, axes = Reader(placement), [(f"i{k}", n) for k, n in enumerate(value.shape)]
        expr = reader.value(value, tuple(axis(name) for name, _ in axes))
        add_map(reader, node, axes, expr, part, "a part of a concat")


def add_map(reader: Reader, node: Node, axes: Sequence[tuple[str, int]], expr: Expr, target: View,
            reason: str) -> None:
    """Add the map target[axes] = `expr`, which `reader` has built."""
    reader.placement.builder.add(build.map_over(axes, expr, reader.buffers(out=target)),
                                 reader.views(out=target), node, reason, math.prod(target.shape))
