"""The tensors of a model by name, and which of them are weights.

A model states tensors as initializers and as `Constant` nodes; PaddleOCR's exports have the second
only. Both are the same here. Those in the bodies of branches, loops and functions count as well,
once each, however often a body is put in the place of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
)
from smalti.frontend.onnx.reading import bodies
from smalti.frontend.onnx.tensors import PACKED, read, tensor_of, type_of
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import FLOATS, Type

WEIGHT_DTYPES = (*FLOATS, "i8", "u8", *PACKED, "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
"""What exporters store weights as; wider integers and truth values are shapes, axes and indices."""
MASKED = -1e4
"""A score that this or less is added to is no more after a softmax. Exporters hide tokens with
-10000, with the least number of the dtype, or with an infinity; weights are nowhere near."""


def is_weight(type: Type) -> bool:
    """Whether a tensor of this type is a weight, unless it turns out to be a mask: it has several
    numbers of a dtype of weights, or more than a constant may have.

    >>> [is_weight(Type(*of)) for of in (((64, 3, 3, 3), "f32"), ((), "f32"), ((4,), "i64"))]
    [True, False, False]
    """
    return type.size > CONSTANT_ELEMENTS_MAX or type.size > 1 and type.dtype in WEIGHT_DTYPES


def is_mask(array: np.ndarray) -> bool:
    """Whether `array` tells which tokens see which: 0, or a number below which no score matters."""
    if array.dtype.kind in "iu" or array.flat[0] != 0 and array.flat[0] > MASKED:
        return False
    hidden = array <= MASKED
    return bool(hidden.any() and (hidden | (array == 0)).all())


class ModelTensors(Mapping[str, np.ndarray]):
    """The tensors of a model by name, each read when it is asked for.

    The name is the one in the file. Branches and functions may use a name again: the first in the
    order of the file keeps it, others become `name#2`, `name#3` and so on.

    >>> from onnx import parser
    >>> from smalti.frontend.onnx.messages import own_model
    >>> model = parser.parse_model('''
    ...     <ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
    ...     m (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    ...         z = Add(x, w)
    ...         y = mine.scaled(z)
    ...     }
    ...     <domain: "mine", opset_import: ["" : 20]> scaled(a) => (b) {
    ...         w = Constant<value: tensor = float[2] {3, 4}>()
    ...         b = Mul(a, w)
    ...     }''')
    >>> tensors = ModelTensors(own_model(model), None)
    >>> {name: array.tolist() for name, array in tensors.items()}
    {'w': [1.0, 2.0], 'w#2': [3.0, 4.0]}
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        """`folder` is the one that external data lies in. Raises InputError for two tensors of one
        name in the same body."""
        self._folder = folder
        self._protos: dict[str, TensorProto] = {}
        self._bodies: dict[int, tuple[GraphProto | FunctionProto, dict[str, str]]] = {}
        graph = model.graph
        taken = {"", *(v.name for v in graph.input), *(t.name for t in graph.initializer),
                 *(name for node in graph.node for name in node.output)}
        for body in bodies(model):
            names: dict[str, str] = {}
            for name, proto in stated(body):
                if name in names:
                    raise InputError(f"two tensors are named {name!r}")
                names[name] = name if body is graph else unique(name, taken)
                taken.add(names[name])
                self._protos[names[name]] = proto
            # Messages of protobuf are told apart by identity, which lasts as long as one is held.
            self._bodies[id(body)] = body, names

    def names(self, body: GraphProto | FunctionProto) -> Mapping[str, str]:
        """The name here of each tensor that a body of the model states, by its name there."""
        known, names = self._bodies.get(id(body), (None, {}))
        return names if known is body else {}

    def add(self, name: str, proto: TensorProto) -> None:
        """Enter a tensor that no body of the model states. Raises InputError for a name that is
        taken."""
        if name in self._protos:
            raise InputError(f"two tensors are named {name!r}")
        self._protos[name] = proto

    def type(self, name: str) -> Type | None:
        """As `type_of`; None for strings."""
        proto = self._protos[name]
        if proto.data_type == TensorProto.STRING:
            return None
        return type_of(proto, self._folder, name)

    def weights(self) -> dict[str, Type]:
        """The types of those that are weights by their type."""
        types = {name: self.type(name) for name in self}
        return {name: type for name, type in types.items() if type is not None and is_weight(type)}

    def __getitem__(self, name: str) -> np.ndarray:
        return read(self._protos[name], self._folder, name)

    def __contains__(self, name: object) -> bool:
        return name in self._protos

    def __iter__(self) -> Iterator[str]:
        return iter(self._protos)

    def __len__(self) -> int:
        return len(self._protos)


def unique(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it where that is taken.

    >>> unique("w", {"w", "w#2"})
    'w#3'
    """
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found


def stated(body: GraphProto | FunctionProto) -> Iterator[tuple[str, TensorProto]]:
    """The tensors that stand in a body itself, by name: initializers, then `Constant` nodes."""
    if isinstance(body, GraphProto):
        yield from ((tensor.name, tensor) for tensor in body.initializer)
    for node in body.node:
        tensor = constant_of(node)
        if tensor is not None:
            yield node.output[0], tensor


def constant_of(node: NodeProto) -> TensorProto | None:
    """The tensor of a `Constant` node; None for other nodes, for texts, for what a call of the
    function gives as an attribute, and for what is no sound `Constant`: its rule says why."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or node.input \
            or len(node.output) != 1 or not node.output[0] or len(node.attribute) != 1:
        return None
    attribute, kinds = node.attribute[0], AttributeProto
    if attribute.ref_attr_name:
        return None
    match attribute.name, attribute.type:
        case "value", kinds.TENSOR if attribute.t.data_type != TensorProto.STRING:
            return attribute.t
        case "value_float", kinds.FLOAT:
            return tensor_of(np.array(attribute.f, np.float32))
        case "value_floats", kinds.FLOATS:
            return tensor_of(np.array(attribute.floats, np.float32))
        case "value_int", kinds.INT:
            return tensor_of(np.array(attribute.i, np.int64))
        case "value_ints", kinds.INTS:
            return tensor_of(np.array(attribute.ints, np.int64))
    return None
