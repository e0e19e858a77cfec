"""What programs of a GPU are compiled from: for one that is open, or for any of a kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from smalti.codegen.target import Target
from smalti.compiler import options as all_options
from smalti.compiler.options import ALL_F32, Options
from smalti.compiler.select import Knowledge
from smalti.graph import Graph
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.known import knowledge_of_gpu
from smalti.runtime.recipe import Recipe


def recipe_for(gpu: Gpu, graph: Graph, *, precision: str = "auto", held: Collection[str] = (),
               threads: int | None = None, weights: Mapping[str, str] = ALL_F32,
               objective: str = "latency") -> Recipe:
    """A recipe for a GPU of options as `compile_for` takes them, with the same errors."""
    options = all_options.checked(
        graph, gpu.target, gpu.limits, f"{gpu.device.name} ({gpu.device.id})", precision=precision,
        held=held, threads=threads, weights=weights, objective=objective)
    return Recipe(graph, options, gpu.target, (gpu.target,), lambda target, options: gpu.limits,
                  lambda target, options: knowledge_of_gpu(gpu.device, target.name,
                                                           options.precision))


def recipe_anywhere(target: Target, graph: Graph, options: Options) -> Recipe:
    """A recipe for every device of a target. Raises InputError where some have not the precision
    of `options`."""
    checked = all_options.checked(
        graph, target, target.least, f"any device of {target.driver}", precision=options.asked,
        held=options.held, threads=options.threads, weights=dict(options.weights),
        objective=options.objective)
    return Recipe(graph, checked, target, (target,), lambda target, options: target.least,
                  lambda target, options: Knowledge())
