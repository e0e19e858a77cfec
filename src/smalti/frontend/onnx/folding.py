"""The graph that nodes of ONNX are imported into: it computes at once what it can."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.graph.folding import folded
from smalti.graph.graph import VALUE_BYTES_MAX
from smalti.graph.operation import DTYPES

AXES_MAX = 32
"""Axes that a value may have: numpy has 64, and the meanings of some operations make an array of
twice as many on the way."""


class FoldingGraph(Graph):
    """A graph in which what depends on constants only is a constant, and what is empty, too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.open: set[Value] = set()
        """Values that depend on an input whose elements only a run tells."""

    def apply(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        value = super().apply(name, *inputs, **attributes)
        if value.type.bytes > VALUE_BYTES_MAX or len(value.shape) > AXES_MAX:
            raise InputError(f"a result of {value.type} is larger than any memory")
        if value.type.size == 0:
            self.nodes.pop()
            return self.constant(np.zeros(value.shape, DTYPES[value.dtype]), value.dtype)
        constant = folded(value)
        if constant is not value:
            self.nodes.pop()
        elif not self.open.isdisjoint(inputs):
            self.open.add(value)
        return constant
