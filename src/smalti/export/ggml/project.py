"""The folder of a C++ project: the model's own source, the sources that all have, and weights.

    model.cpp       the graph
    graph.h ops.h npy.h main.cpp
    CMakeLists.txt README.md
    weights.gguf    parameters, and larger constants of the graph
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np

from smalti.checkpoint.gguf import FILE_TYPES
from smalti.errors import InputError, OutputError
from smalti.export.ggml.model import GgmlModel, lowered
from smalti.export.ggml.names import comment, identifier
from smalti.export.ggml.source import model_source
from smalti.export.ggml.weights import refuse_missing, write_weights
from smalti.graph import Graph

SAME_FOR_ALL = ("graph.h", "ops.h", "npy.h", "main.cpp")


def export(graph: Graph, parameters: Mapping[str, np.ndarray], folder: str | Path, *,
           precision: str = "f32") -> None:
    """Write a C++ project that computes `graph` with ggml into `folder`, a new or empty one.

    `parameters` are arrays under the graph's names. With `precision` "f16" matrices, windows of
    convolutions and tables are stored as f16, all else as f32. Raises UnsupportedError with every
    node that ggml cannot express, InputError for missing arrays and those of another shape, and
    OutputError when the folder cannot be written; then nothing is left of it.

    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> folder = Path(tempfile.mkdtemp()) / "double"
    >>> export(g, {}, folder)
    >>> sorted(path.name for path in folder.iterdir())  # doctest: +NORMALIZE_WHITESPACE
    ['CMakeLists.txt', 'README.md', 'graph.h', 'main.cpp', 'model.cpp', 'npy.h', 'ops.h',
     'weights.gguf']
    """
    if precision not in FILE_TYPES:
        raise InputError(f"precision is {precision!r}; known: {', '.join(FILE_TYPES)}")
    model = lowered(graph, parameters)
    refuse_missing(model, parameters)
    folder = Path(folder)
    try:
        _fill(folder, lambda part: _write(part, model, parameters, precision))
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}; choose another "
                          f"output") from None


def _fill(folder: Path, write: Callable[[Path], None]) -> None:
    """Make `folder` by `write(part)`: in a folder beside it, which then takes its name."""
    there = os.path.lexists(folder)
    if there and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputError(f"cannot write {folder}: it is there already, and not empty; choose "
                          f"another output, or remove it")
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write(part)
        part.chmod(0o755)
        if there:
            folder.rmdir()
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, model: GgmlModel, parameters: Mapping[str, np.ndarray],
           precision: str) -> None:
    sources = files(__package__) / "sources"
    for name in SAME_FOR_ALL:
        (folder / name).write_bytes((sources / name).read_bytes())
    facts = {
        "@TARGET@": identifier(model.graph.name), "@NAME@": comment(model.graph.name),
        "@PRECISION@": precision,
        "@INPUTS@": " ".join(f"{name}=FILE" for name in map(identifier, model.graph.inputs)),
    }
    for name in ("CMakeLists.txt", "README.md"):
        text = (sources / name).read_text(encoding="utf-8")
        for mark, fact in facts.items():
            text = text.replace(mark, fact)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    (folder / "model.cpp").write_text(model_source(model), encoding="utf-8", newline="\n")
    with open(folder / "weights.gguf", "wb") as stream:
        write_weights(stream, model, parameters, precision)
