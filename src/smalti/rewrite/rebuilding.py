"""Copies a graph node by node; a function says what becomes of each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt

Images = dict[Value, Value]
Step = Callable[[Images, Node, Graph], Value]


def copied(graph: Graph, step: Step = rebuilt, nodes: Iterable[Node] | None = None) -> Graph:
    """A copy of `graph` in which `step(images, node, target)` makes the result of each node.

    `target` is the new graph; `images` maps values of the old graph to those of the new one, all
    that `node` reads among them. Inputs, parameters and outputs are kept. `nodes` (all by default)
    are copied in the order given.

    >>> g = Graph()
    >>> x = g.input("x", (2,))
    >>> g.output("y", x + 1.0)
    >>> str(copied(g)) == str(g)
    True
    """
    target = Graph(graph.name)
    images: Images = {v: target.input(v.name, v.shape, v.dtype) for v in graph.inputs.values()}
    for v in graph.parameters.values():
        images[v] = target.parameter(v.name, v.shape, v.dtype)

    def constants(values: Iterable[Value]) -> None:
        for value in values:
            if value.kind == "constant" and value not in images:
                images[value] = target.constant(value.data, value.dtype)

    for node in graph.nodes if nodes is None else nodes:
        constants(node.inputs)
        images[node.output] = step(images, node, target)
    constants(graph.outputs.values())
    for name, value in graph.outputs.items():
        target.output(name, images[value])
    return target
