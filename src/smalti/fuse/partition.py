"""Partitions a graph into regions, one kernel each.

By default every pointwise operation, broadcast and view is computed where its result is read. A
region ends, and its result is stored, only where fusing further is impossible or costs more than a
store and a load: at the result of a contraction or an attention, where statistics need a whole
image first, and where a value would be computed again too often. `Region.reason` says which. An
operation that no kernel computes is a `HostRegion`: numpy computes it from stored values.

The steps: `decide.py` says which values are stored, `placement.py` where, and an emitter for each
form (`emit/`) makes the kernels, whose expressions `reader.py` builds.
"""

from __future__ import annotations

from collections.abc import Collection

from smalti.fuse.builder import PartitionBuilder
from smalti.fuse.decide import decide
from smalti.fuse.emit.emit import emit
from smalti.fuse.placement import Placement
from smalti.fuse.region import Partition
from smalti.graph import Graph, Value


def partition(graph: Graph, held: Collection[str] = (),
              functions: Collection[str] | None = None,
              otherwise: Collection[Value] = ()) -> Partition:
    """The partition of `graph`.

    `held` names inputs that change more rarely than others; what depends on these only is computed
    when they change. `functions` are the pointwise operations that kernels may compute (None: all);
    what has no kernel becomes host regions. For the values in `otherwise` the decision whether they
    are stored is reversed, where both is possible (see `Partition.open`): a search tries that.
    """
    decisions = decide(graph, held, functions, otherwise)
    found = Partition(graph.name, held=tuple(sorted(held)), open=list(decisions.open))
    builder = PartitionBuilder(found, decisions.when)
    placement = Placement(graph, decisions, builder)
    found.inputs = {name: placement.view(value) for name, value in graph.inputs.items()}
    for node in graph.nodes:
        builder.result = node.output
        emit(placement, node)
    found.outputs = {name: placement.output(value) for name, value in graph.outputs.items()}
    found.regions.sort(key=lambda region: region.when)
    return found
