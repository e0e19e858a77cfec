"""A graph as statements of C++, and what its weights file has to hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import UnsupportedError, UnsupportedNode
from smalti.export.ggml.builder import DTYPES, GgmlBuilder, NotExportable
from smalti.export.ggml.code import Local, Statement, Tensor, call
from smalti.export.ggml.lowering import INTEGERS, LOWERINGS, is_depthwise, is_swap
from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.rewrite import ALL_RULES
from smalti.rewrite.folding import fold_constants
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.lowering import lowering
from smalti.rewrite.rebuilding import Images, copied
from smalti.rewrite.rules import apply_rules

NODES_PER_STATEMENT = 32
"""Nodes of ggml's graph that a statement makes at most: no function of `ops.h` makes more, but for
grouped convolutions. The sum over all statements is the size of the graph that is asked for."""
NODES_PER_GROUP = 8
"""Nodes that a grouped convolution makes for each group, at most."""
WINDOW_AXES = {"conv": (1, 2), "conv_transpose": (1, 2), "max_pool": (2,), "average_pool": (2,)}
"""Along how many axes windows move in what has a lowering."""


@dataclass(frozen=True)
class GgmlModel:
    """Statements, in order; the variables that are inputs and outputs, in the graph's order.

    Of `parameters`, those that are read, the ones in `swapped` are stored with both axes exchanged,
    and the ones in `half` may be f16. `nodes_max` bounds what ggml makes of the statements.
    """

    graph: Graph
    statements: list[Statement]
    inputs: list[Local]
    outputs: list[Local]
    parameters: list[Value]
    constants: Mapping[str, np.ndarray]
    swapped: frozenset[str]
    half: frozenset[str]
    nodes_max: int


def lowered(graph: Graph, parameters: Mapping[str, np.ndarray]) -> GgmlModel:
    """`graph` in terms of ggml. Raises UnsupportedError with all nodes that ggml cannot express."""
    graph = _prepared(graph, parameters)
    bad = [UnsupportedNode(name, value.kind, f"dtype {value.dtype}; one of {', '.join(DTYPES)} is "
                                             f"expected")
           for leaves in (graph.inputs, graph.parameters) for name, value in leaves.items()
           if value.dtype not in DTYPES]
    swapped, half = _stored(graph)
    builder = GgmlBuilder(graph, swapped)
    for node in graph.nodes:
        try:
            _refuse(node)
            builder.lower(node, LOWERINGS[node.operation.name])
        except NotExportable as why:
            builder.stand_in(node)
            bad.append(UnsupportedNode(node.scope or "(top)", node.operation.name, str(why)))
    if bad:
        raise UnsupportedError(f"graph {graph.name} has {len(bad)} nodes that ggml cannot express:",
                               bad)
    outputs = _outputs(graph, builder)
    statements = _live(builder.statements, outputs)
    read = {value for node in graph.nodes for value in node.inputs} | {*graph.outputs.values()}
    groups = sum(node.attributes.get("group", 0) for node in graph.nodes if not is_depthwise(node))
    return GgmlModel(
        graph, statements, [_local(builder.tensor(v)) for v in graph.inputs.values()],
        outputs, [v for v in graph.parameters.values() if v in read], builder.constants, swapped,
        half, NODES_PER_STATEMENT * len(statements) + NODES_PER_GROUP * groups
        + len(graph.inputs) + len(graph.parameters) + len(builder.constants))


def _prepared(graph: Graph, parameters: Mapping[str, np.ndarray]) -> Graph:
    """What is spelled out raised to composites, and those that have no lowering taken apart."""
    def step(images: Images, node: Node, target: Graph) -> Value:
        operation = node.operation
        if operation.name in LOWERINGS or operation.decompose is None:
            return rebuilt(images, node, target)
        with target.scope(node.scope):
            return operation.decompose(target, *(images[v] for v in node.inputs),
                                       **node.attributes)

    def raised(graph: Graph) -> Graph:
        return remove_dead_nodes(apply_rules(fold_constants(graph), ALL_RULES))

    fillers = _fillers(raised(graph), parameters)
    graph = raised(copied(graph, lambda images, node, target: rebuilt(
        images | {v: target.constant(fillers[v.name]) for v in node.inputs
                  if v.kind == "parameter" and v.name in fillers}, node, target)))
    while True:
        before = [node.operation for node in graph.nodes]
        graph = apply_rules(copied(graph, step), (lowering(_fits),))
        graph = remove_dead_nodes(fold_constants(graph))
        if [node.operation for node in graph.nodes] == before:
            return graph


def _fits(node: Node) -> bool:
    """Whether windows move along as many axes as a lowering takes; others have none."""
    axes = WINDOW_AXES.get(node.operation.name)
    return axes is None or len(node.output.shape) - 2 in axes


def _fillers(graph: Graph, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters that are no weights: one number, again and again, which the model only repeats.

    Exporters spell a group normalisation as an instance normalisation by such ones and zeros, and
    the weights after it.
    """
    users, found = graph.users(), {}
    for name, value in graph.parameters.items():
        reshaped = users.get(value, [])
        read = [user for node in reshaped for user in users.get(node.output, [])]
        if len(value.shape) == 1 and read and name in parameters \
                and all(node.operation.name == "reshape" for node in reshaped) \
                and all(node.operation.name == "expand" for node in read):
            array = np.asarray(parameters[name])
            if array.shape == value.shape and (array == array[:1]).all():
                found[name] = array
    return found


def _refuse(node: Node) -> None:
    """Raise NotExportable for what no lowering looks at by itself."""
    name = node.operation.name
    if name not in LOWERINGS:
        raise NotExportable("ggml has no operation for it")
    if any(value.type.size == 0 for value in (*node.inputs, node.output)):
        raise NotExportable("there is nothing to compute: an extent is 0")
    for value in node.inputs:
        if name not in INTEGERS and DTYPES.get(value.dtype) == "i32":
            raise NotExportable(f"dtype {value.dtype}; floats are expected")


def _stored(graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """Parameters to store with both axes exchanged, and those that may be f16.

    ggml multiplies by a matrix whose rows are what NumPy calls columns. It takes f16 for such
    matrices, for windows of convolutions and for tables, and f32 everywhere else.
    """
    users = graph.users()
    swapped, half = set(), set()
    for name, value in graph.parameters.items():
        uses = {_use(value, node, users) for node in users.get(value, [])}
        if value in graph.outputs.values():
            uses.add("other")
        if uses == {"columns"}:
            swapped.add(name)
        if uses and (uses <= {"rows", "window", "table"} or uses == {"columns"}):
            half.add(name)
    return frozenset(swapped), frozenset(half)


def _use(value: Value, node: Node, users: Mapping[Value, list[Node]]) -> str:
    """What `node` takes `value` for: columns or rows of a matrix, a window, a table, or other."""
    name, place = node.operation.name, node.inputs.index(value)
    if node.inputs.count(value) > 1:
        return "other"
    if name == "mat_mul" and place == 1 and len(value.shape) == 2:
        return "columns"
    if name == "transpose" and len(value.shape) == 2 and is_swap(node.attributes["perm"]):
        reads = users.get(node.output, [])
        factors = all(n.operation.name == "mat_mul" and n.inputs[1] is node.output
                      and n.inputs[0] is not node.output for n in reads)
        return "rows" if reads and factors else "other"
    if name == "conv" and place == 1 and node.attributes["group"] == 1:
        return "window"
    if name == "gather" and place == 0:
        return "table"
    return "other"


def _outputs(graph: Graph, builder: GgmlBuilder) -> list[Local]:
    """A variable for each output: of its own, and neither an input nor a weight."""
    found: list[Local] = []
    made = {statement.result for statement in builder.statements}
    for name, value in graph.outputs.items():
        tensor = builder.tensor(value)
        (piece,) = tensor.code
        if piece not in made or piece in found:
            code = call("ggml_cont", "ctx", tensor)
            tensor = builder.let(Tensor(code, tensor.dims), shape=value.shape, hint=name)
        found.append(_local(tensor))
    return found


def _local(tensor: Tensor) -> Local:
    """The variable that holds a tensor."""
    (piece,) = tensor.code
    assert isinstance(piece, Local), piece
    return piece


def _live(statements: list[Statement], outputs: list[Local]) -> list[Statement]:
    """Those that an output depends on: a product reads its matrix from before a transposition."""
    needed, kept = set(outputs), []
    for statement in reversed(statements):
        if statement.result in needed:
            needed.update(statement.reads())
            kept.append(statement)
    return kept[::-1]
