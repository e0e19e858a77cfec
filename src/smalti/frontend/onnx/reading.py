"""A path or a ModelProto becomes a checked ModelProto; nothing in it is trusted further."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.frontend.onnx.messages import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    is_model,
    own_model,
)
from smalti.frontend.onnx.standard import newest

FILE_BYTES_MAX = 1 << 31  # what protobuf reads; larger models have external data
OPSET_MIN = 1
"""The oldest version of the standard's operators; the newest is in `standard.py`."""
STEPS_MAX, STEPS_ALWAYS, REPEATS_MAX = 1 << 17, 1 << 14, 64
"""How many nodes a model may have once functions, branches and loops are put in place: as many as
its file holds, times `REPEATS_MAX`, and in any case `STEPS_ALWAYS`, but at most `STEPS_MAX`. Large
exports have some 10^4; functions that call another twice double them at each level."""


@dataclass(frozen=True)
class Source:
    """A model as read, and the folder that its external data lies in (None: there is none)."""

    proto: ModelProto
    folder: Path | None
    name: str

    @property
    def opsets(self) -> dict[str, int]:
        """Version of the operators by domain; the standard one is ""."""
        return opsets_of(self.proto.opset_import)

    @property
    def inputs(self) -> list[ValueInfoProto]:
        """What a run is given. Before version 4 of the format, initializers were listed, too."""
        held = {tensor.name for tensor in self.proto.graph.initializer}
        return [value for value in self.proto.graph.input if value.name not in held]

    @cached_property
    def steps_max(self) -> int:
        """How many nodes it may have with all its bodies put in place."""
        count = len(self.proto.graph.node) + sum(len(f.node) for f in self.proto.functions)
        return min(STEPS_MAX, max(STEPS_ALWAYS, REPEATS_MAX * count))


def opsets_of(imports) -> dict[str, int]:
    """Version by domain."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def read_model(model: Any) -> Source:
    """The model in a file, or one that was loaded, by Smalti or by the `onnx` package, as a
    ModelProto. Raises InputError for what is no ONNX model."""
    if is_model(model):
        source = Source(own_model(model), None, model.graph.name or "graph")
    else:
        path = Path(model)
        source = Source(_parsed(path), path.resolve().parent, path.stem)
    proto = source.proto
    if not proto.HasField("graph") or not proto.opset_import:
        raise InputError(f"{source.name} is no ONNX model: it has no "
                         f"{'operator version' if proto.HasField('graph') else 'graph'}; "
                         f"give an .onnx file")
    check_names(proto)
    version = source.opsets.get("", OPSET_MIN)
    if not OPSET_MIN <= version <= newest():
        raise InputError(f"{source.name} asks for version {version} of the ONNX operators; "
                         f"{OPSET_MIN} to {newest()} are known")
    return source


def check_names(proto: ModelProto) -> None:
    """Raise InputError for a name that is no text (protobuf gives bytes for broken UTF-8)."""
    texts = [proto.graph.name]
    for entry in (*proto.opset_import, *(e for f in proto.functions for e in f.opset_import)):
        texts.append(entry.domain)
    for function in proto.functions:
        texts += [function.name, function.domain, *function.input, *function.output,
                  *function.attribute, *(a.name for a in function.attribute_proto)]
    for body in bodies(proto):
        for node in body.node:
            texts += [node.name, node.op_type, node.domain, *node.input, *node.output,
                      *(text for entry in node.metadata_props for text in (entry.key, entry.value))]
            for attribute in node.attribute:
                texts += [attribute.name, attribute.ref_attr_name]
                texts += tensor_texts([attribute.t] if attribute.HasField("t") else [])
        if isinstance(body, GraphProto):
            for value in (*body.input, *body.output):
                texts.append(value.name)
                texts += [dim.dim_param for dim in value.type.tensor_type.shape.dim]
            texts += tensor_texts(body.initializer)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a name of the model is no text: {text[:80]!r}; the file is damaged")


def bodies(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """The graph of a model and its functions, each followed by the bodies of its nodes."""
    waiting: list[GraphProto | FunctionProto] = [model.graph, *model.functions][::-1]
    while waiting:
        body = waiting.pop()
        yield body
        waiting += [inner for node in body.node for inner in bodies_of(node)][::-1]


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """The bodies of a node."""
    return [body for attribute in node.attribute
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)]


def tensor_texts(tensors: Iterable[TensorProto]) -> list[str]:
    """Names in tensors."""
    return [text for tensor in tensors for text in (
        tensor.name, *(text for e in tensor.external_data for text in (e.key, e.value)))]


def _parsed(path: Path) -> ModelProto:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path} is no file; the path of an .onnx file is expected")
        if info.st_size > FILE_BYTES_MAX:
            raise InputError(f"{path} has {info.st_size} bytes; an ONNX file has at most "
                             f"{FILE_BYTES_MAX}, larger models keep their weights in another file")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name with a null byte
        raise InputError(f"{path} cannot be read: {error}") from None
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        raise InputError(f"{path} is no ONNX model, or a damaged one; give an .onnx file"
                         ) from None
