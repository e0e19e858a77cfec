"""Engine files, written: the modules of a program, the graph they are made of, and what is known of
the weights. `engine.py` loads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path

import numpy as np

from smalti import __version__
from smalti.compiler.encode import to_bytes
from smalti.compiler.module import Module
from smalti.compiler.targets import names
from smalti.compiler.targets import target as target_named
from smalti.errors import InputError
from smalti.graph import show
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised
from smalti.runtime import container
from smalti.runtime.cpu.packing import imprecise
from smalti.runtime.engine_file import (
    ABOUT,
    GRAPH,
    MODULE,
    WEIGHT_ALIGNMENT,
    WEIGHTS,
    About,
    Parameter,
)
from smalti.runtime.recipe import Recipe
from smalti.runtime.recipes import suited
from smalti.runtime.sources import Done, Read, Weights, nothing, reading

Progress = Callable[[str], None]


def save(recipe: Recipe, path: str | PathLike, *, targets: Sequence[str],
         winograd_sizes: Mapping[str, int] | None = None, weights: Weights | None = None,
         with_weights: bool = False, progress: Progress = nothing) -> None:
    """Write the program of `recipe` to `path`, whole or not at all.

    It has code for each of `targets`: feature levels that this CPU need not have, "vulkan" or
    "wgpu" for GPUs; for those of another kind than the recipe's, code that runs on any of them.
    `winograd_sizes` are those that the weights at hand need (see guard.py). The hashes of
    `weights`, given as for `Program.bind`, are noted; `with_weights` embeds them. `progress` is
    called with a line of text before anything that may take over a second. Raises InputError for
    unknown targets or weights that do not fit, OutputError when `path` cannot be written.
    """
    known = names()
    if not targets or not all(each in known for each in targets):
        raise InputError(f"targets are {', '.join(map(repr, targets)) or 'empty'}; known: "
                         f"{', '.join(known)}")
    recipes = {found.name: (found, suited(recipe, found)) for found in map(target_named, targets)}
    if with_weights and weights is None:
        raise InputError("weights can only be embedded when it is said where they are: give "
                         "`weights`, as for `bind`")
    graph = recipe.graph
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    read, done = (None, nothing) if weights is None else reading(
        weights, nothing, shapes, shapes, graph.name, strict=False)
    parameters: list[Parameter] = []

    def module_for(name: str) -> Module:
        """The module that needs no other size of Winograd when the weights are bound."""
        found, (target, suiting) = dict(winograd_sizes or {}), recipes[name]
        module = suiting.module(target, found)
        while read is not None and (more := imprecise(module, read, done)):
            found |= more
            module = suiting.module(target, found)
        return module

    def sections() -> Iterator[tuple[str, container.Parts, bool]]:
        yield GRAPH, [show(graph).encode()], True
        for target in recipes:
            progress(f"compiling {graph.name} for {target}")
            yield MODULE + target, [to_bytes(module_for(target))], True
        if with_weights:
            progress(f"writing the weights of {graph.name}")
            yield WEIGHTS, _embedded(recipe, parameters, read, done), False
        elif read is not None:
            progress(f"reading the weights of {graph.name}")
            parameters.extend(_parameter(name, read(name), -1, done) for name in shapes)
        else:
            parameters.extend(Parameter(name, value.shape, value.type.dtype)
                              for name, value in graph.parameters.items())
        options = recipe.options
        about = About(__version__, graph.name, options.asked, options.threads, options.held,
                      tuple(parameters), options.weights, options.objective)
        yield ABOUT, [json.dumps(asdict(about), separators=(",", ":")).encode()], True

    container.write(Path(path), len(recipes) + 2 + with_weights, sections())


def _embedded(recipe: Recipe, parameters: list[Parameter], read: Read,
              done: Done) -> container.Parts:
    """The arrays of all parameters one after the other, which are listed on the way."""
    at = 0
    for name in recipe.graph.parameters:
        given = read(name)
        array, entry = _dense(given), _parameter(name, given, at, nothing)
        parameters.append(entry)
        padding = -entry.bytes % WEIGHT_ALIGNMENT
        yield array.reshape(-1).view(np.uint8).data
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
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    done(name)
    return Parameter(name, tuple(shape), dtype, digest, offset)
