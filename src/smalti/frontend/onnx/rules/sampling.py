"""Operators that sample between elements, and those that add blocks up to an image."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.contraction import window
from smalti.graph import Value
from smalti.graph.operation import DTYPES


@rule("GridSample")
def grid_sample(call: NodeCall) -> Value:
    """Before version 20 the modes linear and cubic are called bilinear and bicubic."""
    mode = call.text("mode")
    return call.apply("grid_sample", call[0], call[1],
                      mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
                      padding_mode=call.text("padding_mode"),
                      align_corners=call.integer("align_corners"))


@rule("RoiAlign")
def roi_align(call: NodeCall) -> Value:
    """Before version 16 coordinates are not shifted by half a pixel."""
    corners, mode = call.text("coordinate_transformation_mode", "output_half_pixel"), \
        call.text("mode").lower()
    if mode not in ("avg", "max") or corners.lower() not in ("half_pixel", "output_half_pixel"):
        raise InputError(f"mode {mode!r}, coordinate_transformation_mode {corners!r}")
    return call.apply("roi_align", call[0], call[1], call[2], mode=mode,
                      output_height=call.integer("output_height"),
                      output_width=call.integer("output_width"),
                      spatial_scale=call.number("spatial_scale"),
                      sampling_ratio=call.integer("sampling_ratio"),
                      half_pixel=int(corners.lower() == "half_pixel"))


@rule("MaxRoiPool")
def max_roi_pool(call: NodeCall) -> Value:
    shape = call.integers("pooled_shape")
    if shape is None or len(shape) != 2:
        raise InputError(f"pooled_shape {shape}; height and width are expected")
    return call.apply("max_roi_pool", call[0], call[1], output_height=shape[0],
                      output_width=shape[1], spatial_scale=call.number("spatial_scale"))


@rule("DeformConv")
def deform_conv(call: NodeCall) -> Value:
    x, w, offset, bias, mask = (call.optional(i) for i in range(5))
    if x is None or w is None or offset is None or len(offset.shape) != 4 or len(w.shape) != 4:
        raise InputError("an image, weights and offsets are expected")
    strides, dilations = window(call, w.shape[2:])
    if bias is None:
        bias = call.filled(w.shape[:1], 0, x.dtype)
    if mask is None:
        n, taps, *spatial = offset.shape
        one = call.constant(np.ones((1,) * 4, DTYPES[x.dtype]), x.dtype)
        mask = call.apply("expand", one, shape=(n, taps // 2, *spatial))
    return call.apply("deform_conv", x, w, offset, bias, mask, strides=strides,
                      dilations=dilations, pads=call.integers("pads", (0,) * 4),
                      group=call.integer("group"), offset_group=call.integer("offset_group"))


@rule("ConvTranspose")
def conv_transpose(call: NodeCall) -> Value:
    x, w, bias = call[0], call[1], call.optional(2)
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != len(x.shape):
        raise InputError(f"{x.type} with {w.type}")
    kernel = tuple(call.integers("kernel_shape", w.shape[2:]))
    if kernel != w.shape[2:]:
        raise InputError(f"kernel_shape {list(kernel)} with a weight of {w.type}")
    strides, dilations = window(call, kernel)
    extra = call.integers("output_padding", (0,) * rank)
    pads, mode = call.integers("pads", (0,) * (2 * rank)), call.text("auto_pad")
    wanted = call.integers("output_shape", None)
    if len(extra) != rank or len(pads) != 2 * rank:
        raise InputError(f"output_padding {list(extra)} and pads {list(pads)} for {rank} axes")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
    if wanted is not None:
        wanted = wanted[-rank:]
        if len(wanted) != rank:
            raise InputError(f"output_shape {list(wanted)} for {rank} axes")
        full = [s * (n - 1) + e + (k - 1) * d + 1 for n, k, s, d, e
                in zip(x.shape[2:], kernel, strides, dilations, extra, strict=True)]
        over = [f - n for f, n in zip(full, wanted, strict=True)]
        extra = tuple(e - min(0, o) for e, o in zip(extra, over, strict=True))
        less, more = [max(0, o) // 2 for o in over], [max(0, o) - max(0, o) // 2 for o in over]
        pads = (*less, *more) if mode == "SAME_UPPER" else (*more, *less)
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    operands = [x, w] if bias is None else [x, w, bias]
    return call.apply("conv_transpose", *operands, strides=strides, dilations=dilations, pads=pads,
                      output_padding=extra, group=call.integer("group"))


@rule("Col2Im")
def col2im(call: NodeCall) -> Value:
    image, block = call.known_integers(1), call.known_integers(2)
    strides, dilations = window(call, block)
    return call.apply("col2im", call[0], image_shape=image, block_shape=block, strides=strides,
                      dilations=dilations, pads=call.integers("pads", (0,) * (2 * len(block))))


@rule("MaxUnpool")
def max_unpool(call: NodeCall) -> Value:
    """Put each element where its maximum was; indices count through the unpooled image."""
    x, places = call[0], call[1]
    kernel = call.integers("kernel_shape")
    rank = len(x.shape) - 2
    if kernel is None or len(kernel) != rank or places.shape != x.shape:
        raise InputError(f"{x.type} to {places.type} in windows of {kernel}")
    strides, _ = window(call, kernel)
    pads = call.integers("pads", (0,) * (2 * rank))
    image = tuple((n - 1) * s - front - back + k for n, s, front, back, k in zip(
        x.shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True))
    if min(image) < 1:
        raise InputError(f"{x.type} in windows of {list(kernel)} with pads {list(pads)}")
    shape, size = (*x.shape[:2], *image), math.prod((*x.shape[:2], *image))
    zero = call.constant(np.zeros(1, DTYPES[x.dtype]), x.dtype)
    y = call.apply("scatter_elements", call.apply("expand", zero, shape=(size,)),
                   places.reshape(x.type.size), x.reshape(x.type.size), axis=0).reshape(*shape)
    wanted = call.known_integers(2, shape)
    if len(wanted) != len(shape) or any(n < m for n, m in zip(wanted, shape, strict=True)):
        raise InputError(f"output_shape {list(wanted)} is smaller than {list(shape)}")
    behind = tuple(n - m for n, m in zip(wanted, shape, strict=True))
    return y if not any(behind) else call.apply("pad", y, pads=(*(0,) * len(shape), *behind))


@rule("Det")
def determinant(call: NodeCall) -> Value:
    return call.apply("det", call[0])
