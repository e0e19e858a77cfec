"""Contractions: kernels of convolutions and matrix products, with their prologues and epilogues."""

from __future__ import annotations

from smalti.fuse.emit.depthwise import emit_depthwise
from smalti.fuse.emit.integers import centred, whole
from smalti.fuse.placement import Placement
from smalti.fuse.reader import Reader, broadcast
from smalti.fuse.support import depthwise
from smalti.fuse.window import conv_window, matrices, matrix_window
from smalti.graph import Node, Value
from smalti.kernel import build
from smalti.kernel.form import Load, axis


def emit_product(placement: Placement, anchor: Node, last: Value) -> None:
    """Add the contraction of a matrix product, up to the value `last` of its epilogue."""
    weight = placement.view(anchor.inputs[1])
    data, outer = anchor.inputs[0], anchor.output.shape[:-2]
    b, y, x, o = map(axis, "byxo")
    window, at = matrix_window(anchor), (b, y)[:len(outer)]
    read, total = Reader(placement), Load("sum", (b, y, x, o))
    patch = centred(read, anchor, read.value(data, broadcast(data, (*at, x, axis("c")))))
    result = read.value(last, (*at, x, o), {anchor.output: total}, anchor)
    weight = matrices(weight, outer)
    out = placement.place(last)
    out = out.reshape((*out.shape[:-2], *(1,) * (2 - len(outer)), *out.shape[-2:]))
    kernel = build.contraction(window, patch, result, read.buffers(weight=weight, out=out),
                               anchor.output.type.size // last.type.size, whole(anchor))
    placement.builder.add(kernel, read.views(weight=weight, out=out), anchor,
                          placement.decisions.reason(last), anchor.flops)


def emit_convolution(placement: Placement, anchor: Node, last: Value) -> None:
    """Add the kernels of a convolution, up to the value `last` of its epilogue: a contraction for
    each group of channels, or a depthwise one where every group is a channel."""
    if depthwise(anchor):
        emit_depthwise(placement, anchor, last)
        return
    weight, groups, data = placement.view(anchor.inputs[1]), anchor.attributes["group"], \
        anchor.inputs[0]
    window = conv_window(anchor)
    source = placement.pixels(data) if groups > 1 else None
    b, y, x, o = map(axis, "byxo")
    found = []
    for part in range(groups):
        read, first = Reader(placement), part * window.out_channels
        at = (b, axis("c").plus(part * window.channels), y.plus(-window.pad[0]),
              x.plus(-window.pad[1]))
        patch = centred(read, anchor, read.value(data, at) if source is None
                         else read.load(source, at))
        total = Load("sum", (b, y, x, o.plus(-first)))
        result = read.value(last, (b, o.plus(first), y, x), {anchor.output: total}, anchor)
        found.append((read, patch, result))
    target = placement.place(last)
    made = last.shape[1] // groups
    for part, (read, patch, result) in enumerate(found):
        first, end = part * window.out_channels, (part + 1) * window.out_channels
        out = target.slice(1, part * made, (part + 1) * made)
        views = {"weight": weight.slice(0, first, end), "out": out.transpose((0, 2, 3, 1))}
        kernel = build.contraction(window, patch, result, read.buffers(**views),
                                   window.out_channels // made, whole(anchor))
        placement.builder.add(kernel, read.views(**views), anchor,
                              placement.decisions.reason(last), anchor.flops // groups)
