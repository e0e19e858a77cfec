"""Chooses the emitter of a node by the form of kernel that computes it."""

from __future__ import annotations

from collections.abc import Callable

from smalti.fuse.emit.attention import emit_attention
from smalti.fuse.emit.contraction import emit_convolution, emit_product
from smalti.fuse.emit.host import emit_host
from smalti.fuse.emit.map import emit_concat, emit_map
from smalti.fuse.emit.moments import emit_statistics
from smalti.fuse.emit.pooling import emit_pooling
from smalti.fuse.emit.reduction import emit_reduction
from smalti.fuse.emit.rotary import emit_rotary
from smalti.fuse.placement import Placement
from smalti.fuse.support import CONVOLUTIONS, NORMALIZATIONS, POOLS, PRODUCTS, REDUCTIONS
from smalti.graph import Node, Value

EPILOGUES: dict[str, Callable[[Placement, Node, Value], None]] = {
    **dict.fromkeys(CONVOLUTIONS, emit_convolution), **dict.fromkeys(PRODUCTS, emit_product),
    **dict.fromkeys(REDUCTIONS, emit_reduction), **dict.fromkeys(POOLS, emit_pooling)}
"""By the name of an anchor: the emitter of its kernel, which takes the anchor and the value at
which its epilogue ends."""
ALONE: dict[str, Callable[[Placement, Node], None]] = {
    "attention": emit_attention, "concat": emit_concat, "rotary_embedding": emit_rotary}
"""Emitters of operations whose kernels have no epilogue."""


def emit(placement: Placement, node: Node) -> None:
    """Add the regions that compute the result of `node`, if it is stored, and its statistics."""
    value, name, decisions = node.output, node.operation.name, placement.decisions
    if node in decisions.hosted:
        emit_host(placement, node)
        return
    if name in NORMALIZATIONS:
        emit_statistics(placement, node)
    if value not in decisions.stored:
        return
    if value in decisions.tails:
        anchor = decisions.tails[value]
        EPILOGUES[anchor.operation.name](placement, anchor, value)
    else:
        ALONE.get(name, emit_map)(placement, node)
