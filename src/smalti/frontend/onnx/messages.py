"""The messages of an ONNX file, as classes of protobuf.

`onnx-ml.binpb` is the format's own description, `onnx-ml.proto` of https://github.com/onnx/onnx
compiled by protoc. Its classes live in a pool of their own, so that a program may use the `onnx`
package, of any version, beside Smalti. That package is not needed to read a model: its schemas and
tests take 32 MB, and what is needed of them stands in `standard.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import EncodeError
from google.protobuf.message_factory import GetMessageClass

from smalti.errors import InputError

DESCRIPTION = Path(__file__).with_name("onnx-ml.binpb")
"""A FileDescriptorProto."""

if TYPE_CHECKING:
    # What protobuf makes at run time has the fields of the description; checkers know none of them.
    class ModelProto(Any): ...
    class GraphProto(Any): ...
    class FunctionProto(Any): ...
    class NodeProto(Any): ...
    class AttributeProto(Any): ...
    class TensorProto(Any): ...
    class ValueInfoProto(Any): ...
    class TypeProto(Any): ...
else:
    _POOL = DescriptorPool()
    _POOL.AddSerializedFile(DESCRIPTION.read_bytes())
    ModelProto, GraphProto, FunctionProto, NodeProto, AttributeProto, TensorProto, \
        ValueInfoProto, TypeProto = (
            GetMessageClass(_POOL.FindMessageTypeByName(f"onnx.{name}Proto"))
            for name in ("Model", "Graph", "Function", "Node", "Attribute", "Tensor", "ValueInfo",
                         "Type"))


def is_model(thing: object) -> bool:
    """Whether `thing` is a ModelProto, of these classes or of those of the `onnx` package."""
    return getattr(getattr(thing, "DESCRIPTOR", None), "full_name", "") == "onnx.ModelProto"


def own_model(model: Any) -> ModelProto:
    """A ModelProto of any class as one of these classes. Raises InputError for one that protobuf
    cannot write because it has 2 GiB or more."""
    if isinstance(model, ModelProto):
        return model
    try:
        return ModelProto.FromString(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise InputError(f"the ModelProto cannot be copied: {error}; save it with its weights as "
                         f"external data, and give the path") from None


def attribute(name: str, value: Any) -> AttributeProto:
    """An attribute of the type that `value` has; sequences hold numbers or texts of one type.

    >>> attribute("axes", (0, 1)).ints, attribute("mode", "edge").s
    ([0, 1], b'edge')
    """
    kinds, made = AttributeProto, AttributeProto(name=name)
    match value:
        case int() | np.integer():
            made.type, made.i = kinds.INT, int(value)
        case float() | np.floating():
            made.type, made.f = kinds.FLOAT, float(value)
        case str():
            made.type, made.s = kinds.STRING, value.encode()
        case _ if isinstance(value, GraphProto):
            made.type = kinds.GRAPH
            made.g.CopyFrom(value)
        case _ if all(isinstance(item, int | np.integer) for item in value):
            made.type = kinds.INTS
            made.ints.extend(map(int, value))
        case _ if all(isinstance(item, int | float | np.number) for item in value):
            made.type = kinds.FLOATS
            made.floats.extend(map(float, value))
        case _:
            made.type = kinds.STRINGS
            made.strings.extend(item.encode() for item in value)
    return made


def node(operator: str, reads: Sequence[str], makes: Sequence[str], name: str = "",
         domain: str = "", **fields: Any) -> NodeProto:
    """A node with `fields` for attributes.

    >>> node("Gather", ["table", "i"], ["row"], axis=1).attribute[0].i
    1
    """
    return NodeProto(op_type=operator, input=reads, output=makes, name=name, domain=domain,
                     attribute=[attribute(key, value) for key, value in fields.items()])
