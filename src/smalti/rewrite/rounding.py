"""Products of numbers by integers of 8 bits: what precision "int8" makes of a graph.

    mat_mul(x, w)        mat_mul_rounded(integers, w, 128) * scale
                             scale = max(reduce_max(abs(x)) / 127, least), one for each row of x
                             integers = cast(round(x / scale) + 128, to=u8)

A convolution of one pixel has a scale for each pixel. Weights are rounded as they are packed, each
output channel with a scale of its own. What is rounded has the largest sums of a model; these stay:

* the first layers, which read an input, and the last, which make an output;
* those of few rows, as of the time step, and of few channels: rounding them saves nothing;
* convolutions of 3 x 3: Winograd's algorithm takes fewer products than integers are faster, and a
  pixel's neighbours would have to have its scale;
* those whose weights are said to stay, as what does not stand it by measuring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from smalti.graph import Graph, Node, Value
from smalti.graph.operations.contraction import SCALE_MIN
from smalti.rewrite.rules import Made, Procedure

ROWS_MIN = 32
"""The fewest rows, or pixels, for which a layer is of integers: with fewer its time is that of
reading its weights, and what is computed of a time step or a whole prompt affects everything."""
ZERO = 128
"""The integer that stands for 0: bytes without a sign are multiplied where they lie."""
CHANNELS_MIN = 64
"""The fewest input and output channels: a guess. With fewer, finding the largest magnitude of a row
takes as long as the sums that it serves."""
VIEWS = ("reshape", "transpose", "slice", "expand", "cast", "concat", "gather")
"""Operations that make no other numbers."""


def candidates(graph: Graph) -> tuple[str, ...]:
    """The names of the weights whose layers may be computed in integers, in the order of layers.

    >>> g = Graph()
    >>> x = g.input("x", (1, 64, 96))
    >>> for name in ("first", "second", "third"):
    ...     x = g.apply("tanh", g.apply("mat_mul", x, g.parameter(name, (96, 96))))
    >>> g.output("y", x.reshape(64, 96))
    >>> candidates(g)
    ('second',)
    """
    last, users = _last(graph), graph.users()
    found: dict[str, bool] = {}
    for node in graph.nodes:
        if node.operation.name not in ("conv", "mat_mul") or not users.get(node.output):
            continue
        name = weight_name(node)
        if name is not None:
            found[name] = found.get(name, True) and node not in last and _fits(node)
    return tuple(name for name, fits in found.items() if fits)


def weight_name(node: Node) -> str | None:
    """The parameter that is the weight of a product or convolution; None if it is computed."""
    weight = node.inputs[1]
    while weight.node is not None and weight.node.operation.name in ("transpose", "reshape"):
        weight = weight.node.inputs[0]
    return weight.name if weight.kind == "parameter" else None


def _fits(node: Node) -> bool:
    """True if the layer has the shape for it, and does not read an input."""
    (x, weight, *_), shape = node.inputs, node.output.shape
    images = node.operation.name == "conv"
    if len(weight.shape) != (4 if images else 2) or images and (
            node.attributes["group"] > 1 or any(node.attributes["pads"])
            or {*weight.shape[2:], *node.attributes["strides"]} != {1}):
        return False
    depth, width = weight.shape[:2][::-1] if images else weight.shape
    rows = math.prod(shape) // width
    while x.node is not None and x.node.operation.name in VIEWS:
        x = x.node.inputs[0]
    return rows >= ROWS_MIN and min(depth, width) >= CHANNELS_MIN and x.node is not None


def _last(graph: Graph) -> set[Node]:
    """The layers whose results are outputs, but for a bias and for what each element becomes by
    itself."""
    found, pending = set(), [value for value in graph.outputs.values()]
    while pending:
        node = pending.pop().node
        if node is None:
            continue
        if node.operation.name in ("conv", "mat_mul"):
            found.add(node)
        elif node.operation.name in VIEWS or node.operation.pointwise:
            computed = [value for value in node.inputs if value.node is not None
                        or value.kind == "input"]
            if len(computed) == 1:
                pending.extend(computed)
    return found


def rounding(chosen: Collection[str], computes: Callable[[Node], bool]) -> Procedure:
    """The rule that computes the layers whose weights are `chosen` in integers, for a target whose
    kernels compute such products."""
    def applied(value: Value, made: Made) -> Value | None:
        node, g = value.node, value.graph
        if weight_name(node) not in chosen or not _fits(node):
            return None
        x, weight, *bias = node.inputs
        images = node.operation.name == "conv"
        channels = 1 if images else len(x.shape) - 1
        top = made(g.apply("reduce_max", made(g.apply("abs", x)), axes=(channels,), keepdims=True))
        scale = made(g.apply("max", made(top * g.constant(1 / 127)), g.constant(SCALE_MIN)))
        inverse = made(g.apply("reciprocal", scale))
        whole = made(made(g.apply("round", made(x * inverse))) + g.constant(float(ZERO)))
        integers = made(g.apply("cast", whole, to="u8"))
        sums = g.apply("conv_rounded" if images else "mat_mul_rounded", integers, weight,
                       g.constant(ZERO, "u8"), **node.attributes)
        if not computes(sums.node):
            return None
        result = made(made(sums) * scale)
        if bias:
            result = made(result + made(bias[0].reshape(*bias[0].shape, 1, 1)))
        return result

    return Procedure(("conv", "mat_mul"), applied)
