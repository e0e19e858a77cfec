"""What depends on constants only is computed while a graph is built."""

from __future__ import annotations

import numpy as np

from smalti.graph.graph import Value

FOLDED_ELEMENTS_MAX = 65536
"""Larger constants would make programs large and are quickly made anew."""
FOLDED_FLOPS_MAX, FOLDED_FLOPS_SUM = 1 << 24, 1 << 26
"""Operations and elements that one value and all of a graph may take: models that ask for more, of
which a few bytes suffice, would hold up the compiler and fill the memory."""


def folded(value: Value) -> Value:
    """`value` as a constant when only constants go into it and it is small; else `value` itself.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> folded(g.constant(2.0) * 3.0).data
    array(6., dtype=float32)
    """
    node = value.node
    if (node is None or value.type.size > FOLDED_ELEMENTS_MAX
            or any(v.kind != "constant" for v in node.inputs)):
        return value
    cost = node.cost
    if cost > FOLDED_FLOPS_MAX or value.graph.folded_flops + cost > FOLDED_FLOPS_SUM:
        return value
    value.graph.folded_flops += cost
    with np.errstate(all="ignore"):  # as at run time, where 1 / 0 is infinite
        data = node.operation.meaning(*(v.data for v in node.inputs), **node.attributes)
    return value.graph.constant(data, value.dtype)
