"""How much of what layers are off by reaches the result of a network.

    y = x + branch(x)        a branch that is off by 1 % is off by |branch(x)| / |y| of that in y

Errors of layers are independent, nearly, so that squares of them add up. A norm, a product or a
pointwise function hands a relative error on as it is; where values are added or laid side by side,
each counts by its share of the result. Squares are measured in one evaluation, and walking from the
results back to the inputs gives what a squared error of each value becomes in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import Graph, Node, Value

JOINS = ("add", "sub", "concat")
"""Operations whose operands are parts of their result."""
SQUARES_MIN = 2.0 ** -126
"""The least sum of squares that is divided by, of values that are all 0: the least normal f32."""


@dataclass(frozen=True)
class Influence:
    """The nodes of a graph, its results, the values that change with its inputs, and the names of
    outputs that are mean squares of values at joins."""

    nodes: tuple[Node, ...]
    results: tuple[Value, ...]
    moving: frozenset[Value]
    squares: Mapping[Value, str]

    def of(self, outputs: Mapping[str, np.ndarray]) -> dict[Value, float]:
        """What a squared relative error of each value is in the results, from outputs of the graph.

        >>> g = Graph()
        >>> x = g.input("x", (4,))
        >>> branch = g.apply("tanh", x)
        >>> g.output("y", x + branch)
        >>> known = influence(g)
        >>> squares = dict(zip(known.squares.values(), (4.0, 1.0, 9.0)))
        >>> round(known.of({name: np.array(n) for name, n in squares.items()})[branch], 3)
        0.111
        """
        found = dict.fromkeys(self.results, 1.0)
        sums = {value: float(np.mean(outputs[name])) * value.type.size
                for value, name in self.squares.items()}
        for node in reversed(self.nodes):
            reached = found.get(node.output, 0.0)
            parts = _moving(node.inputs, self.moving)
            joins = node.operation.name in JOINS and len(parts) > 1
            for x in parts if reached else ():
                share = 1.0
                if joins:
                    spread = 1 if node.operation.name == "concat" else \
                        node.output.type.size / x.type.size
                    share = sums[x] * spread / max(sums[node.output], SQUARES_MIN)
                found[x] = found.get(x, 0.0) + reached * share
        return found


def influence(graph: Graph) -> Influence:
    """Make mean squares of what is joined in `graph` outputs of it; the results are those that it
    has so far."""
    nodes, results = tuple(graph.nodes), tuple(graph.outputs.values())
    moving = set(graph.inputs.values())
    for node in nodes:
        if moving.intersection(node.inputs):
            moving.add(node.output)
    squares: dict[Value, str] = {}
    for node in nodes:
        if node.operation.name in JOINS and len(_moving(node.inputs, moving)) > 1:
            for value in (*_moving(node.inputs, moving), node.output):
                if value not in squares:
                    squares[value] = f"square {len(squares)}"
                    graph.output(squares[value], graph.apply(
                        "reduce_mean", value * value, axes=tuple(range(len(value.shape))),
                        keepdims=True))
    return Influence(nodes, results, frozenset(moving), squares)


def _moving(values: Sequence[Value], moving: Collection[Value]) -> list[Value]:
    """Those of `values` that change with inputs."""
    return [value for value in values if value in moving]
