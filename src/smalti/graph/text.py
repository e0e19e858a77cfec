"""Graphs as text that parses back.

    graph "double" {
      %0 = input "x" : f32[2, 3]
      %1 = parameter "w" : f32[3, 4]
      %2 = constant [1.0] : f32[1]
      %3 = mat_mul(%0, %1) {} : f32[2, 4] @ "block.0"
      output "y" = %3
    }

Attributes and constants are JSON; a constant of more than 16 elements is written as base64.
"""

from __future__ import annotations

import base64
import json
import re

import numpy as np

from smalti.errors import InputError
from smalti.graph.graph import Graph, Value
from smalti.graph.operation import DTYPES, OPERATIONS, Type

INLINE_ELEMENTS_MAX = 16
"""Constants of at most this many elements are written as numbers that people read."""


def show(graph: Graph) -> str:
    """`graph` as text; values are numbered in the order of their definition."""
    names: dict[Value, str] = {}
    lines = [f"graph {json.dumps(graph.name)} {{"]

    def define(value: Value, text: str, scope: str = "") -> None:
        names[value] = f"%{len(names)}"
        place = f" @ {json.dumps(scope)}" if scope else ""
        lines.append(f"  {names[value]} = {text} : {value.type}{place}")

    for value in [*graph.inputs.values(), *graph.parameters.values()]:
        define(value, f"{value.kind} {json.dumps(value.name)}")

    def constants(values: tuple[Value, ...] | list[Value]) -> None:
        for value in values:
            if value.kind == "constant" and value not in names:
                define(value, f"constant {_data_text(value.data)}")

    for node in graph.nodes:
        constants(node.inputs)
        arguments = ", ".join(names[v] for v in node.inputs)
        attributes = json.dumps(node.attributes)
        define(node.output, f"{node.operation.name}({arguments}) {attributes}", node.scope)
    constants(list(graph.outputs.values()))
    for name, value in graph.outputs.items():
        lines.append(f"  output {json.dumps(name)} = {names[value]}")
    return "\n".join([*lines, "}"]) + "\n"


def _data_text(data: np.ndarray) -> str:
    if data.size <= INLINE_ELEMENTS_MAX and np.isfinite(data.astype(np.float64)).all():
        return json.dumps(data.reshape(-1).tolist())
    return json.dumps(base64.b64encode(data.tobytes()).decode())


TYPE = r"(\w+)\[([\d, ]*)\]"
STRING = r'("(?:[^"\\]|\\.)*")'
HEADER = re.compile(rf"graph {STRING} \{{$")
LEAF = re.compile(rf"(%\d+) = (input|parameter) {STRING} : {TYPE}$")
CONSTANT = re.compile(rf"(%\d+) = constant (\[[^\]]*\]|{STRING}) : {TYPE}$")
NODE = re.compile(rf"(%\d+) = (\w+)\(([^)]*)\) (\{{.*\}}) : {TYPE}(?: @ {STRING})?$")
OUTPUT = re.compile(rf"output {STRING} = (%\d+)$")


def parse(text: str) -> Graph:
    """The graph that `show` printed. Raises InputError naming the line that does not parse."""
    lines = [line.strip() for line in text.strip().splitlines()]
    header = HEADER.match(lines[0]) if lines else None
    if not header or lines[-1] != "}":
        raise InputError('graph text starts with `graph "name" {` and ends with `}`')
    graph = Graph(json.loads(header[1]))
    values: dict[str, Value] = {}
    for number, line in enumerate(lines[1:-1], 2):
        try:
            _parse_line(graph, values, line)
        except (LookupError, TypeError, ValueError, InputError) as error:
            raise InputError(f"graph text, line {number}: {line!r}: {error}") from None
    return graph


def _type(dtype: str, extents: str) -> Type:
    if dtype not in DTYPES:
        raise InputError(f"no dtype is named {dtype!r}; known: {sorted(DTYPES)}")
    return Type(tuple(int(n) for n in extents.split(",") if n.strip()), dtype)


def _parse_line(graph: Graph, values: dict[str, Value], line: str) -> None:
    if line.partition(" ")[0] in values:
        raise InputError("a second definition")
    if found := LEAF.match(line):
        name, kind, label, dtype, extents = found.groups()
        type = _type(dtype, extents)
        make = graph.input if kind == "input" else graph.parameter
        values[name] = make(json.loads(label), type.shape, type.dtype)
    elif found := CONSTANT.match(line):
        name, data, _, dtype, extents = found.groups()
        type, given = _type(dtype, extents), json.loads(data)
        if isinstance(given, str):
            array = np.frombuffer(base64.b64decode(given, validate=True), DTYPES[dtype])
        else:
            if not all(isinstance(number, int | float) for number in given):
                raise InputError("a constant is made of numbers")
            array = np.array(given, DTYPES[dtype])
        values[name] = graph.constant(array.reshape(type.shape), dtype)
    elif found := NODE.match(line):
        name, operation, arguments, attributes, dtype, extents, scope = found.groups()
        if operation not in OPERATIONS:
            raise InputError(f"no operation is named {operation!r}")
        inputs = [values[a.strip()] for a in arguments.split(",") if a.strip()]
        with graph.scope(json.loads(scope) if scope else ""):
            result = graph.apply(operation, *inputs, **json.loads(attributes))
        if result.type != _type(dtype, extents):
            raise InputError(f"the result is {result.type}")
        values[name] = result
    elif found := OUTPUT.match(line):
        graph.output(json.loads(found[1]), values[found[2]])
    else:
        raise InputError("not a leaf, a node or an output")
