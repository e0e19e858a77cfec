"""Tells which values of four axes are images [n, c, h, w], stored channels-last, and which are
rows, stored row-major.

The operations that make and read a value tell: convolutions, group normalisations and the like
work on images; matrix products and normalisations of the last axis on rows. Values that are
combined element by element are of one kind. If nothing tells, a value is an image.
"""

from __future__ import annotations

from smalti.fuse.support import CONVOLUTIONS, NORMALIZATIONS, POOLS, PRODUCTS, REDUCTIONS
from smalti.graph import Graph, Value

OF_IMAGES = {*CONVOLUTIONS, "group_normalization", "resize", *POOLS}
OF_ROWS = PRODUCTS | NORMALIZATIONS - {"group_normalization"}
TOGETHER = {"cast", "concat", *REDUCTIONS}
"""Operations, besides pointwise ones, whose operands and result are all images or all rows."""


def row_values(graph: Graph) -> set[Value]:
    """The values of four axes that are rows, not images.

    >>> g = Graph()
    >>> scores = g.apply("mat_mul", g.input("q", (1, 8, 77, 64)), g.input("k", (1, 8, 64, 77)))
    >>> scores in row_values(g)
    True
    """
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        parent.setdefault(value, value)
        while parent[value] is not value:
            parent[value] = value = parent[parent[value]]
        return value

    seen: dict[bool, set[Value]] = {True: set(), False: set()}
    for node in graph.nodes:
        values = [v for v in (*node.inputs, node.output) if len(v.shape) == 4]
        name = node.operation.name
        if node.operation.pointwise or name in TOGETHER:
            for value in values:
                parent[root(value)] = root(values[0])
        elif name in OF_IMAGES | OF_ROWS:
            seen[name in OF_ROWS].update(values)
    images = {root(value) for value in seen[False]}
    lines = {root(value) for value in seen[True]} - images
    return {value for value in parent if root(value) in lines}
