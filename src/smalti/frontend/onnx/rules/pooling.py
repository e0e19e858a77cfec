"""Windows that are reduced."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.frontend.onnx.registry import Call, Unsupported, rule
from smalti.frontend.onnx.rules.contraction import window, window_pads
from smalti.graph import Value


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Value:
    x = call[0]
    if len(x.shape) < 3:
        raise InputError(f"{x.type} has no positions")
    kind = "mean" if call.operator == "GlobalAveragePool" else "max"
    return call.apply(f"reduce_{kind}", x, axes=tuple(range(2, len(x.shape))))


@rule("MaxPool", "AveragePool")
def pool(call: Call) -> Value:
    x, kernel = call[0], call.integers("kernel_shape")
    if kernel is None or len(kernel) != len(x.shape) - 2 or not kernel:
        raise InputError(f"a window of {kernel} over {x.type}")
    if call.wants(1):
        raise Unsupported("places of the maxima are asked for")
    strides, dilations = window(call, kernel)
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    fields = {"kernel_shape": tuple(kernel), "strides": strides, "pads": pads,
              "dilations": dilations, "ceil_mode": call.integer("ceil_mode", 0)}
    if call.operator == "MaxPool":
        return call.apply("max_pool", x, **fields)
    return call.apply("average_pool", x, **fields,
                      count_include_pad=call.integer("count_include_pad"))
