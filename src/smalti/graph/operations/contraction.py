"""Sums of products: matrix multiplication and convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import FLOATS, Type, broadcast, define


def _mat_mul_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    a, b = types
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise InputError(f"mat_mul of {a} and {b}: [..., m, k] and [..., k, n] are expected")
    batch = broadcast(Type(a.shape[:-2], a.dtype), Type(b.shape[:-2], b.dtype))
    return Type((*batch.shape, a.shape[-2], b.shape[-1]), batch.dtype)


define(name="mat_mul", inputs=(2, 2), shape=_mat_mul_rule, meaning=np.matmul,
       flops=lambda types, result, attributes: 2 * result.size * types[0].shape[-1])


def conv_extent(extent: int, kernel: int, stride: int, dilation: int, pads: int) -> int:
    """Output extent of a convolution along one axis; `pads` is the sum of both sides."""
    return (extent + pads - dilation * (kernel - 1) - 1) // stride + 1


def _conv_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, w = types[0], types[1]
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise InputError(f"conv of {x} with {w}: [n, c, h, w] and [o, c, r, s] are expected")
    if x.shape[1] != w.shape[1] * attributes["group"]:
        raise InputError(f"conv of {x} with {w}: {x.shape[1]} channels given, "
                         f"{w.shape[1] * attributes['group']} expected")
    if len(types) == 3 and types[2].shape != w.shape[:1]:
        raise InputError(f"conv bias is {types[2]}, expected [{w.shape[0]}]")
    (top, left, bottom, right) = attributes["pads"]
    (stride_y, stride_x), (dilation_y, dilation_x) = attributes["strides"], attributes["dilations"]
    height = conv_extent(x.shape[2], w.shape[2], stride_y, dilation_y, top + bottom)
    width = conv_extent(x.shape[3], w.shape[3], stride_x, dilation_x, left + right)
    if height < 1 or width < 1:
        raise InputError(f"conv of {x} with {w}: the kernel is larger than the padded image")
    return Type((x.shape[0], w.shape[0], height, width), x.dtype)


def conv(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, *, strides: Sequence[int],
         pads: Sequence[int], dilations: Sequence[int], group: int) -> np.ndarray:
    """Cross-correlation of x [n, c, h, w] with w [o, c / group, r, s]; zero padding."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, _, height, width = x.shape
    o, c, r, s = w.shape
    out_h = conv_extent(height, r, strides[0], dilations[0], 0)
    out_w = conv_extent(width, s, strides[1], dilations[1], 0)
    y = np.zeros((n, group, o // group, out_h, out_w), np.promote_types(x.dtype, np.float32))
    x = x.reshape(n, group, c, height, width)
    w = w.reshape(group, o // group, c, r, s)
    for i in range(r):
        for j in range(s):
            top, left = i * dilations[0], j * dilations[1]
            patch = x[..., top:top + strides[0] * (out_h - 1) + 1:strides[0],
                      left:left + strides[1] * (out_w - 1) + 1:strides[1]]
            y += np.einsum("ngchw,goc->ngohw", patch, w[..., i, j], optimize=True)
    y = y.reshape(n, o, out_h, out_w)
    return y if bias is None else y + bias[:, None, None]


define(name="conv", inputs=(2, 3), shape=_conv_rule, meaning=conv,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
       flops=lambda types, result, attributes:
           2 * result.size * types[1].shape[1] * types[1].shape[2] * types[1].shape[3])


def _det_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,) = types
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or x.dtype not in FLOATS:
        raise InputError(f"det of {x}: square matrices [..., n, n] are expected")
    return Type(x.shape[:-2], x.dtype)


def det(x: np.ndarray) -> np.ndarray:
    """The determinants of square matrices, in f64 inside."""
    return np.linalg.det(x.astype(np.float64)).astype(x.dtype)


define(name="det", inputs=(1, 1), shape=_det_rule, meaning=det,
       flops=lambda types, result, attributes: result.size * types[0].shape[-1] ** 3)
