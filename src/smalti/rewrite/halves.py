"""Graphs of half precision (f16, bf16) become graphs that compute in f32.

Halves remain what inputs, parameters and outputs are stored as. Values between two operations are
f32 and are not rounded to the half that the graph asks for: they have at least its range and
precision, so nothing overflows that would not in f32. For the same reason a cast to a half inside
the graph does nothing. A value is rounded to its half only where it is an output of the graph, or
where a `bit_cast` asks for its bits.
"""

from __future__ import annotations

from smalti.graph import Graph, Node, Value
from smalti.graph.operation import HALVES


def widened(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """`graph` computing in f32 wherever it computed on halves, and the parameters that were halves.

    These parameters are declared as f32; the second result says by name which half their values
    are given in.

    >>> g = Graph("half")
    >>> x = g.input("x", (2, 3), "f16")
    >>> g.output("y", g.apply("exp", x * g.parameter("w", (3,), "f16")))
    >>> wide, parameters = widened(g)
    >>> print(wide, parameters)
    graph "half" {
      %0 = input "x" : f16[2, 3]
      %1 = parameter "w" : f32[3]
      %2 = cast(%0) {"to": "f32", "saturate": 1, "round_mode": "up"} : f32[2, 3]
      %3 = mul(%2, %1) {} : f32[2, 3]
      %4 = exp(%3) {} : f32[2, 3]
      %5 = cast(%4) {"to": "f16", "saturate": 1, "round_mode": "up"} : f16[2, 3]
      output "y" = %5
    }
     {'w': 'f16'}
    """
    leaves = [*graph.inputs.values(), *graph.parameters.values()]
    operands = [value for node in graph.nodes for value in (*node.inputs, node.output)]
    if not any(v.dtype in HALVES for v in (*leaves, *operands, *graph.outputs.values())):
        return graph, {}
    return _Widening(graph).run()


class _Widening:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.target = graph, Graph(graph.name)
        self.images: dict[Value, Value] = {}

    def run(self) -> tuple[Graph, dict[str, str]]:
        graph, target, halves = self.graph, self.target, {}
        for name, value in graph.inputs.items():
            given = target.input(name, value.shape, value.dtype)
            self.images[value] = self.cast(given, "f32") if value.dtype in HALVES else given
        for name, value in graph.parameters.items():
            if value.dtype in HALVES:
                halves[name] = value.dtype
            dtype = "f32" if value.dtype in HALVES else value.dtype
            self.images[value] = target.parameter(name, value.shape, dtype)
        for node in graph.nodes:
            target._scope = [node.scope] if node.scope else []
            self.images[node.output] = self.made(node)
        target._scope = []
        for name, value in graph.outputs.items():
            target.output(name, self.cast(self.image(value), value.dtype))
        return target, halves

    def image(self, value: Value) -> Value:
        """The value of the new graph that stands for `value`: f32 where that is a half."""
        if value not in self.images:  # a constant
            constant = self.target.constant(value.data, value.dtype)
            if value.dtype in HALVES:
                constant = self.target.constant(value.data, "f32")
            self.images[value] = constant
        return self.images[value]

    def cast(self, value: Value, dtype: str) -> Value:
        return value if value.dtype == dtype else self.target.apply("cast", value, to=dtype)

    def made(self, node: Node) -> Value:
        """The result of `node`, in f32 where it is a half."""
        name, dtype = node.operation.name, node.output.dtype
        inputs = [self.image(value) for value in node.inputs]
        wide = "f32" if dtype in HALVES else dtype
        if name == "cast" and dtype in HALVES:
            return self.cast(inputs[0], wide)
        if name == "bit_cast":  # asks for the bits of a half
            inputs = [self.cast(x, v.dtype) for x, v in zip(inputs, node.inputs, strict=True)]
        return self.cast(self.target.apply(name, *inputs, **node.attributes), wide)
