"""Describes convolutions, poolings and matrix products as windows that move over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smalti.fuse.view import View
from smalti.graph import Node
from smalti.kernel import build


def conv_window(node: Node) -> build.Window:
    """The window of a convolution: that of one group of channels, or, if it is depthwise (each
    channel is a group), that of all channels."""
    (batch, channels, height, width), out = node.inputs[0].shape, node.output.shape
    groups = node.attributes["group"]
    parts = 1 if groups == channels == out[1] else groups
    rows, columns = node.inputs[1].shape[2:]
    return build.Window(batch, height, width, channels // parts, out[2], out[3], out[1] // parts,
                        rows, columns, *_steps(node))


def matrix_window(node: Node) -> build.Window:
    """The window of a matrix product, as a convolution by one pixel: rows are pixels."""
    batch, height, width, channels = (*node.output.shape[:-2], 1, 1)[:2] + node.output.shape[-2:]
    return build.Window(batch, height, width, node.inputs[0].shape[-1], height, width, channels)


def pool_window(node: Node) -> build.Window:
    """The window of a pooling."""
    (batch, channels, height, width), out = node.inputs[0].shape, node.output.shape
    rows, columns = node.attributes["kernel_shape"]
    return build.Window(batch, height, width, channels, out[2], out[3], channels, rows, columns,
                        *_steps(node))


def _steps(node: Node) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Strides, dilations and leading pads, each for (rows, columns)."""
    (down, right), (below, beside) = node.attributes["strides"], node.attributes["dilations"]
    top, left, *_ = node.attributes["pads"]
    return (down, right), (below, beside), (top, left)


def pool_counts(node: Node) -> np.ndarray:
    """How many elements each mean of an average pooling is divided by, f32 [h, w]."""
    a, counts = node.attributes, []
    for k, (extent, out) in enumerate(zip(node.inputs[0].shape[2:], node.output.shape[2:])):
        before, behind = (a["pads"][k], a["pads"][k + 2]) if a["count_include_pad"] else (0, 0)
        at = (np.arange(out)[:, None] * a["strides"][k] - a["pads"][k]
              + np.arange(a["kernel_shape"][k]) * a["dilations"][k])
        counts.append(((-before <= at) & (at < extent + behind)).sum(1))
    return np.maximum(np.outer(*(count.astype(np.float32) for count in counts)), 1)


def matrices(weight: View, outer: Sequence[int]) -> View:
    """Matrices [..., c, o] viewed as the weight of a convolution.

    That is [o, c, 1, 1] for a single matrix, and [b, y, o, c, 1, 1] for several: `outer`, at most
    two extents, are the batch axes of the result, for which matrices are repeated if need be.
    """
    (*_, c, o), (*_, down, right) = weight.shape, weight.strides
    shape: tuple[int, ...] = o, c, 1, 1
    strides: tuple[int, ...] = right, down, 0, 0
    if math.prod(weight.shape[:-2]) > 1:
        wide = weight.expand((*outer, c, o))
        missing = 2 - len(outer)
        shape = (*outer, *(1,) * missing, *shape)
        strides = (*wide.strides[:-2], *(0,) * missing, *strides)
    return View(weight.storage, weight.offset, shape, strides)
