"""The meaning of a graph: every node evaluated with numpy, in order. Written to be read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.errors import InputError
from smalti.graph.graph import Graph, Value
from smalti.graph.operation import DTYPES


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray],
             parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of `graph` for the given arrays, computed with numpy.

    Raises InputError for a missing array or one of another shape.
    """
    known: dict[Value, np.ndarray] = {}
    for given, wanted in ((inputs, graph.inputs), (parameters, graph.parameters)):
        for name, value in wanted.items():
            if name not in given:
                raise InputError(f"{value.kind} {name!r} {value.type} is missing")
            array = np.asarray(given[name], DTYPES[value.dtype])
            if array.shape != value.shape:
                raise InputError(f"{value.kind} {name!r} is {array.shape}, expected {value.shape}")
            known[value] = array
    for node in graph.nodes:
        arrays = [v.data if v.kind == "constant" else known[v] for v in node.inputs]
        result = node.operation.meaning(*arrays, **node.attributes)
        known[node.output] = np.asarray(result, DTYPES[node.output.dtype])
    return {name: v.data if v.kind == "constant" else known[v]
            for name, v in graph.outputs.items()}
