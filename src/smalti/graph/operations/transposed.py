"""Transposed convolution, and the sum of overlapping blocks that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define
from smalti.graph.operations.contraction import conv_extent


def overlap_add(blocks: np.ndarray, image: Sequence[int], strides: Sequence[int],
                dilations: Sequence[int], pads: Sequence[int]) -> np.ndarray:
    """Sum of overlapping blocks: [n, c, …kernel, …positions] -> [n, c, …image], each block added at
    its position.

    Elements that fall on the pads, or beyond the image, are dropped.
    """
    rank = len(image)
    kernel, positions = blocks.shape[2:2 + rank], blocks.shape[2 + rank:]
    reach = [(k - 1) * d + (p - 1) * s + 1
             for k, d, p, s in zip(kernel, dilations, positions, strides, strict=True)]
    full = [max(r, before + n)
            for r, before, n in zip(reach, pads[:rank], image, strict=True)]
    y = np.zeros((*blocks.shape[:2], *full), blocks.dtype)
    for tap in np.ndindex(*kernel):
        place: tuple = (..., *(slice(t * d, t * d + (p - 1) * s + 1, s) for t, d, p, s
                               in zip(tap, dilations, positions, strides, strict=True)))
        y[place] += blocks[(slice(None), slice(None), *tap)]
    inside: tuple = (..., *(slice(before, before + n)
                            for before, n in zip(pads[:rank], image, strict=True)))
    return y[inside]


def _check(name: str, x: Type, rank: int, attributes: Mapping[str, Any]) -> None:
    lists = [attributes["strides"], attributes["dilations"], attributes["pads"]]
    if [len(part) for part in lists] != [rank, rank, 2 * rank] or \
            min((*lists[0], *lists[1])) < 1 or min(lists[2]) < 0:
        raise InputError(f"{name} of {x}: strides and dilations of {rank} positive numbers and "
                         f"{2 * rank} pads are expected, got {lists}")


def _col2im_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), image, block = types, attributes["image_shape"], attributes["block_shape"]
    rank = len(image)
    if len(x.shape) != 3 or not rank or len(block) != rank or min((*image, *block)) < 1:
        raise InputError(f"col2im of {x} to {list(image)} in blocks of {list(block)}: "
                         f"[n, c * block, positions] is expected")
    _check("col2im", x, rank, attributes)
    pads, size = attributes["pads"], math.prod(block)
    positions = math.prod(max(0, conv_extent(n, k, s, d, before + after)) for n, k, s, d, before,
                          after in zip(image, block, attributes["strides"],
                                       attributes["dilations"], pads[:rank], pads[rank:],
                                       strict=True))
    if x.shape[1] % size or x.shape[2] != positions:
        raise InputError(f"col2im of {x} to {list(image)}: [n, c * {size}, {positions}] is "
                         f"expected")
    return Type((x.shape[0], x.shape[1] // size, *image), x.dtype)


def col2im(x: np.ndarray, *, image_shape: Sequence[int], block_shape: Sequence[int],
           strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]) -> np.ndarray:
    """Columns [n, c * block, positions] of blocks added up to an image [n, c, …image_shape]."""
    rank = len(image_shape)
    positions = [conv_extent(n, k, s, d, before + after) for n, k, s, d, before, after
                 in zip(image_shape, block_shape, strides, dilations, pads[:rank], pads[rank:],
                        strict=True)]
    blocks = x.reshape(x.shape[0], -1, *block_shape, *positions)
    return overlap_add(blocks, image_shape, strides, dilations, pads)


define(name="col2im", inputs=(1, 1), shape=_col2im_rule, meaning=col2im,
       attributes={"image_shape": REQUIRED, "block_shape": REQUIRED, "strides": REQUIRED,
                   "dilations": REQUIRED, "pads": REQUIRED},
       flops=lambda types, result, attributes: types[0].size)


def _extents(x: Sequence[int], w: Sequence[int], attributes: Mapping[str, Any]) -> list[int]:
    pads, rank = attributes["pads"], len(x) - 2
    return [stride * (n - 1) + extra + (k - 1) * dilation + 1 - before - after
            for n, k, stride, dilation, extra, before, after
            in zip(x[2:], w[2:], attributes["strides"], attributes["dilations"],
                   attributes["output_padding"], pads[:rank], pads[rank:], strict=True)]


def _conv_transpose_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, w = types[:2]
    rank, group = len(x.shape) - 2, attributes["group"]
    if (rank < 1 or len(w.shape) != rank + 2 or group < 1 or x.shape[1] != w.shape[0]
            or x.shape[1] % group or 0 in (*x.shape, *w.shape) or x.dtype != w.dtype):
        raise InputError(f"conv_transpose of {x} with {w} in {group} groups: [n, c, …] and "
                         f"[c, o / group, …] are expected")
    _check("conv_transpose", x, rank, attributes)
    extra = attributes["output_padding"]
    if len(extra) != rank or min(extra) < 0:
        raise InputError(f"conv_transpose of {x}: output_padding of {rank} numbers is expected, "
                         f"got {list(extra)}")
    channels = w.shape[1] * group
    if len(types) == 3 and types[2] != Type((channels,), x.dtype):
        raise InputError(f"conv_transpose bias is {types[2]}, expected [{channels}]")
    spatial = _extents(x.shape, w.shape, attributes)
    if min(spatial) < 1:
        raise InputError(f"conv_transpose of {x} with {w}: the pads are larger than the image")
    return Type((x.shape[0], channels, *spatial), x.dtype)


def conv_transpose(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None,
                   **attributes: Any) -> np.ndarray:
    """Transposed convolution, the gradient of `conv`: each element of x [n, c, …] adds w [c, o /
    group, …] times itself to the result."""
    group, (n, c, *spatial) = attributes["group"], x.shape
    grouped = x.reshape(n, group, c // group, -1)
    kernel = w.reshape(group, c // group, -1)
    blocks = (kernel.swapaxes(1, 2) @ grouped).reshape(n, -1, *w.shape[2:], *spatial)
    y = overlap_add(blocks, _extents(x.shape, w.shape, attributes), attributes["strides"],
                    attributes["dilations"], attributes["pads"])
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(spatial))


define(name="conv_transpose", inputs=(2, 3), shape=_conv_transpose_rule, meaning=conv_transpose,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1),
                   "output_padding": (0, 0), "group": 1},
       flops=lambda types, result, attributes:
           2 * types[0].size * math.prod(types[1].shape[1:]))
