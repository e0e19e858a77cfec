"""Constant folding: nodes that depend on constants only are computed while compiling."""

from __future__ import annotations

from smalti.graph import Graph, Node, Value
from smalti.graph.folding import folded
from smalti.graph.graph import rebuilt
from smalti.rewrite.rebuilding import Images, copied


def fold_constants(graph: Graph) -> Graph:
    """`graph` with nodes of constants computed: exp([0, 1]) * x -> [1, 2.718] * x."""
    def step(images: Images, node: Node, target: Graph) -> Value:
        return folded(rebuilt(images, node, target))

    return copied(graph, step)
