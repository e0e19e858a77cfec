"""Pooling: kernels of the sum or maximum of each channel over a window."""

from __future__ import annotations

from smalti.fuse.placement import Placement
from smalti.fuse.reader import Reader
from smalti.fuse.support import POOLS
from smalti.fuse.window import pool_counts, pool_window
from smalti.graph import Node, Value
from smalti.kernel import build
from smalti.kernel.form import Call, Load, axis


def emit_pooling(placement: Placement, anchor: Node, last: Value) -> None:
    """Add the kernel of a pooling, up to the value `last` of its epilogue. A mean is a sum over the
    number of elements of each window, which is the first operation of the epilogue."""
    window, read = pool_window(anchor), Reader(placement)
    b, y, x, o = map(axis, "byxo")
    at = (b, axis("c"), y.plus(-window.pad[0]), x.plus(-window.pad[1]))
    patch = read.load(placement.pixels(anchor.inputs[0]), at)
    total: Load | Call = Load("sum", (b, y, x, o))
    if anchor.operation.name == "average_pool":
        total = Call("mul", (total, read.array(1 / pool_counts(anchor), (y, x))))
    result = read.value(last, (b, o, y, x), {anchor.output: total})
    out = placement.place(last).transpose((0, 2, 3, 1))
    kernel = build.pooling(window, patch, POOLS[anchor.operation.name], result,
                           read.buffers(out=out))
    placement.builder.add(kernel, read.views(out=out), anchor, placement.decisions.reason(last),
                          anchor.flops)
