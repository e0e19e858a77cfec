"""What compiling begins with, whatever a program runs on: the graph as kernels want it."""

from __future__ import annotations

from collections.abc import Collection

from smalti import settings
from smalti.errors import InputError
from smalti.fuse import HostRegion, Partition
from smalti.fuse.support import lacking
from smalti.graph import Graph
from smalti.graph.graph import VALUE_BYTES_MAX
from smalti.rewrite import rewrite
from smalti.rewrite.halves import widened


def prepared(graph: Graph, functions: Collection[str]) -> tuple[Graph, dict[str, str]]:
    """`graph` in f32 and rewritten, and the dtypes of those of its parameters that are halves.

    `functions` are the pointwise operations that the target has. Raises InputError for a value that
    is larger than any memory.
    """
    for value in (*graph.inputs.values(), *graph.parameters.values(),
                  *(node.output for node in graph.nodes)):
        if value.type.bytes > VALUE_BYTES_MAX:
            raise InputError(f"{graph.name}: a value of {value.type} is larger than any memory; "
                             f"choose smaller sizes")
    graph, halves = widened(graph)
    graph = rewrite(graph, lambda node: not lacking(node, functions))
    if settings.show("graph"):
        print(graph)
    return graph, halves


def show_regions(found: Partition) -> None:
    """Print the regions of a partition where SMALTI_SHOW asks for them."""
    if settings.show("fused"):
        for region in found.regions:
            form = "host" if isinstance(region, HostRegion) else region.kernel.form
            print(f"{region.scope}: {form}: {region.reason}")
