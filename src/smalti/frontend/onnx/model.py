"""An ONNX model as a graph of ours, its weights beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from smalti.errors import InputError, UnsupportedError, UnsupportedNode
from smalti.frontend.onnx import rules as rules
from smalti.frontend.onnx.importer import FoldingGraph, Importer, Scope, Step, steps_of
from smalti.frontend.onnx.reading import Source, read_model
from smalti.frontend.onnx.tensors import Tensors, dtype_of
from smalti.graph import Graph
from smalti.graph.operation import Type

Shapes = Mapping[str, Sequence[int] | int]


class Weights(Mapping[str, np.ndarray]):
    """The parameters of a graph by name, read from the model file when they are asked for."""

    def __init__(self, tensors: Tensors, names: Mapping[str, object]) -> None:
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._tensors[name]

    def __iter__(self):
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Model:
    """What `load` gives.

    `inputs` are the types of the inputs by name, `parameters` the weights that `graph` has, read
    lazily. `deferred` are the nodes that wait for values which only a run tells; a model without
    any is one `graph`.
    """

    def __init__(self, source: Source, inputs: Mapping[str, Type], importer: Importer,
                 outputs: Mapping[str, str]) -> None:
        self.source, self.name, self.inputs = source, source.name, dict(inputs)
        self.outputs = dict(outputs)
        """The key of each output."""
        self.deferred: tuple[Step, ...] = tuple(importer.deferred)
        self.partial: Graph = importer.graph
        """The graph of what does not wait."""
        self.parameters: Mapping[str, np.ndarray] = Weights(importer.tensors,
                                                            importer.graph.parameters)

    @property
    def graph(self) -> Graph:
        """The whole model as one graph. Raises UnsupportedError where that needs a run."""
        if self.deferred:
            raise UnsupportedError(
                f"{self.name} is no single graph: {len(self.deferred)} nodes wait for values that "
                f"only a run tells:", [
                    UnsupportedNode(step.name, step.node.op_type, "waits for a value")
                    for step in self.deferred])
        return self.partial


def load(model: str | Path | onnx.ModelProto, shapes: Shapes | None = None) -> Model:
    """An ONNX model, imported: a file, with its external data beside it, or a ModelProto.

    `shapes` gives shapes of inputs that the model leaves open, by name of the input
    ({"x": (1, 3, 512, 512)}) or of the dimension ({"batch": 1}). Raises InputError for a file that
    is no sound model and for dimensions that stay open, and UnsupportedError listing every node
    that has no equal here.

    >>> from onnx import parser
    >>> model = load(parser.parse_model('''
    ...     <ir_version: 9, opset_import: ["" : 20]>
    ...     twice (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }'''), shapes={"n": 2})
    >>> print(model.graph, end="")
    graph "twice" {
      %0 = input "x" : f32[2, 4]
      %1 = add(%0, %0) {} : f32[2, 4] @ "y"
      output "y" = %1
    }
    """
    source = read_model(model)
    proto = source.proto.graph
    tensors = Tensors(proto.initializer, source.folder)
    if proto.sparse_initializer:
        raise InputError(f"{source.name} has sparse weights; make them dense")
    inputs = input_types(source, tensors, shapes or {})
    graph = FoldingGraph(source.name)
    importer = Importer(source, graph, tensors, functions_of(source.proto))
    scope = Scope(source.opsets)
    for name, type in inputs.items():
        key = scope.define(name)
        value = importer.values[key] = graph.input(name, type.shape, type.dtype)
        graph.open.add(value)
    for name in tensors:
        scope.define(name)
    importer.run(steps_of(proto.node, scope))
    outputs = {}
    for value in proto.output:
        outputs[value.name] = key = scope.key(value.name, "an output of the model")
        if key in importer.values or key in tensors:
            graph.output(value.name, importer.output(key))
    if not outputs:
        raise InputError(f"{source.name} has no outputs")
    importer.clean(graph.outputs.values())
    return Model(source, inputs, importer, outputs)


def functions_of(proto: onnx.ModelProto) -> dict[tuple[str, str], onnx.FunctionProto]:
    """The functions that a model brings, by domain and name."""
    return {("" if f.domain == "ai.onnx" else f.domain, f.name): f for f in proto.functions}


def input_types(source: Source, tensors: Tensors, shapes: Shapes) -> dict[str, Type]:
    """The types of the inputs. Raises InputError listing all dimensions that stay open."""
    found: dict[str, Type] = {}
    used, missing = set(), []
    for value in source.proto.graph.input:
        if value.name in tensors:  # an initializer of a model before IR version 4
            continue
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(f"{source.name} has an input that is no tensor:", [
                UnsupportedNode(value.name, "input", str(kind or "no type"))])
        given = shapes.get(value.name)
        declared = value.type.tensor_type
        dtype = dtype_of(declared.elem_type, f"input {value.name!r}")
        if given is not None:
            used.add(value.name)
            found[value.name] = Type(_given(value, given), dtype)
            continue
        if not declared.HasField("shape"):
            missing.append(f"{value.name}: any shape")
            continue
        extents = []
        for dim in declared.shape.dim:
            if dim.dim_param in shapes and dim.dim_param:
                used.add(dim.dim_param)
                extents.append(shapes[dim.dim_param])
            else:
                extents.append(dim.dim_value if dim.HasField("dim_value")
                               else dim.dim_param or "?")
        if any(not isinstance(n, int) or n < 0 for n in extents):
            missing.append(f"{value.name}: [{', '.join(map(str, extents))}]")
        else:
            found[value.name] = Type(tuple(extents), dtype)
    if unknown := sorted(set(shapes) - used):
        names = sorted({v.name for v in source.proto.graph.input} - set(tensors))
        raise InputError(f"shapes are given for {', '.join(unknown)}; {source.name} has the "
                         f"inputs {', '.join(names)}")
    if missing:
        raise InputError(f"{source.name} leaves dimensions open: {'; '.join(missing)}. Give "
                         f"shapes={{...}} by input or by dimension, as in "
                         f"shapes={{{missing[0].split(':')[0]!r}: (1, 3, 224, 224)}}")
    return found


def _given(value: onnx.ValueInfoProto, given: Sequence[int] | int) -> tuple[int, ...]:
    """A shape that the caller gives, checked against what the model fixes."""
    shape = (given,) if isinstance(given, int) else tuple(int(n) for n in given)
    declared = value.type.tensor_type
    fits = all(n >= 0 for n in shape)
    if declared.HasField("shape"):
        dims = declared.shape.dim
        fits = fits and len(dims) == len(shape) and all(
            not dim.HasField("dim_value") or dim.dim_value == n
            for dim, n in zip(dims, shape))
    if not fits:
        expected = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
                    for d in declared.shape.dim]
        raise InputError(f"the shape {list(shape)} is given for input {value.name!r}, which is "
                         f"[{', '.join(map(str, expected))}]")
    return shape
