"""Recipes of the CPU: all that is needed to compile a graph again, for any feature level."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from smalti.codegen.levels import LEVELS, level
from smalti.codegen.target import Target
from smalti.compiler import options as all_options
from smalti.compiler.options import ALL_F32, ALL_ROUNDED, Options
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import TARGETS
from smalti.graph import Graph
from smalti.runtime.cpu.adapter import limits_at
from smalti.runtime.known import knowledge
from smalti.runtime.recipe import Recipe
from smalti.schedule.schedule import Limits

LEAST = "avx2"
"""The feature level for which options are checked on a CPU that has none."""


def recipe_of(graph: Graph, precision: str = "f32", held: Collection[str] = (),
              threads: int | None = None, weights: Mapping[str, str] = ALL_F32,
              objective: str = "latency", usual: str = LEAST,
              kept: Mapping[str, str] = ALL_ROUNDED) -> Recipe:
    """A recipe for the CPU of options as `compile_graph` takes them, with the same errors."""
    level(usual)
    options = all_options.checked(graph, TARGETS[usual], None, "the CPU", precision=precision,
                                  held=held, threads=threads, weights=weights,
                                  objective=objective, kept=kept)
    targets = tuple(TARGETS[name] for name in LEVELS)
    return Recipe(graph, options, TARGETS[usual], targets, limits_here, knowledge_here)


def limits_here(target: Target, options: Options) -> Limits:
    """The limits of schedules for a feature level on this CPU."""
    return limits_at(target.name, options.threads)


def knowledge_here(target: Target, options: Options) -> Knowledge:
    """What is known of schedules on this CPU: measured ones, and the timing model."""
    return knowledge(target.name, options.threads, options.asked, options.objective)
