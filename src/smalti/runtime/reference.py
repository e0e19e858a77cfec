"""The program of a CPU that Smalti has no code generator for: the graph, run by numpy."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

import numpy as np

from smalti.graph import Graph, evaluate
from smalti.runtime.inputs import all_given, checked_input, finite
from smalti.runtime.interface import Program, Recipe
from smalti.runtime.sources import Done, Weights, nothing, reading
from smalti.runtime.weights import checked


class ReferenceProgram(Program):
    """Runs a graph with numpy, where there is no code generator for the CPU."""

    _said = False

    def __init__(self, graph: Graph, recipe: Recipe | None = None) -> None:
        self.graph, self.name, self.recipe = graph, graph.name, recipe
        self.inputs, self.outputs = ({name: value.shape for name, value in values.items()}
                                     for values in (graph.inputs, graph.outputs))
        self.parameters: dict[str, np.ndarray] = {}
        self.bound = not graph.parameters
        self.timings: dict[str, float] = {}
        if not ReferenceProgram._said:
            ReferenceProgram._said = True
            warnings.warn("this CPU is neither x86-64 with AVX2 and FMA nor AArch64: Smalti runs "
                          "its numpy reference, which is many times slower", RuntimeWarning,
                          stacklevel=3)

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        shapes = {name: value.shape for name, value in self.graph.parameters.items()}
        needed = self._asked(shapes, only)
        read, done = reading(weights, done, needed, shapes, self.name, strict)
        self.bound = False
        for name in needed:
            value = self.graph.parameters[name]
            self.parameters[name] = checked(name, read(name), value.shape, value.dtype)
        self.bound = True

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._require_bound()
        all_given(inputs, self.inputs, self.name)
        given = {name: checked_input(name, inputs[name], value.shape, value.dtype)
                 for name, value in self.graph.inputs.items()}
        return evaluate(self.graph, given, self.parameters)

    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        every = Graph(self.graph.name)
        every.inputs, every.parameters = self.graph.inputs, self.graph.parameters
        every.nodes = self.graph.nodes
        every.outputs = {str(i): node.output for i, node in enumerate(self.graph.nodes)}
        results = evaluate(every, inputs, self.parameters)
        for node, result in zip(self.graph.nodes, results.values(), strict=True):
            if not finite(result):
                return f"{node.operation.name} {node.scope}"
        return None

    def _explained(self, all: bool, columns: int) -> str:
        return f"{self.name}: the numpy reference runs, {len(self.graph.nodes)} nodes one by one\n"
