"""What a module is filed under: text that says all that it is made from."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from smalti.codegen.target import Limits, Target
from smalti.compiler.options import Options
from smalti.graph import Graph, show


class ModuleKey(NamedTuple):
    """The key of the module of a graph, but for what is known of schedules (`Knowledge.key`).

    `kernels` is that of the kernels that it has in common with modules of the same graph for
    weights of other dtypes. The objective is part of what is known; threads are among the limits
    where they matter.
    """

    module: str
    kernels: str


def module_key(graph: Graph, target: Target, limits: Limits, options: Options) -> ModuleKey:
    """What a module of a graph and its kernels are filed under."""
    kernels = (f"{_digest(show(graph))} {target.name} {limits} {options.precision} "
               f"{sorted(options.held)}{f' in 8 bits but {options.kept}' * options.rounded}")
    weights = _digest(f"{options.weights} {sorted(options.winograd_sizes)}")
    return ModuleKey(f"{kernels} {weights}", kernels)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
