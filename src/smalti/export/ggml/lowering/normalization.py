"""Reductions, running sums, softmax and norms, all along rows."""

from __future__ import annotations

import math
from collections.abc import Callable

from smalti.export.ggml import layout
from smalti.export.ggml.builder import GgmlBuilder, Lowering, NotExportable
from smalti.export.ggml.code import Tensor, call
from smalti.graph import Node

REDUCTIONS = {"reduce_sum": "ggml_sum_rows", "reduce_mean": "ggml_mean",
              "reduce_max": "ops::max_rows", "reduce_min": "ops::min_rows"}
NORMS = {"layer_normalization": "ops::layer_norm", "rms_normalization": "ops::rms_norm"}


def _reduce(b: GgmlBuilder, node: Node) -> Tensor:
    (x,) = node.inputs
    rank = len(x.shape)
    axes = sorted(axis % rank for axis in node.attributes["axes"])
    kept = [axis for axis in range(rank) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    tensor = b.transposed(b.tensor(x), x.shape, (*kept, *axes))
    lines = x.type.size // count
    return Tensor(call(REDUCTIONS[node.operation.name], "ctx", tensor.shaped(lines, count)),
                  (lines, 1))


def along(b: GgmlBuilder, node: Node, axis: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function`, which leaves the shape, of the input's rows along `axis`."""
    (x,) = node.inputs
    rank = len(x.shape)
    order = (*(i for i in range(rank) if i != axis), axis)
    shape = tuple(x.shape[i] for i in order)
    rows = b.transposed(b.tensor(x), x.shape, order).shaped(*layout.dimensions(shape))
    made = function(rows)
    if axis == rank - 1:
        return made
    made = b.let(made, hint=node.operation.name)
    return b.transposed(made, shape, tuple(order.index(i) for i in range(rank)))


def _softmax(b: GgmlBuilder, node: Node) -> Tensor:
    axis = node.attributes["axis"] % len(node.output.shape)
    return along(b, node, axis, lambda x: Tensor(call("ggml_soft_max", "ctx", x), x.dims))


def _cum_sum(b: GgmlBuilder, node: Node) -> Tensor:
    if node.attributes["exclusive"] or node.attributes["reverse"]:
        raise NotExportable("exclusive and reverse have no equal")
    axis = node.attributes["axis"] % len(node.output.shape)
    return along(b, node, axis, lambda x: Tensor(call("ggml_cumsum", "ctx", x), x.dims))


def _row_norm(b: GgmlBuilder, node: Node) -> Tensor:
    """Layer and RMS normalisation."""
    x, *weights = node.inputs
    axis = node.attributes["axis"] % len(x.shape)
    dims: layout.Shape = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    if axis == len(x.shape) - 1:
        dims = layout.dimensions(x.shape)
    code = call(NORMS[node.operation.name], "ctx", b.shaped(x, *dims),
                *(b.shaped(w, dims[-1]) for w in weights), float(node.attributes["epsilon"]))
    return Tensor(code, dims)


def _group_normalization(b: GgmlBuilder, node: Node) -> Tensor:
    x, scale, bias = node.inputs
    n, c, *size = x.shape
    dims = (n, c, math.prod(size[:-1]), size[-1])
    code = call("ops::group_norm", "ctx", b.shaped(x, *dims), b.tensor(scale), b.tensor(bias),
                node.attributes["num_groups"], float(node.attributes["epsilon"]))
    return Tensor(code, dims)


NORMALIZATION: dict[str, Lowering] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(NORMS, _row_norm),
    "softmax": _softmax, "cum_sum": _cum_sum, "group_normalization": _group_normalization,
}
