"""Programs of the CPU: the module, made or found in the cache, and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from smalti.codegen.target import Target
from smalti.codegen.x86.instructions import LEVELS, level
from smalti.compiler import options as all_options
from smalti.compiler.options import ALL_F32, Options
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.cpu.adapter import available_levels, best_level, limits_at
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.interface import Program
from smalti.runtime.known import knowledge
from smalti.runtime.recipe import NO_WINOGRAD_SIZES, Recipe
from smalti.runtime.reference import ReferenceProgram
from smalti.schedule.schedule import Limits

LEAST = "avx2"
"""The feature level that options are checked for where there is none: all have the same."""


def compile_here(device: str, graph: Graph, *, precision: str = "f32", threads: int | None = None,
                  target: str | None = None, held: Collection[str] = (),
                  weights: Mapping[str, str] = ALL_F32,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None,
                  like: Program | None = None) -> Program:
    """A program of the CPU, `device`; the other options are those of `compile_graph`."""
    name = target or best_level()
    recipe = recipe_of(graph, precision, held, threads, weights, objective, name or LEAST)
    if name is None:
        return ReferenceProgram(graph, recipe)
    level(name)
    if name not in available_levels():
        raise InputError(f"this CPU has not what the level {name} needs; it has "
                         f"{', '.join(available_levels()) or 'none'}")
    winograd_sizes = like.winograd_sizes if like else NO_WINOGRAD_SIZES
    module = recipe.module(TARGETS[name], winograd_sizes, progress)
    return NativeProgram(module, recipe.options.threads, recipe)


def recipe_of(graph: Graph, precision: str = "f32", held: Collection[str] = (),
              threads: int | None = None, weights: Mapping[str, str] = ALL_F32,
              objective: str = "latency", usual: str = LEAST) -> Recipe:
    """A recipe for the CPU of options as `compile_graph` takes them, with the same errors."""
    level(usual)
    options = all_options.checked(graph, TARGETS[usual], None, "the CPU", precision=precision,
                                  held=held, threads=threads, weights=weights,
                                  objective=objective)
    targets = tuple(TARGETS[name] for name in LEVELS)
    return Recipe(graph, options, TARGETS[usual], targets, limits_here, knowledge_here)


def limits_here(target: Target, options: Options) -> Limits:
    """What this CPU means for schedules of a feature level."""
    return limits_at(target.name, options.threads)


def knowledge_here(target: Target, options: Options) -> Knowledge:
    """What is known of schedules on this CPU."""
    return knowledge(target.name, options.threads, options.precision, options.objective)
