"""The model's own C++ file: its functions, its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable

from smalti.export.ggml.builder import DTYPES
from smalti.export.ggml.functions import INDENT, Functions
from smalti.export.ggml.model import GgmlModel
from smalti.export.ggml.names import comment, identifier, literal, unique
from smalti.export.ggml.outline import Outline
from smalti.graph import Value

HEAD = """\
// {name}, made by Smalti. Names are the model's own; shapes in comments are its, too: outermost
// first, where ggml counts dimensions from the innermost.
#include "graph.h"
#include "ops.h"

#include <tuple>
"""


def model_source(model: GgmlModel) -> str:
    """The text of `model.cpp`."""
    outline = Outline(model.statements, model.outputs)
    functions = Functions(outline)
    given = _input_names(model)
    lines, names = functions.body(outline.whole, dict(given))
    read = set(outline.reads(outline.whole))
    inputs = [f"ggml_tensor * {name} = inputs[{number}];  // [{_extents(value)}]"
              for number, ((local, name), value) in enumerate(
                  zip(given.items(), model.graph.inputs.values(), strict=True)) if local in read]
    results = ", ".join(names[local] for local in model.outputs)
    build = [
        "std::vector<ggml_tensor *> build(const Graph & g, "
        f"const std::vector<ggml_tensor *> &{' inputs' if inputs else ''}) {{",
        *(f"{INDENT}{line}" for line in (*inputs, *lines, f"return {{{results}}};")), "}"]
    parts = [HEAD.format(name=comment(model.graph.name))]
    if functions.texts:
        parts += ["namespace blocks {\n", *(f"{text}\n" for text in functions.texts),
                  "}  // namespace blocks\n"]
    return "\n".join([*parts, _tables(model), "\n".join(build)]) + "\n"


def _input_names(model: GgmlModel) -> dict:
    names: set[str] = set()
    given = {}
    for local, name in zip(model.inputs, model.graph.inputs, strict=True):
        given[local] = unique(identifier(name), names)
        names.add(given[local])
    return given


def _tables(model: GgmlModel) -> str:
    taken: set[str] = set()

    def ports(values: Iterable[tuple[str, Value]], written: bool) -> str:
        lines = []
        for name, value in values:
            file = ""
            if written:
                file = unique(identifier(name), taken)
                taken.add(file)
                file = f"{file}.npy"
            kind = f"GGML_TYPE_{DTYPES[value.dtype].upper()}"
            lines.append(f"{INDENT}{{{literal(name)}, {literal(file)}, {kind}, "
                         f"{{{_extents(value)}}}}},\n")
        return "".join(lines)

    return (f"const char * const model_name = {literal(model.graph.name)};\n"
            f"const size_t nodes_max = {model.nodes_max};\n"
            f"const std::vector<Port> model_inputs = {{\n"
            f"{ports(model.graph.inputs.items(), False)}}};\n"
            f"const std::vector<Port> model_outputs = {{\n"
            f"{ports(model.graph.outputs.items(), True)}}};\n")


def _extents(value: Value) -> str:
    return ", ".join(map(str, value.shape))
