"""Which operations the forms of kernels compute, and what is refused."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from smalti.errors import UnsupportedError
from smalti.graph import Graph, Node, Value

CONTRACTIONS = {"conv", "mat_mul"}
REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "sum", "reduce_max": "max"}
ANCHORS = CONTRACTIONS | REDUCTIONS.keys()
"""Operations whose kernels take in the pointwise ones behind them."""
NORMALIZATIONS = {"group_normalization", "layer_normalization", "rms_normalization"}
VIEWS = {"reshape", "transpose", "slice", "expand"}
KNOWN = ANCHORS | NORMALIZATIONS | VIEWS | {
    "attention", "concat", "gather", "resize", "rotary_embedding"}


class When(IntEnum):
    """When a value has to be computed: it depends on parameters only, on inputs that are held from
    run to run besides, or on any input."""

    BINDING = 0
    CHANGE = 1
    RUN = 2


def whens(graph: Graph, held: Collection[str]) -> dict[Value, When]:
    """When each value of `graph` has to be computed; `held` are names of inputs."""
    found = dict.fromkeys(graph.parameters.values(), When.BINDING)
    for name, value in graph.inputs.items():
        found[value] = When.CHANGE if name in held else When.RUN
    for node in graph.nodes:
        found[node.output] = max((found.get(v, When.BINDING) for v in node.inputs),
                                 default=When.BINDING)
    return found


def refuse_unsupported(graph: Graph) -> None:
    """Raise UnsupportedError with all nodes that cannot be computed by a kernel."""
    bad = [f"{value.kind} {name}: dtype {value.dtype}; {' or '.join(dtypes)} is expected"
           for leaves, dtypes in ((graph.inputs, ("f32", "i32")), (graph.parameters, ("f32",)))
           for name, value in leaves.items() if value.dtype not in dtypes]
    for node in graph.nodes:
        why = _unsupported(node)
        if why:
            bad.append(f"{node.scope or '(top)'}: {node.operation.name}: {why}")
    if bad:
        raise UnsupportedError(f"graph {graph.name} has {len(bad)} nodes that the CPU target "
                               f"cannot compile:", bad)


def _unsupported(node: Node) -> str:
    name = node.operation.name
    if not node.operation.pointwise and name not in KNOWN:
        return "no kernel form computes it"
    if name == "gather" and node.inputs[1].kind == "constant":
        numbers, extent = node.inputs[1].data, node.inputs[0].shape[0]
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < extent:
            return f"rows {numbers.min()} to {numbers.max()} of a table of {extent}"
    if name in CONTRACTIONS:
        root = node.inputs[1]
        while root.node is not None and root.node.operation.name in VIEWS:
            root = root.node.inputs[0]
        if root.kind not in ("parameter", "constant"):
            return "the second operand is computed, a parameter is expected"
    if name == "mat_mul" and (len(node.inputs[0].shape) > 3 or len(node.inputs[1].shape) != 2):
        return "more than one batch axis"
    if any(value.type.size == 0 for value in (*node.inputs, node.output)):
        return "there is nothing to compute: an extent is 0"
    dtypes = {v.dtype for v in node.inputs} - ({"i32"} if name == "gather" or name in VIEWS
                                               else set())
    return "" if dtypes <= {"f32"} else f"dtypes {sorted(dtypes)}; f32 is expected"
