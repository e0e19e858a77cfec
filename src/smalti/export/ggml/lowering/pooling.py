"""The maximum or mean of windows that move over an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.export.ggml.builder import GgmlBuilder, Lowering, NotExportable
from smalti.export.ggml.code import Tensor, call
from smalti.export.ggml.lowering.movement import bordered
from smalti.graph import Node


def _pool(b: GgmlBuilder, node: Node) -> Tensor:
    """Where ggml's own border, the same on both sides, is not enough, one is added before."""
    (x,), attributes = node.inputs, node.attributes
    window, steps = attributes["kernel_shape"], attributes["strides"]
    if len(window) != 2 or set(attributes["dilations"]) != {1}:
        raise NotExportable(f"windows of {len(window)} axes with dilations "
                            f"{list(attributes['dilations'])}; 1 to 3 without are expected")
    size, result, pads = x.shape[2:], node.output.shape, tuple(attributes["pads"])
    largest = node.operation.name == "max_pool"
    source, by_itself = b.shaped(x, *x.shape), pads[:2]
    if pads[:2] != pads[2:] or attributes["ceil_mode"]:
        backs = (max(0, (m - 1) * s + k - n - f) for m, s, k, n, f in zip(
            result[2:], steps, window, size, pads[:2], strict=True))
        source = b.let(bordered(b, x, (0, 0, *pads[:2]), (0, 0, *backs),
                                -np.inf if largest else 0.0), hint="bordered")
        by_itself = (0, 0)
    code = call("ggml_pool_2d", "ctx", source, f"GGML_OP_POOL_{'MAX' if largest else 'AVG'}",
                *reversed(window), *reversed(steps), *reversed(by_itself))
    pooled = Tensor(code, result)
    if largest:
        return pooled
    share = math.prod(window) / np.multiply.outer(*(
        _counts(n, attributes, axis, result[2 + axis]) for axis, n in enumerate(size)))
    if (share == 1).all():
        return pooled
    pooled = b.let(pooled, hint="pooled")
    return Tensor(call("ggml_mul", "ctx", pooled, b.constant(share, "share")), result)


def _counts(extent: int, attributes: Mapping[str, Any], axis: int, windows: int) -> np.ndarray:
    """How many elements count in each window along `axis`."""
    front, back = attributes["pads"][axis], attributes["pads"][axis + 2]
    start = np.arange(windows) * attributes["strides"][axis] - front
    end = start + attributes["kernel_shape"][axis]
    low, high = (-front, extent + back) if attributes["count_include_pad"] else (0, extent)
    return np.maximum(np.minimum(end, high) - np.maximum(start, low), 1)


POOLING: dict[str, Lowering] = {"max_pool": _pool, "average_pool": _pool}
