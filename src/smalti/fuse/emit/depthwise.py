"""Depthwise convolutions: each channel of the result is a sum over one channel of the operand."""

from __future__ import annotations

from smalti.fuse.emit.integers import centred
from smalti.fuse.placement import Placement
from smalti.fuse.reader import Reader
from smalti.fuse.window import conv_window
from smalti.graph import Node, Value
from smalti.kernel import build
from smalti.kernel.form import Load, axis


def emit_depthwise(placement: Placement, anchor: Node, last: Value) -> None:
    """Add the kernel of a depthwise convolution, up to the value `last` of its epilogue."""
    weight, window, read = placement.view(anchor.inputs[1]), conv_window(anchor), Reader(placement)
    source = placement.pixels(anchor.inputs[0])
    b, y, x, o = map(axis, "byxo")
    patch = centred(read, anchor, read.load(
        source, (b, axis("c"), y.plus(-window.pad[0]), x.plus(-window.pad[1]))))
    result = read.value(last, (b, o, y, x), {anchor.output: Load("sum", (b, y, x, o))}, anchor)
    views = {"weight": weight, "out": placement.place(last).transpose((0, 2, 3, 1))}
    kernel = build.depthwise(window, patch, result, read.buffers(**views))
    placement.builder.add(kernel, read.views(**views), anchor, placement.decisions.reason(last),
                          anchor.flops)
