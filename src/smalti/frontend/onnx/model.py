"""An ONNX model as a graph of ours, its weights beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError, UnsupportedError, UnsupportedNode
from smalti.frontend.onnx import rules as rules
from smalti.frontend.onnx.folding import AXES_MAX, FoldingGraph
from smalti.frontend.onnx.importer import Importer, dtype_name
from smalti.frontend.onnx.messages import FunctionProto, ModelProto, TypeProto, ValueInfoProto
from smalti.frontend.onnx.reading import Source, read_model
from smalti.frontend.onnx.steps import Scope, ScopedNode, steps_of
from smalti.frontend.onnx.tensors import DTYPE_OF
from smalti.frontend.onnx.weights import ModelTensors
from smalti.graph import Graph
from smalti.graph.graph import VALUE_BYTES_MAX
from smalti.graph.operation import Type

Shapes = Mapping[str, Sequence[int] | int]
UNNAMED = "?"
"""An open dimension that has no name; some exporters write this for one, too."""


class Weights(Mapping[str, np.ndarray]):
    """The parameters of a graph by name, read from the model file when they are asked for."""

    def __init__(self, tensors: ModelTensors, names: Mapping[str, object]) -> None:
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._tensors[name]

    def __iter__(self):
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Other:
    """What an input is that is no tensor: a sequence of tensors, a value that may be absent, a map
    or text. `dtype` is that of the elements, "" where these are no numbers."""

    sequence: bool
    optional: bool
    dtype: str


@dataclass(eq=False)
class ImportedStage:
    """Steps that were imported together: a graph of what could be, and the rest.

    Inputs and outputs of the graph have keys for names. `baked` are arrays of inputs that it was
    made for, not only for their types; `constants` are results that no run changes.
    """

    graph: FoldingGraph
    baked: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    deferred: tuple[ScopedNode, ...]
    asked: frozenset[ScopedNode]
    """Those among them whose own rules need a value."""
    parameters: Mapping[str, np.ndarray]


class OnnxModel:
    """What `load` gives.

    `inputs` are the types of the inputs by name (None for sequences, strings and the like, which
    `others` describe), `outputs` the names of the outputs, and `parameters` the weights that
    `graph` has, read lazily. Where shapes or branches depend on values there is no single graph:
    `deferred` are the nodes that wait for them, and `runtime/staged.py` runs the model in stages.
    """

    def __init__(self, source: Source, shapes: Shapes) -> None:
        proto = source.proto.graph
        self.source, self.name = source, source.name
        self.tensors = ModelTensors(source.proto, source.folder)
        if proto.sparse_initializer:
            raise InputError(f"{source.name} has sparse weights; make them dense")
        self.functions = functions_of(source.proto)
        self.inputs = input_types(source, shapes)
        self.others = {value.name: other_of(value.type) for value in source.inputs
                       if self.inputs[value.name] is None}
        scope = Scope(source.opsets)
        for name in (*self.inputs, *(tensor.name for tensor in proto.initializer)):
            scope.define(name)
        self.steps = tuple(steps_of(proto.node, scope, self.tensors.names(proto)))
        self.outputs = {v.name: scope.key(v.name, "an output of the model") for v in proto.output}
        """The key of each output by its name."""
        if not self.outputs:
            raise InputError(f"{source.name} has no outputs")
        self.first = self.stage(self.steps, self.inputs, {}, {}, self.outputs.values())

    def stage(self, steps: Sequence[ScopedNode], types: Mapping[str, Type | None],
              arrays: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray],
              wanted: Iterable[str]) -> ImportedStage:
        """Import `steps`, which read inputs of these types; `arrays` are those that are there.

        Outputs are the keys in `wanted` and what deferred steps read. Raises as `load` does.
        """
        graph = FoldingGraph(self.name)
        importer = Importer(self.source, graph, self.tensors, self.functions)
        for key, type in types.items():
            if type is None:
                importer.waiting.add(key)
                continue
            value = importer.values[key] = graph.input(key, type.shape, type.dtype)
            if key in arrays:
                importer.arrays[value] = arrays[key]
            else:
                graph.open.add(value)
        for key, array in constants.items():
            importer.values[key] = graph.constant(array, dtype_name(array))
        importer.run(steps)
        fixed = {}
        reads = [key for step in importer.deferred for key in (*step.reads, *step.captured)
                 if key not in self.tensors]
        for key in dict.fromkeys((*wanted, *reads)):
            value = importer.made(key, leaf=key in wanted)
            if value is None or value.kind == "input" and value.name == key:
                continue
            if value.kind == "constant":
                fixed[key] = value.data
            else:
                graph.output(key, value)
        importer.clean(graph.outputs.values())
        return ImportedStage(graph, importer.baked, fixed, tuple(importer.deferred),
                             frozenset(importer.asked), Weights(self.tensors, graph.parameters))

    @property
    def deferred(self) -> tuple[ScopedNode, ...]:
        """The nodes that wait for values which only a run tells."""
        return self.first.deferred

    @property
    def static(self) -> bool:
        """Whether the model is one graph."""
        return not self.first.deferred and None not in self.inputs.values()

    @cached_property
    def graph(self) -> Graph:
        """The whole model as one graph. Raises UnsupportedError where that needs a run."""
        if not self.static:
            raise UnsupportedError(
                f"{self.name} is no single graph, as {len(self.deferred)} nodes need values that "
                f"only a run tells; `smalti run` and smalti.compile run it in stages:", [
                    UnsupportedNode(step.name, step.node.op_type, "waits for a value")
                    for step in self.deferred])
        graph, first = Graph(self.name), self.first
        graph.inputs, graph.parameters = first.graph.inputs, first.graph.parameters
        graph.nodes = first.graph.nodes
        for name, key in self.outputs.items():
            if key in first.graph.outputs:
                value = first.graph.outputs[key]
            elif key in first.constants:
                value = graph.constant(first.constants[key], dtype_name(first.constants[key]))
            else:
                value = first.graph.inputs[key]
            graph.outputs[name] = value
        return graph

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The weights that `graph` has."""
        return self.first.parameters


def load(model: Any, shapes: Shapes | None = None) -> OnnxModel:
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
    return OnnxModel(read_model(model), shapes or {})


def functions_of(proto: ModelProto) -> dict[tuple[str, str], FunctionProto]:
    """The functions that a model brings, by domain and name. Raises InputError for two of one name,
    which the format allows as overloads."""
    found: dict[tuple[str, str], FunctionProto] = {}
    for function in proto.functions:
        key = "" if function.domain == "ai.onnx" else function.domain, function.name
        if key in found:
            raise InputError(f"the model has two functions named {function.name!r} in the domain "
                             f"{function.domain!r}; give each a name of its own, also where they "
                             f"are overloads")
        found[key] = function
    return found


def input_types(source: Source, shapes: Shapes) -> dict[str, Type | None]:
    """The types of the inputs, None for what is no tensor of numbers.

    Raises InputError listing all dimensions that stay open, and for shapes that are given for what
    the model has not.
    """
    found: dict[str, Type | None] = {}
    declared = {value.name: _declared(value) for value in source.inputs}
    missing: dict[str, Sequence[int | str] | None] = {}
    for value in source.inputs:
        given = shapes.get(value.name)
        extents: Sequence[int | str] | None = declared[value.name]
        if value.type.WhichOneof("value") != "tensor_type" \
                or value.type.tensor_type.elem_type not in DTYPE_OF:
            found[value.name] = None
            continue
        if given is not None:
            extents = _given(value.name, extents, given)
        elif extents is not None:
            extents = [_extent(n, shapes[n]) if isinstance(n, str) and n in shapes
                       and n != UNNAMED else n for n in extents]
        if extents is None or any(isinstance(n, str) for n in extents):
            missing[value.name] = extents
        else:
            dtype = DTYPE_OF[value.type.tensor_type.elem_type]
            found[value.name] = Type(tuple(map(int, extents)), dtype)
    names = {n for extents in declared.values() for n in extents or () if isinstance(n, str)}
    if unknown := sorted(set(shapes) - set(declared) - (names - {UNNAMED})):
        raise InputError(f"arrays or shapes are given for {', '.join(unknown)}; {source.name} has "
                         f"the inputs {', '.join(sorted(declared)) or 'none'}, and leaves open: "
                         f"{_listed(declared) or 'no dimensions'}")
    for name, type in found.items():
        if type is not None and (len(type.shape) > AXES_MAX or Type(
                tuple(max(n, 1) for n in type.shape), type.dtype).bytes > VALUE_BYTES_MAX):
            raise InputError(f"the input {name!r} of {source.name} is {type}, larger than any "
                             f"memory")
    if missing:
        raise _open_dimensions(source.name, missing)
    return found


def other_of(type: TypeProto) -> Other:
    """What an input is that is no tensor of numbers.

    >>> from onnx import TensorProto, helper
    >>> tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    >>> other_of(helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)))
    Other(sequence=True, optional=True, dtype='f32')
    """
    optional = type.HasField("optional_type")
    inner = type.optional_type.elem_type if optional else type
    sequence = inner.HasField("sequence_type")
    element = inner.sequence_type.elem_type if sequence else inner
    return Other(sequence, optional, DTYPE_OF.get(element.tensor_type.elem_type, ""))


def _open_dimensions(title: str, missing: Mapping[str, Sequence[int | str] | None]) -> InputError:
    """An error that says how to fix the dimensions that inputs leave open; None is any shape."""
    name, extents = next(iter(missing.items()))
    shape = tuple(n if isinstance(n, int) else 64 if k else 1
                  for k, n in enumerate(extents or ("", "")))
    numbers = ",".join(map(str, shape))
    label = next((n for extents in missing.values() for n in extents or ()
                  if isinstance(n, str) and n != UNNAMED), "")
    by_name = f". A name fixes all that have it: shapes={{{label!r}: 1}}, --shape {label}=1"
    return InputError(f"{title} leaves dimensions open: {_listed(missing)}. Fix them by the shape "
                      f"of the input: shapes={{{name!r}: {shape}}}, or on the command line "
                      f"--shape {name}={numbers}{by_name if label else ''}")


def _listed(inputs: Mapping[str, Sequence[int | str] | None]) -> str:
    """The inputs that leave dimensions open, with the axes and their names.

    >>> _listed({"x": ("n", 3, "?"), "whole": (1, 2), "any": None})
    "x: [n, 3, ?] (axis 0 named 'n', axis 2); any: any shape"
    """
    texts = []
    for name, extents in inputs.items():
        axes = [f"axis {k}" + (f" named {n!r}" if n != UNNAMED else "")
                for k, n in enumerate(extents or ()) if isinstance(n, str)]
        if extents is None:
            texts.append(f"{name}: any shape")
        elif axes:
            texts.append(f"{name}: [{', '.join(map(str, extents))}] ({', '.join(axes)})")
    return "; ".join(texts)


def _given(name: str, declared: Sequence[int | str] | None,
           given: Sequence[int] | int) -> tuple[int, ...]:
    """The shape that the caller gives for an input, checked against what the model fixes."""
    extents = given if isinstance(given, Sequence | np.ndarray) else (given,)
    shape = tuple(_extent(name, n) for n in extents)
    if declared is not None and (len(declared) != len(shape) or any(
            isinstance(expected, int) and expected != n
            for expected, n in zip(declared, shape, strict=True))):
        raise InputError(f"the shape {list(shape)} is given for input {name!r}, which is "
                         f"[{', '.join(map(str, declared))}]")
    return shape


def _extent(name: str, given: object) -> int:
    """An extent that the caller gives. Raises InputError for what is no size."""
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 0:
        raise InputError(f"{given!r} is given as an extent of {name!r}; a whole number that is not "
                         f"negative is expected")
    return int(given)


def _declared(value: ValueInfoProto) -> tuple[int | str, ...] | None:
    """The extents that the model states for an input, and the names of those that it leaves open,
    which some exporters write as -1; None where it states no shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0
                 else dim.dim_param or UNNAMED for dim in tensor.shape.dim)
