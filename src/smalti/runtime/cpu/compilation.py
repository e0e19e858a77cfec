"""Makes programs of the CPU: compiles a graph, or finds its module in the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from smalti.codegen.levels import level
from smalti.codegen.target import Target
from smalti.compiler.options import ALL_F32, ALL_ROUNDED
from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.cpu.adapter import available_levels, best_level
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.cpu.recipe import LEAST, recipe_of
from smalti.runtime.interface import Program
from smalti.runtime.recipe import NO_WINOGRAD_SIZES, Recipe, nothing_missing
from smalti.runtime.reference import ReferenceProgram


def compile_here(device: str, graph: Graph, *, precision: str = "f32", threads: int | None = None,
                  target: str | None = None, held: Collection[str] = (),
                  weights: Mapping[str, str] = ALL_F32,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None,
                  like: Program | None = None, kept: Mapping[str, str] = ALL_ROUNDED,
                  missing: Callable[[], None] = nothing_missing) -> Program:
    """The program of `graph` on the CPU `device`; the other options are those of
    `compile_graph`."""
    recipe, found = recipe_here(device, graph, precision=precision, threads=threads, target=target,
                                held=held, weights=weights, objective=objective, kept=kept)
    if found is None:
        return ReferenceProgram(graph, recipe)
    winograd_sizes = like.winograd_sizes if like else NO_WINOGRAD_SIZES
    module = recipe.module(found, winograd_sizes, progress, missing)
    return NativeProgram(module, recipe.options.threads, recipe)


def recipe_here(device: str, graph: Graph, *, precision: str = "f32", threads: int | None = None,
                target: str | None = None, held: Collection[str] = (),
                weights: Mapping[str, str] = ALL_F32, objective: str = "latency",
                kept: Mapping[str, str] = ALL_ROUNDED) -> tuple[Recipe, Target | None]:
    """The recipe of that program, and its target; None where the reference runs instead."""
    name = target or best_level()
    recipe = recipe_of(graph, precision, held, threads, weights, objective, name or LEAST, kept)
    if name is None:
        return recipe, None
    level(name)
    if name not in available_levels():
        raise InputError(f"this CPU has not what the level {name} needs; it has "
                         f"{', '.join(available_levels()) or 'none'}")
    return recipe, TARGETS[name]
