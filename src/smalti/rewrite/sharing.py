"""Common subexpression elimination: equal nodes are computed once."""

from __future__ import annotations

from typing import Any

from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.rewrite.rebuilding import Images, copied


def share_equal_nodes(graph: Graph) -> Graph:
    """`graph` with equal nodes merged: silu(t) @ a, silu(t) @ b -> s = silu(t); s @ a, s @ b.

    a + b and b + a are equal, too.
    """
    first: dict[Any, Value] = {}

    def step(images: Images, node: Node, target: Graph) -> Value:
        keys = [_key(images[v]) for v in node.inputs]
        if node.operation.commutative:
            keys.sort(key=hash)
        key = (node.operation.name, tuple(keys), tuple(sorted(node.attributes.items())))
        if key not in first:
            first[key] = rebuilt(images, node, target)
        return first[key]

    return copied(graph, step)


def _key(value: Value) -> Any:
    """What operands are compared by: type and bytes of a constant, else the value itself."""
    return (value.type, value.data.tobytes()) if value.kind == "constant" else value
