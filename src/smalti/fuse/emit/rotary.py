"""Rotary embeddings: maps that rotate each pair of channels by an angle that depends on
position."""

from __future__ import annotations

import numpy as np

from smalti.fuse.emit.map import add_map
from smalti.fuse.placement import Placement
from smalti.fuse.reader import At, Reader
from smalti.graph import Node
from smalti.kernel.form import Call, Index, axis


def emit_rotary(placement: Placement, node: Node) -> None:
    """Add the map that computes, for each channel x of a pair, x * cos - other * sin if it is the
    first one, and x * cos + other * sin if it is the second.

    The axis i counts the pairs of a head, k the two channels of a pair: adjacent if they are
    interleaved, else half a head apart.
    """
    (x, cos, sin), heads = node.inputs, node.attributes["num_heads"]
    half = x.shape[-1] // (heads or 1) // 2
    n, t, h, i, k = map(axis, "nthik")
    steps = {"i": 2, "k": 1} if node.attributes["interleaved"] else {"k": half, "i": 1}
    extents = {"i": half, "k": 2}
    pair = [(name, extents[name]) for name in steps]
    channel = Index(tuple(steps.items()))
    other = Index(tuple((a, -s if a == "k" else s) for a, s in steps.items()), steps["k"])
    if heads:
        axes = [("n", x.shape[0]), ("t", x.shape[1]), ("h", heads), *pair]
        head = (("h", 2 * half),) if heads > 1 else ()
        places: list[At] = [(n, t, Index((*head, *at.terms), at.offset)) for at in (channel, other)]
    else:
        axes = [("n", x.shape[0]), ("h", x.shape[1]), ("t", x.shape[2]), *pair]
        places = [(n, h, t, at) for at in (channel, other)]
    reader = Reader(placement, dict(axes))
    sign = np.array([-1, 1], np.float32)
    turn = (n if cos.shape[0] > 1 else Index(), t, i if cos.shape[2] == half else channel)
    here, there = (reader.value(x, place) for place in places)
    part = Call("mul", (reader.value(sin, turn), reader.array(sign, (k,))))
    value = Call("add", (Call("mul", (here, reader.value(cos, turn))),
                         Call("mul", (there, part))))
    shape = [extent for _, extent in axes]
    target = placement.place(node.output).reshape(shape)
    add_map(reader, node, axes, value, target, placement.decisions.reason(node.output))
