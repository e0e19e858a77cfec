"""A path or a ModelProto becomes a checked ModelProto; nothing in it is trusted further."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from smalti.errors import InputError

FILE_BYTES_MAX = 1 << 31  # what protobuf reads; larger models have external data
OPSET_MIN = 1


@dataclass(frozen=True)
class Source:
    """A model as read, and the folder that its external data lies in (None: there is none)."""

    proto: onnx.ModelProto
    folder: Path | None
    name: str

    @property
    def opsets(self) -> dict[str, int]:
        """Version of the operators by domain; the standard one is ""."""
        return opsets_of(self.proto.opset_import)


def opsets_of(imports) -> dict[str, int]:
    """Version by domain."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def read_model(model: str | Path | onnx.ModelProto) -> Source:
    """The model in a file, or one that was loaded. Raises InputError for what is no ONNX model."""
    if isinstance(model, onnx.ModelProto):
        source = Source(model, None, model.graph.name or "graph")
    else:
        path = Path(model)
        source = Source(_parsed(path), path.resolve().parent, path.stem)
    proto = source.proto
    if not proto.HasField("graph") or not proto.opset_import:
        raise InputError(f"{source.name} is no ONNX model: it has no "
                         f"{'operator version' if proto.HasField('graph') else 'graph'}")
    version, newest = source.opsets.get("", OPSET_MIN), onnx.defs.onnx_opset_version()
    if not OPSET_MIN <= version <= newest:
        raise InputError(f"{source.name} asks for version {version} of the ONNX operators; "
                         f"{OPSET_MIN} to {newest} are known")
    return source


def _parsed(path: Path) -> onnx.ModelProto:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path} is no file; the path of an .onnx file is expected")
        if info.st_size > FILE_BYTES_MAX:
            raise InputError(f"{path} has {info.st_size} bytes; an ONNX file has at most "
                             f"{FILE_BYTES_MAX}, larger models keep their weights in another file")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InputError(f"{path} is no ONNX model, or a damaged one") from None
