"""Reductions: kernels of sums, means and maxima along axes."""

from __future__ import annotations

import math

from smalti.fuse.placement import Placement
from smalti.fuse.reader import Reader
from smalti.fuse.support import REDUCTIONS
from smalti.graph import Node, Value
from smalti.kernel import build
from smalti.kernel.form import Call, Const, Load, axis


def emit_reduction(placement: Placement, anchor: Node, last: Value) -> None:
    """Add the kernel of a reduction, up to the value `last` of its epilogue."""
    data, shape = anchor.inputs[0], anchor.output.shape
    reduced = {k % len(data.shape) for k in anchor.attributes["axes"]}
    axes = tuple((f"i{k}", n) for k, n in enumerate(shape))
    kept = tuple(axis(name) for name, _ in axes)
    left = iter(kept) if not anchor.attributes["keepdims"] else None
    over, at = [], []
    for k, extent in enumerate(data.shape):
        if k in reduced:
            over.append((f"r{k}", extent))
        at.append(axis(f"r{k}") if k in reduced else next(left) if left else kept[k])
    total: Load | Call = Load("total", kept)
    if anchor.operation.name == "reduce_mean":
        total = Call("mul", (total, Const(1 / math.prod(n for _, n in over))))
    read = Reader(placement)
    value = read.value(data, tuple(at))
    result = read.value(last, kept, {anchor.output: total})
    out = placement.place(last)
    kernel = build.reduction(axes, over, REDUCTIONS[anchor.operation.name], value, result,
                             read.buffers(out=out))
    placement.builder.add(kernel, read.views(out=out), anchor, placement.decisions.reason(last),
                          data.type.size)
