"""Checks that a graph keeps the rules of its form; run between passes."""

from __future__ import annotations

from smalti.errors import InputError, VerificationError
from smalti.graph.graph import Graph, Node, Value


def verify(graph: Graph, after: str = "building") -> None:
    """Raise VerificationError naming the pass, the node, what was expected and what was found."""
    known: set[Value] = set(graph.inputs.values()) | set(graph.parameters.values())
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value.kind != "constant" and value not in known:
                fail(graph, after, node, position, "every input defined before it is used",
                     f"{value!r} is not")
        try:
            full = node.operation.complete(node.attributes)
            expected = node.operation.infer([v.type for v in node.inputs], full)
        except InputError as error:
            fail(graph, after, node, position, "inputs that fit the operation", str(error))
        if expected != node.output.type:
            fail(graph, after, node, position, f"a result of {expected}", f"{node.output.type}")
        if node.output.node is not node or node.output in known:
            fail(graph, after, node, position, "each value defined once", "a second definition")
        known.add(node.output)
    for name, value in graph.outputs.items():
        if value.kind != "constant" and value not in known:
            raise VerificationError(f"after {after}: output {name!r} of graph {graph.name} "
                                    f"is not defined by it")


def fail(graph: Graph, after: str, node: Node, position: int, expected: str, found: str) -> None:
    """Raise with the lines around the node."""
    first = max(0, position - 5)
    around = "\n".join(f"  {'>' if i == position else ' '} {n!r}"
                       for i, n in enumerate(graph.nodes[first:position + 3], first))
    raise VerificationError(
        f"after {after}, graph {graph.name}, node {position} ({node.operation.name} "
        f"{node.scope}): expected {expected}, found {found}\n{around}")
