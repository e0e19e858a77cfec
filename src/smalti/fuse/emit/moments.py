"""Statistics of normalisations: kernels that compute a scale and a shift for each channel or row.

Normalising is then x * scale + shift, which the kernels that read the result compute.
"""

from __future__ import annotations

import math

from smalti.fuse.placement import Placement
from smalti.fuse.region import buffer_of
from smalti.fuse.view import Storage, View, row_major
from smalti.graph import Node
from smalti.kernel import build
from smalti.kernel.form import Kernel

Statistics = tuple[dict[str, View], Kernel, tuple[View, ...]]
"""(views of a kernel, the kernel, views of its results: a scale, and perhaps a shift)."""


def emit_statistics(placement: Placement, node: Node) -> None:
    """Add the kernel of a normalisation's statistics, and note where they are stored."""
    forms = {"group_normalization": _group, "layer_normalization": _layer,
             "rms_normalization": _rms}
    views, kernel, statistics = forms[node.operation.name](placement, node)
    placement.statistics[node] = statistics
    placement.builder.add(kernel, views, node, "statistics need all of it before any is normalised",
                          4 * node.output.type.size)


def _group(placement: Placement, node: Node) -> Statistics:
    """The kernel of a group normalisation: scale and shift of each channel of each image."""
    x = placement.view(node.inputs[0])
    batch, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    flat = x.reshape((batch, channels, pixels))
    if flat is None or flat.strides[1] != 1 and channels > 1:
        n, *inner, c = row_major((batch, *x.shape[2:], channels))
        flat = placement.copy(x, node.inputs[0], (n, c, *inner))
        flat = flat.reshape((batch, channels, pixels))
    made = [View(Storage("arena", batch * channels), 0, (batch, channels), (channels, 1))
            for _ in range(2)]
    views = {"x": flat, "gamma": placement.dense(node.inputs[1]),
             "beta": placement.dense(node.inputs[2]), "scale": made[0], "shift": made[1]}
    source, *others = (buffer_of(name, view) for name, view in views.items())
    kernel = build.group_scale_shift(source, node.attributes["num_groups"],
                                     node.attributes["epsilon"], others)
    return views, kernel, tuple(made)


def _layer(placement: Placement, node: Node) -> Statistics:
    """The kernel of a layer normalisation: scale and shift of each row. The weights of channels are
    applied where the result is read."""
    x = placement.view(node.inputs[0])
    outer = x.shape[:node.attributes["axis"] % len(x.shape)]
    rows = math.prod(outer)
    channels = math.prod(x.shape) // rows
    flat = x.reshape((rows, channels))
    if flat is None or flat.strides[1] != 1 and channels > 1:
        flat = placement.copied(x, node.inputs[0]).reshape((rows, channels))
    made = [View(Storage("arena", rows), 0, (rows,), (1,)) for _ in range(2)]
    views = {"x": flat, "scale": made[0], "shift": made[1]}
    source, *others = (buffer_of(name, view) for name, view in views.items())
    kernel = build.layer_scale_shift(source, node.attributes["epsilon"], others)
    return views, kernel, tuple(view.reshape(outer) for view in made)


def _rms(placement: Placement, node: Node) -> Statistics:
    """The kernel of an RMS normalisation: the scale of each head of each row."""
    x = placement.view(node.inputs[0])
    outer = x.shape[:node.attributes["axis"] % len(x.shape)]
    rows = (math.prod(outer[:-2]), math.prod(outer[-2:-1]), math.prod(outer[-1:]))
    shape = (*rows, math.prod(x.shape) // math.prod(rows))
    split = x.reshape(shape)
    if split is None or split.strides[3] != 1 and shape[3] > 1:
        split = placement.copied(x, node.inputs[0]).reshape(shape)
    scale = View(Storage("arena", math.prod(rows)), 0, rows, row_major(rows))
    views = {"x": split, "scale": scale}
    source, *others = (buffer_of(name, view) for name, view in views.items())
    kernel = build.rms_scale(source, node.attributes["epsilon"], others)
    return views, kernel, (scale.reshape(outer),)
