"""Writes what Smalti knows of the ONNX standard, from the schemas of the `onnx` package.

    python tests/material/onnx_standard.py        # after another version of onnx is installed
"""

from __future__ import annotations

import base64
import json
from typing import Any

import onnx
from onnx import defs, helper
from onnx.onnx_ml_pb2 import DESCRIPTOR

from smalti.frontend.onnx.messages import DESCRIPTION
from smalti.frontend.onnx.standard import TABLE


def description() -> bytes:
    """The description of the format's messages."""
    return DESCRIPTOR.serialized_pb


def default_of(entry: Any) -> Any:
    """The default of an attribute of a schema; floating numbers are those of f32."""
    value = helper.get_attribute_value(entry.default_value)
    return value.decode() if isinstance(value, bytes) else \
        [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) \
        else value


def body_of(schema: Any) -> str:
    """The body of an operator that is a function of others, without its documentation."""
    body = onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
    body.ClearField("doc_string")
    return base64.b64encode(body.SerializeToString(deterministic=True)).decode()


def schemas() -> list[Any]:
    """Every version of every operator, in an order that does not change."""
    return sorted(defs.get_all_schemas_with_history(),
                  key=lambda schema: (schema.domain, schema.name, schema.since_version))


def table() -> str:
    """The text of `operators.json`."""
    sets: dict[tuple[str, ...], int] = {}
    lines = []
    for schema in schemas():
        operands = [[formal.type_str, sets.setdefault(tuple(sorted(formal.types)), len(sets)),
                     int(formal.option == defs.OpSchema.FormalParameterOption.Variadic),
                     int(formal.is_homogeneous)] for formal in schema.inputs]
        fields = {name: default_of(entry) for name, entry in sorted(schema.attributes.items())
                  if entry.default_value.type}
        body = body_of(schema) if schema.has_function else ""
        lines.append(json.dumps([schema.domain, schema.name, schema.since_version, operands,
                                 fields, body]))
    types = ",\n".join(json.dumps(known) for known in sets)
    rows = ",\n".join(lines)
    return f'{{"onnx": "{onnx.__version__}", "newest": {defs.onnx_opset_version()},\n' \
           f'"types": [\n{types}],\n"operators": [\n{rows}]}}\n'


if __name__ == "__main__":
    DESCRIPTION.write_bytes(description())
    TABLE.write_text(table(), encoding="utf-8")
