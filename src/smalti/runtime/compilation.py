"""Programs from graphs: options checked, the module made or found in the cache, and given to what
runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from smalti.codegen.target import Target
from smalti.codegen.x86.instructions import LEVELS, level
from smalti.codegen.x86.lower import limits
from smalti.compiler import options as all_options
from smalti.compiler.options import ALL_F32, Options
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.devices import available_levels, best_level, cpu
from smalti.runtime.interface import Program
from smalti.runtime.known import knowledge
from smalti.runtime.program import NativeProgram
from smalti.runtime.recipe import NO_WINOGRAD_SIZES, Recipe
from smalti.runtime.reference import ReferenceProgram
from smalti.schedule.schedule import Limits

LEAST = "avx2"
"""The feature level that options are checked for where there is none: all have the same."""


def compile_graph(graph: Graph, *, precision: str = "f32", threads: int | None = None,
                  target: str | None = None, held: Collection[str] = (),
                  weights: Mapping[str, str] = ALL_F32,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None,
                  like: Program | None = None, device: str = "cpu") -> Program:
    """A program that computes `graph`, natively where kernels exist, else by numpy.

    `device` is the CPU, or a GPU by its id (see `smalti.devices`): what is said of threads and
    levels here is about the CPU, for GPUs see `device_compiler.compile_for`.

    `precision` "bf16" halves the bytes of weights and of what is stored between kernels, and the
    time of products where the CPU multiplies bf16; sums, statistics, softmax, inputs and outputs
    are f32 whatever it is ("auto" is f32; see `fuse.precision`). `target` forces an x86 feature
    level (avx2, avx512, avx512_bf16). Inputs named in `held` are expected to stay the same for many
    runs: what depends on no other is computed again only when one of them changes. `weights` names
    the dtype of parameters that will be given as "f16" or "bf16", or as `Quantised` of one of its
    `FORMATS`: those that fill memory are held so, and widened where they are used, with the same
    results. `objective` is what schedules are chosen for: "latency", "throughput" or "energy" (see
    `tune.objective`); for throughput `threads` is 1 if it is None. `progress` is called with
    (kernels done, kernels). `like` is a program whose weights will be bound to this one, too:
    layers use the size of Winograd that these stand. On a CPU without AVX2 the numpy reference
    runs and says so.
    Raises InputError for an unknown precision, level, dtype, objective or held input, or a number
    of threads outside 1 to 256.

    >>> import numpy as np
    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> compile_graph(g, threads=1).run({"x": np.ones((2, 3), np.float32)})["y"].sum()
    np.float32(12.0)
    """
    if device != "cpu":
        from smalti.runtime.choice import opened
        from smalti.runtime.device_compiler import compile_for

        return compile_for(opened(device), graph, precision=precision, held=held, weights=weights,
                           progress=progress)
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
    """What this CPU means for schedules of a feature level; usual caches where it has it not."""
    chosen = level(target.name)
    if target.name not in available_levels():
        return limits(chosen, options.threads)
    device = cpu()
    return limits(chosen, options.threads, device.l1_bytes, device.l2_bytes)


def knowledge_here(target: Target, options: Options) -> Knowledge:
    """What is known of schedules on this CPU."""
    return knowledge(target.name, options.threads, options.precision, options.objective)
