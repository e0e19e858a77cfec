"""Engine files: a compiled program as one file, for this machine or another, without its weights.

    program.save("model.smalti", targets=("avx2", "avx512"))
    program = smalti.load("model.smalti")            # no compilation
    program.bind("model.safetensors")

A file is machine code: load only what you would also run as a program. `recompile=True` takes
nothing but the graph from it, and is safe with any file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path

import numpy as np

from smalti import __version__, settings
from smalti.codegen.x86.instructions import LEVELS, level
from smalti.compiler.module import Image
from smalti.errors import EngineError, InputError
from smalti.graph import show
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised
from smalti.runtime import container
from smalti.runtime.compiler import Recipe, compile_graph
from smalti.runtime.devices import available_levels, cpu
from smalti.runtime.engine_file import (
    ABOUT,
    ANEW,
    GRAPH,
    IMAGE,
    WEIGHT_ALIGNMENT,
    WEIGHTS,
    About,
    EngineFile,
    Parameter,
)
from smalti.runtime.inputs import checked_path
from smalti.runtime.interface import Program
from smalti.runtime.program import NativeProgram
from smalti.runtime.sources import Done, Read, Weights, nothing, reading
from smalti.runtime.weights import imprecise

Progress = Callable[[str], None]


def save(recipe: Recipe, path: str | PathLike, *, targets: Sequence[str],
         winograd_sizes: dict[str, int] | None = None, weights: Weights | None = None,
         with_weights: bool = False, progress: Progress = nothing) -> None:
    """Write the program of `recipe` to `path`, whole or not at all.

    It has code for each of `targets`, feature levels that this CPU need not have. `winograd_sizes`
    are those that the weights at hand need (see guard.py). The hashes of `weights`, given as for
    `Program.bind`, are noted; `with_weights` embeds them. `progress` is called with a line of text
    before anything that may take over a second. Raises InputError for unknown targets or weights
    that do not fit, OutputError when `path` cannot be written.
    """
    unknown = [name for name in targets if name not in LEVELS]
    if unknown or not targets:
        raise InputError(f"targets are {', '.join(map(repr, targets)) or 'empty'}; known: "
                         f"{', '.join(LEVELS)}")
    if with_weights and weights is None:
        raise InputError("weights can only be embedded when it is said where they are: give "
                         "`weights`, as for `bind`")
    graph, targets = recipe.graph, tuple(dict.fromkeys(targets))
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    read, done = (None, nothing) if weights is None else reading(
        weights, nothing, shapes, shapes, graph.name, strict=False)
    parameters: list[Parameter] = []

    def image_for(target: str) -> Image:
        """The image that needs no other size of Winograd when the weights are bound."""
        found = dict(winograd_sizes or {})
        image = recipe.image(target, found)
        while read is not None and (more := imprecise(image, read, done)):
            found |= more
            image = recipe.image(target, found)
        return image

    def sections() -> Iterator[tuple[str, container.Parts, bool]]:
        yield GRAPH, [show(graph).encode()], True
        for target in targets:
            progress(f"compiling {graph.name} for {target}")
            yield IMAGE + target, [image_for(target).to_bytes()], True
        if with_weights:
            progress(f"writing the weights of {graph.name}")
            yield WEIGHTS, _embedded(recipe, parameters, read, done), False
        elif read is not None:
            progress(f"reading the weights of {graph.name}")
            parameters.extend(_parameter(name, read(name), -1, done) for name in shapes)
        else:
            parameters.extend(Parameter(name, value.shape, value.type.dtype)
                              for name, value in graph.parameters.items())
        about = About(__version__, graph.name, recipe.precision, recipe.threads,
                      recipe.held, tuple(parameters), recipe.weights, recipe.objective)
        yield ABOUT, [json.dumps(asdict(about), separators=(",", ":")).encode()], True

    container.write(Path(path), len(targets) + 2 + with_weights, sections())


def _embedded(recipe: Recipe, parameters: list[Parameter], read: Read,
              done: Done) -> container.Parts:
    """The arrays of all parameters one after the other, which are listed on the way."""
    at = 0
    for name in recipe.graph.parameters:
        given = read(name)
        array, entry = _dense(given), _parameter(name, given, at, nothing)
        parameters.append(entry)
        padding = -entry.bytes % WEIGHT_ALIGNMENT
        yield memoryview(array.reshape(-1).view(np.uint8))
        yield bytes(padding)
        at += entry.bytes + padding
        done(name)


def _dense(given: np.ndarray | Quantised) -> np.ndarray:
    """What of a parameter is written: numbers, or words."""
    return np.ascontiguousarray(given.words if isinstance(given, Quantised) else given)


def _parameter(name: str, given: np.ndarray | Quantised, offset: int, done: Done) -> Parameter:
    """What a file says of a parameter."""
    array = _dense(given)
    if isinstance(given, Quantised):
        dtype, shape = given.dtype, given.shape
    else:
        dtype = next((known for known, kind in DTYPES.items() if array.dtype == kind), None)
        shape = array.shape
    if dtype is None:
        raise InputError(f"the weight {name!r} is of {array.dtype}; expected {', '.join(DTYPES)}")
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8)).hexdigest()
    done(name)
    return Parameter(name, tuple(shape), dtype, digest, offset)


# ---------------------------------------------------------------------- loading


def load(path: str | PathLike, *, threads: int | None = None, recompile: bool = False,
         progress: Callable[[int, int], None] | None = None) -> Program:
    """The program in an engine file, for this machine; with its weights where they are embedded.

    With `recompile` only the graph of the file is used, and compiled here and now; `progress` is
    called with (kernels done, kernels) then. Raises EngineError for a file that is damaged, of
    another version, or without code that this CPU runs.

    >>> import os, tempfile
    >>> from smalti.graph import Graph
    >>> graph = Graph("twice")
    >>> x = graph.input("x", (2, 16))
    >>> graph.output("y", x + x)
    >>> path = os.path.join(tempfile.mkdtemp(), "twice.smalti")
    >>> compile_graph(graph, threads=1).save(path, targets=("avx2",))
    >>> float(load(path).run({"x": np.ones((2, 16), np.float32)})["y"].sum())
    64.0
    """
    file = EngineFile(checked_path(path, "load", "the path of an engine file (.smalti)"))
    about = file.about
    if recompile:
        program = compile_graph(file.graph, precision=about.precision, threads=threads,
                                held=about.held, weights=dict(about.weights),
                                objective=about.objective,
                                progress=progress)
    else:
        recipe = Recipe.of(file.graph, about.precision, about.held, threads, dict(about.weights),
                           about.objective)
        program = NativeProgram(file.image(_level_here(file)), recipe.threads, recipe)
    if file.has_weights:
        program.bind(file.array, file.drop)
    return program


def _level_here(file: EngineFile) -> str:
    """The best feature level that both this CPU and the file have, or the one asked for."""
    here = set(available_levels())
    wanted = settings.target()
    if wanted is not None:
        here &= {level(wanted).name}
    fitting = [name for name in LEVELS if name in here and name in file.levels]
    if not fitting:
        has = f"SMALTI_TARGET asks for {wanted}" if wanted else (
            f"{cpu().name} has {', '.join(sorted(here)) or 'none that Smalti compiles for'}")
        raise EngineError(f"{file.path} holds code for {', '.join(file.levels) or 'nothing'}, and "
                          f"{has}; make the file again with `smalti compile --target`, or {ANEW}")
    return fitting[-1]
