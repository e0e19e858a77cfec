"""Attention: one kernel that computes all heads from queries, keys, values and a mask."""

from __future__ import annotations

import math

from smalti.fuse.placement import Placement
from smalti.fuse.region import buffer_of
from smalti.fuse.view import View, row_major
from smalti.graph import Node, Value
from smalti.graph.operations.attention import key_heads
from smalti.kernel import build


def emit_attention(placement: Placement, node: Node) -> None:
    """Add the kernel of an attention.

    Its operands are views [n, tokens, heads, channels]. An operand in which the channels of a head
    are not adjacent in memory is copied first.
    """
    q, k = node.inputs[:2]
    all_heads = node.attributes["num_heads"]
    shared = key_heads(q.shape[2], k.shape[2], all_heads)
    views = {}
    for name, value, heads in zip("qkv", node.inputs, (all_heads, shared, shared)):
        n, t, width = value.shape
        shape = (n, t, heads, width // heads)
        split = _before_reshape(placement, value, shape) or placement.view(value).reshape(shape)
        if split is None or split.strides[-1] != 1 and width != heads:
            split = placement.copied(placement.view(value), value).reshape(shape)
        views[name] = split
    if len(node.inputs) == 4:
        scores = (n, all_heads, q.shape[1], t)
        views["mask"] = _mask(placement, node.inputs[3], scores)
    out = placement.place(node.output)
    n, t, width = out.shape
    views["out"] = out.reshape((n, t, all_heads, width // all_heads))
    scale = node.attributes["scale"]
    if scale is None:
        scale = 1 / math.sqrt(views["q"].shape[3])
    buffers = {name: buffer_of(name, view) for name, view in views.items()}
    kernel = build.attention(**buffers, scale=scale, causal=bool(node.attributes["is_causal"]))
    placement.builder.add(kernel, views, node, "attention keeps its scores on chip", node.flops)


def _before_reshape(placement: Placement, value: Value, shape: tuple[int, ...]) -> View | None:
    """If `value` is a reshape of something of `shape`, where that is stored; else None."""
    node = value.node
    if node is None or node.operation.name != "reshape" or node.inputs[0].shape != shape:
        return None
    return placement.view(node.inputs[0])


def _mask(placement: Placement, value: Value, scores: tuple[int, int, int, int]) -> View:
    """A view of the mask as [n, heads, keys, queries]: adjacent queries, and strides of 0 where it
    is broadcast."""
    n, heads, queries, keys = scores
    view = placement.view(value).transpose((0, 1, 3, 2))
    if view.shape[3] > 1:
        view = placement.copy(view, value, row_major(view.shape), build.MASK_SLACK)
    return view.expand((n, heads, keys, queries))
