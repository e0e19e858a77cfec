"""Reductions along axes, and softmax."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.graph import Value
from smalti.graph.operation import DTYPES, FLOATS

BEHIND = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}
KIND = {"ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}
NEUTRAL = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf, "mean": math.nan}


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
      "ReduceSumSquare", "ReduceLogSum")
def reduction(call: NodeCall) -> Value:
    x, kind = call[0], KIND.get(call.operator, "sum")
    axes = axes_of(call, x)
    if axes is None:
        return x
    if call.operator == "ReduceL1":
        x = call.apply("abs", x)
    if call.operator in ("ReduceL2", "ReduceSumSquare"):
        x = x * x
    y = reduced(call, x, kind, axes, bool(call.integer("keepdims")))
    return call.apply(BEHIND[call.operator], y) if call.operator in BEHIND else y


@rule("ReduceLogSumExp")
def log_sum_exp(call: NodeCall) -> Value:
    x, axes, keep = call[0], axes_of(call, call[0]), bool(call.integer("keepdims"))
    if axes is None:
        return x
    if x.type.size == 0:
        return reduced(call, x, "max", axes, keep)
    most = call.apply("reduce_max", x, axes=axes)
    small = call.apply("reduce_sum", call.apply("exp", x - most), axes=axes)
    y = call.apply("log", small) + most
    return y if keep else y.reshape(*(n for i, n in enumerate(x.shape) if i not in axes))


def axes_of(call: NodeCall, x: Value) -> tuple[int, ...] | None:
    """The axes to reduce, counted from the front; None if nothing is to be reduced."""
    axes = call.integers_of("axes", 1, ())
    if not axes and call.integer("noop_with_empty_axes", 0):
        return None
    return tuple(sorted({call.axis(x, axis) for axis in axes or range(len(x.shape))}))


def reduced(call: NodeCall, x: Value, kind: str, axes: tuple[int, ...], keep: bool) -> Value:
    """A reduction of `x`; over no elements its result is the neutral element, 0 for a sum."""
    if not axes:
        return x
    if x.type.size:
        if x.dtype == "bool":
            if kind not in ("max", "min"):
                raise InputError(f"reduce_{kind} of {x.type}")
            bits = call.apply("cast", x, to="u8")
            y = call.apply(f"reduce_{kind}", bits, axes=axes, keepdims=int(keep))
            return call.apply("cast", y, to="bool")
        return call.apply(f"reduce_{kind}", x, axes=axes, keepdims=int(keep))
    shape = [n if i not in axes else 1 for i, n in enumerate(x.shape)]
    if not keep:
        shape = [n for i, n in enumerate(x.shape) if i not in axes]
    number: float = NEUTRAL[kind]
    if x.dtype not in FLOATS and not math.isfinite(number):
        if x.dtype == "bool":
            number = kind == "min"
        else:
            info = np.iinfo(DTYPES[x.dtype])
            number = info.min if kind == "max" else info.max
    return call.filled(shape, number, x.dtype)


@rule("Softmax", since=13)
def softmax(call: NodeCall) -> Value:
    return call.apply("softmax", call[0], axis=call.axis(call[0], call.integer("axis")))


@rule("LogSoftmax", since=13)
def log_softmax(call: NodeCall) -> Value:
    return log_share(call, call[0], call.axis(call[0], call.integer("axis")))


@rule("Softmax", "LogSoftmax")
def flat_softmax(call: NodeCall) -> Value:
    """Before version 13, softmax is over all axes from `axis` on together."""
    x = call[0]
    axis = call.axis(x, call.integer("axis", 1))
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    logs = call.operator == "LogSoftmax"
    y = log_share(call, flat, 1) if logs else call.apply("softmax", flat, axis=1)
    return y.reshape(*x.shape)


def log_share(call: NodeCall, x: Value, axis: int) -> Value:
    """log(softmax(x)), computed so that it stays finite where softmax underflows to 0."""
    centred = x - call.apply("reduce_max", x, axes=(axis,))
    total = call.apply("reduce_sum", call.apply("exp", centred), axes=(axis,))
    return centred - call.apply("log", total)
