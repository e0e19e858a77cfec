"""Normalisations."""

from __future__ import annotations

import math

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.graph import Value


def column(x: Value, value: Value) -> Value:
    """`value` [c] reshaped so that it broadcasts along the channels of `x` [n, c, ...]."""
    return value.reshape(value.shape[0], *(1,) * (len(x.shape) - 2))


@rule("BatchNormalization")
def batch_normalization(call: NodeCall) -> list[Value]:
    """By the given statistics; with `training_mode` by those of the batch, which are also mixed
    into the given ones to give the second and third result."""
    x, scale, bias, mean, variance = (call[i] for i in range(5))
    if len(x.shape) < 2 or any(v.shape != x.shape[1:2] for v in (scale, bias, mean, variance)):
        raise InputError(f"{x.type} with a scale of {scale.type}")
    results: list[Value] = []
    if call.integer("training_mode", 0):
        axes, old = tuple(i for i in range(len(x.shape)) if i != 1), call.number("momentum")
        here = call.apply("reduce_mean", x, axes=axes)
        centred = x - here
        spread = call.apply("reduce_mean", centred * centred, axes=axes)
        here, spread = here.reshape(*mean.shape), spread.reshape(*mean.shape)
        results = [mean * old + here * (1 - old), variance * old + spread * (1 - old)]
        mean, variance = here, spread
    factor = scale / call.apply("sqrt", variance + call.number("epsilon"))
    offset = bias - mean * factor
    return [x * column(x, factor) + column(x, offset), *results]


@rule("InstanceNormalization")
def instance_normalization(call: NodeCall) -> Value:
    x, scale, bias = (call[i] for i in range(3))
    return call.apply("group_normalization", x, scale, bias, num_groups=x.shape[1],
                      epsilon=call.number("epsilon"))


@rule("GroupNormalization", since=21)
def group_normalization(call: NodeCall) -> Value:
    x, scale, bias = (call[i] for i in range(3))
    return call.apply("group_normalization", x, scale, bias,
                      num_groups=call.integer("num_groups"), epsilon=call.number("epsilon"))


@rule("GroupNormalization", since=18)
def grouped_scale(call: NodeCall) -> Value:
    """Before version 21 scale and bias are given for each group, not for each channel."""
    x, groups = call[0], call.integer("num_groups")
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise InputError(f"{x.type} in {groups} groups")
    each = x.shape[1] // groups
    scale, bias = (
        call.apply("expand", call[i].reshape(groups, 1), shape=(groups, each)).reshape(x.shape[1])
        for i in (1, 2))
    return call.apply("group_normalization", x, scale, bias, num_groups=groups,
                      epsilon=call.number("epsilon"))


@rule("LayerNormalization")
def layer_normalization(call: NodeCall) -> list[Value | None]:
    x, scale, bias = call[0], call[1], call.optional(2)
    axis, epsilon = call.axis(x, call.integer("axis")), call.number("epsilon")
    shape = x.shape[axis:]
    scale = scale if scale.shape == shape else call.apply("expand", scale, shape=shape)
    if bias is None:
        bias = call.filled(shape, 0, x.dtype)
    elif bias.shape != shape:
        bias = call.apply("expand", bias, shape=shape)
    results: list[Value | None] = [
        call.apply("layer_normalization", x, scale, bias, axis=axis, epsilon=epsilon)]
    if call.wants(1) or call.wants(2):
        axes = tuple(range(axis, len(x.shape)))
        mean = call.apply("reduce_mean", x, axes=axes)
        centred = x - mean
        variance = call.apply("reduce_mean", centred * centred, axes=axes)
        results += [mean, call.apply("reciprocal", call.apply("sqrt", variance + epsilon))]
    return results


@rule("RMSNormalization")
def rms_normalization(call: NodeCall) -> Value:
    x, scale = call[0], call[1]
    axis = call.axis(x, call.integer("axis"))
    if scale.shape != x.shape[axis:]:
        scale = call.apply("expand", scale, shape=x.shape[axis:])
    return call.apply("rms_normalization", x, scale, axis=axis, epsilon=call.number("epsilon"))


@rule("LpNormalization")
def unit_norm(call: NodeCall) -> Value:
    """Each vector along the axis divided by its 1- or 2-norm; a vector of zeros stays as it is."""
    x, p = call[0], call.integer("p")
    axis = call.axis(x, call.integer("axis"))
    if p not in (1, 2):
        raise InputError(f"the {p}-norm; 1 or 2 is expected")
    total = call.apply("reduce_sum", x * x if p == 2 else call.apply("abs", x), axes=(axis,))
    norm = call.apply("sqrt", total) if p == 2 else total
    zero = call.constant(0, x.dtype)
    return call.apply("where", call.apply("equal", norm, zero), zero, x / norm)


@rule("LRN")
def local_response(call: NodeCall) -> Value:
    """x / (bias + alpha * mean of squares over `size` neighbouring channels) ** beta."""
    x, size = call[0], call.integer("size")
    if len(x.shape) < 3 or size is None or size < 1:
        raise InputError(f"{size} neighbouring channels of {x.type}")
    n, channels, *spatial = x.shape
    column = (x * x).reshape(n, 1, channels, math.prod(spatial))
    mean = call.apply("average_pool", column, kernel_shape=(size, 1), strides=(1, 1),
                      dilations=(1, 1), pads=((size - 1) // 2, 0, size // 2, 0),
                      count_include_pad=1).reshape(*x.shape)
    base = mean * call.number("alpha") + call.number("bias")
    return x / call.apply("pow", base, call.constant(call.number("beta"), x.dtype))
