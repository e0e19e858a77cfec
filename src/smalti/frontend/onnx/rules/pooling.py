"""Pooling: the maximum, mean or norm of windows."""

from __future__ import annotations

import math

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.contraction import window, window_pads
from smalti.graph import Value
from smalti.graph.operations.pooling import pool_extent


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: NodeCall) -> Value:
    x = call[0]
    if len(x.shape) < 3:
        raise InputError(f"{x.type} has no positions")
    kind = "mean" if call.operator == "GlobalAveragePool" else "max"
    return call.apply(f"reduce_{kind}", x, axes=tuple(range(2, len(x.shape))))


@rule("MaxPool", "AveragePool")
def pool(call: NodeCall) -> Value | list[Value]:
    x, kernel = call[0], call.integers("kernel_shape")
    if kernel is None or len(kernel) != len(x.shape) - 2 or not kernel:
        raise InputError(f"a window of {kernel} over {x.type}")
    strides, dilations = window(call, kernel)
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    fields = {"kernel_shape": tuple(kernel), "strides": strides, "pads": pads,
              "dilations": dilations, "ceil_mode": call.integer("ceil_mode", 0)}
    if call.operator == "MaxPool":
        best = call.apply("max_pool", x, **fields)
        if not call.wants(1):
            return best
        order = call.integer("storage_order", 0)
        return [best, call.apply("max_pool_indices", x, **fields, storage_order=order)]
    return call.apply("average_pool", x, **fields,
                      count_include_pad=call.integer("count_include_pad"))


def power(call: NodeCall, x: Value, exponent: float) -> Value:
    """x ** exponent, for x that is not negative."""
    known = {1.0: lambda: x, 2.0: lambda: x * x, 0.5: lambda: call.apply("sqrt", x)}
    if exponent in known:
        return known[exponent]()
    return call.apply("pow", x, call.constant(exponent, x.dtype))


@rule("LpPool")
def norm_pool(call: NodeCall) -> Value:
    """The p-norm of each window, with zeros beyond borders: (mean of |x|^p times the window's
    size)^(1/p)."""
    x, kernel, p = call[0], call.integers("kernel_shape"), call.integer("p", 2)
    if kernel is None or len(kernel) != len(x.shape) - 2 or not kernel or p < 1:
        raise InputError(f"the {p}-norm of a window of {kernel} over {x.type}")
    strides, dilations = window(call, kernel)
    pads, rank = list(window_pads(call, x.shape[2:], kernel, strides, dilations)), len(kernel)
    for i, (n, k, s, d) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        count = pool_extent(n, k, s, d, pads[i], pads[rank + i], call.integer("ceil_mode", 0))
        pads[rank + i] = max(pads[rank + i], (count - 1) * s + (k - 1) * d + 1 - pads[i] - n)
    mean = call.apply("average_pool", power(call, call.apply("abs", x), p), strides=strides,
                      kernel_shape=tuple(kernel), pads=tuple(pads), dilations=dilations,
                      count_include_pad=1)
    return power(call, mean * float(math.prod(kernel)), 1 / p)


@rule("GlobalLpPool")
def global_norm(call: NodeCall) -> Value:
    x, p = call[0], call.integer("p", 2)
    if len(x.shape) < 3 or p < 1:
        raise InputError(f"the {p}-norm of the positions of {x.type}")
    total = call.apply("reduce_sum", power(call, call.apply("abs", x), p),
                       axes=tuple(range(2, len(x.shape))))
    return power(call, total, 1 / p)
