"""Operations that no kernel computes: numpy does, on what is stored."""

from __future__ import annotations

from smalti.fuse.placement import Placement
from smalti.graph import Node


def emit_host(placement: Placement, node: Node) -> None:
    """Add the region in which numpy computes `node`."""
    views = {f"x{k}": placement.view(value) for k, value in enumerate(node.inputs)}
    views["out"] = placement.place(node.output)
    placement.builder.add_host(node.operation.name, node.attributes, views, node,
                               placement.decisions.hosted[node], node.flops)
