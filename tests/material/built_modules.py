"""Modules for tests, compiled without a look at the cache or at this computer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.compiler.module import Module
from smalti.compiler.options import ALL_F32, Options
from smalti.compiler.passes import Progress, compiled
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import TARGETS
from smalti.graph import Graph
from smalti.schedule import Limits


def built(graph: Graph, level: FeatureLevel, limits: Limits, precision: str = "f32",
          held: Collection[str] = (), progress: Progress | None = None,
          winograd_sizes: Mapping[str, int] = {}, weights: Mapping[str, str] = ALL_F32,
          known: Knowledge | None = None) -> Module:
    """The module of a graph for a feature level."""
    options = Options(precision, tuple(held), limits.threads, tuple(sorted(weights.items())),
                      winograd_sizes=tuple(sorted(winograd_sizes.items())))
    return compiled(graph, TARGETS[level.name], limits, options, known, progress)
