"""What a module is filed under: text that says all that it is made from."""

from __future__ import annotations

import hashlib

from smalti.codegen.target import Limits, Target
from smalti.compiler.options import Options
from smalti.graph import Graph, show


def module_key(graph: Graph, target: Target, limits: Limits, options: Options) -> str:
    """The key of the module of a graph, but for what is known of schedules (`Knowledge.key`).

    The objective is part of that knowledge; threads are among the limits where they matter.
    """
    text = f"{show(graph)} {options.weights}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (f"{digest} {target.name} {limits} {options.precision} {sorted(options.held)} "
            f"{sorted(options.winograd_sizes)}")
