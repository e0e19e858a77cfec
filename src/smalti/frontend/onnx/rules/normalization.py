"""Normalisations."""

from __future__ import annotations

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import Call, Unsupported, rule
from smalti.graph import Value


def column(x: Value, value: Value) -> Value:
    """A value a channel, shaped to lie along the channels of `x` [n, c, ...]."""
    return value.reshape(value.shape[0], *(1,) * (len(x.shape) - 2))


@rule("BatchNormalization")
def batch_normalization(call: Call) -> Value:
    x, scale, bias, mean, variance = (call[i] for i in range(5))
    if call.integer("training_mode", 0):
        raise Unsupported("it takes statistics of the batch, as in training")
    if len(x.shape) < 2 or any(v.shape != x.shape[1:2] for v in (scale, bias, mean, variance)):
        raise InputError(f"{x.type} with a scale of {scale.type}")
    factor = scale / call.apply("sqrt", variance + call.number("epsilon"))
    offset = bias - mean * factor
    return x * column(x, factor) + column(x, offset)


@rule("InstanceNormalization")
def instance_normalization(call: Call) -> Value:
    x, scale, bias = (call[i] for i in range(3))
    return call.apply("group_normalization", x, scale, bias, num_groups=x.shape[1],
                      epsilon=call.number("epsilon"))


@rule("GroupNormalization", since=21)
def group_normalization(call: Call) -> Value:
    x, scale, bias = (call[i] for i in range(3))
    return call.apply("group_normalization", x, scale, bias,
                      num_groups=call.integer("num_groups"), epsilon=call.number("epsilon"))


@rule("GroupNormalization", since=18)
def grouped_scale(call: Call) -> Value:
    """Before version 21 scale and bias are of groups, not of channels."""
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
def layer_normalization(call: Call) -> list[Value | None]:
    x, scale, bias = call[0], call[1], call.optional(2)
    axis, epsilon = call.axis(x, call.integer("axis")), call.number("epsilon")
    shape = x.shape[axis:]
    scale = scale if scale.shape == shape else call.apply("expand", scale, shape=shape)
    if bias is None:
        bias = call.constant(np.zeros(shape, np.float32), x.dtype)
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
def rms_normalization(call: Call) -> Value:
    x, scale = call[0], call[1]
    axis = call.axis(x, call.integer("axis"))
    if scale.shape != x.shape[axis:]:
        scale = call.apply("expand", scale, shape=x.shape[axis:])
    return call.apply("rms_normalization", x, scale, axis=axis, epsilon=call.number("epsilon"))
