"""Dead code elimination: nodes that no output depends on are left out."""

from __future__ import annotations

from smalti.graph import Graph
from smalti.rewrite.rebuilding import copied


def remove_dead_nodes(graph: Graph) -> Graph:
    """`graph` without unused nodes: y = x + 1, z = x * 2, output y -> y = x + 1, output y."""
    live, read = [], set(graph.outputs.values())
    for node in reversed(graph.nodes):
        if node.output in read:
            live.append(node)
            read.update(node.inputs)
    return copied(graph, nodes=reversed(live))
