"""Reductions, and the composites made of them: softmax, layer, RMS and group normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define


def _reduce_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), axes = types, attributes["axes"]
    rank = len(x.shape)
    if any(not -rank <= axis < rank for axis in axes):
        raise InputError(f"axes {list(axes)} do not exist in {x}")
    reduced = {axis % rank for axis in axes}
    if attributes["keepdims"]:
        return Type(tuple(1 if i in reduced else n for i, n in enumerate(x.shape)), x.dtype)
    return Type(tuple(n for i, n in enumerate(x.shape) if i not in reduced), x.dtype)


def _reduction(name: str, function: Callable[..., np.ndarray]) -> None:
    define(name=name, inputs=(1, 1), shape=_reduce_rule,
           meaning=lambda x, axes, keepdims: function(x, axis=tuple(axes), keepdims=bool(keepdims)),
           attributes={"axes": REQUIRED, "keepdims": 1},
           flops=lambda types, result, attributes: types[0].size)


_reduction("reduce_sum", np.sum)
_reduction("reduce_mean", np.mean)
_reduction("reduce_max", np.max)
_reduction("reduce_min", np.min)
_reduction("reduce_prod", np.prod)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """exp(x) / sum(exp(x)) along `axis`, computed without overflow."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _softmax_parts(g, x, axis: int):
    e = g.apply("exp", x - g.apply("reduce_max", x, axes=(axis,)))
    return e / g.apply("reduce_sum", e, axes=(axis,))


def _softmax_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), axis = types, attributes["axis"]
    if not -len(x.shape) <= axis < len(x.shape):
        raise InputError(f"softmax axis {axis} does not exist in {x}")
    return x


define(name="softmax", inputs=(1, 1), attributes={"axis": -1}, meaning=softmax,
       shape=_softmax_rule,
       flops=lambda types, result, attributes: 5 * result.size, decompose=_softmax_parts)


def _layer_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, axis = types[0], attributes["axis"]
    if not -len(x.shape) <= axis < len(x.shape):
        raise InputError(f"layer_normalization axis {axis} does not exist in {x}")
    shape = x.shape[axis:]
    if any(t.shape != shape for t in types[1:]):
        raise InputError(f"layer_normalization of {x} from axis {axis}: scale and bias of "
                         f"{list(shape)} are expected, got {[str(t) for t in types[1:]]}")
    return x


def layer_normalization(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, axis: int,
                        epsilon: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = np.square(x - mean).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(epsilon)) * scale + bias


def _layer_parts(g, x, scale, bias, axis: int, epsilon: float):
    axes = tuple(range(axis % len(x.shape), len(x.shape)))
    centred = x - g.apply("reduce_mean", x, axes=axes)
    variance = g.apply("reduce_mean", centred * centred, axes=axes)
    return centred / g.apply("sqrt", variance + epsilon) * scale + bias


define(name="layer_normalization", inputs=(3, 3), attributes={"axis": -1, "epsilon": 1e-5},
       shape=_layer_rule, meaning=layer_normalization, decompose=_layer_parts,
       flops=lambda types, result, attributes: 8 * result.size)


def _rms_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x, scale), axis = types, attributes["axis"]
    if not -len(x.shape) <= axis < len(x.shape):
        raise InputError(f"rms_normalization axis {axis} does not exist in {x}")
    if scale.shape != x.shape[axis:]:
        raise InputError(f"rms_normalization of {x} from axis {axis}: a scale of "
                         f"{list(x.shape[axis:])} is expected, got {scale}")
    return x


def rms_normalization(x: np.ndarray, scale: np.ndarray, *, axis: int,
                      epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on.

    Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    power = np.square(x).mean(axis=axes, keepdims=True)
    return x / np.sqrt(power + np.float32(epsilon)) * scale


def _rms_parts(g, x, scale, axis: int, epsilon: float):
    axes = tuple(range(axis % len(x.shape), len(x.shape)))
    power = g.apply("reduce_mean", x * x, axes=axes)
    return x / g.apply("sqrt", power + epsilon) * scale


define(name="rms_normalization", inputs=(2, 2), attributes={"axis": -1, "epsilon": 1e-5},
       shape=_rms_rule, meaning=rms_normalization, decompose=_rms_parts,
       flops=lambda types, result, attributes: 4 * result.size)


def _group_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, scale, bias = types
    groups = attributes["num_groups"]
    channels = x.shape[1] if len(x.shape) > 2 else 0
    if not channels or groups < 1 or channels % groups:
        raise InputError(f"group_normalization of {x} in {groups} groups: [n, c, ...] with "
                         f"channels that divide by the number of groups is expected")
    if scale.shape != (channels,) or bias.shape != (channels,):
        raise InputError(f"group_normalization of {x}: scale and bias of [{channels}] are "
                         f"expected, got {scale} and {bias}")
    return x


def group_normalization(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, num_groups: int,
                        epsilon: float) -> np.ndarray:
    """x [n, c, ...] with mean 0 and variance 1 over each group of adjacent channels and all
    positions, times scale [c], plus bias [c] (Wu & He 2018, arXiv:1803.08494)."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    mean = grouped.mean(axis=2, keepdims=True)
    variance = np.square(grouped - mean).mean(axis=2, keepdims=True)
    normal = ((grouped - mean) / np.sqrt(variance + np.float32(epsilon))).reshape(x.shape)
    column = (-1,) + (1,) * (x.ndim - 2)
    return normal * scale.reshape(column) + bias.reshape(column)


def _group_parts(g, x, scale, bias, num_groups: int, epsilon: float):
    column = (x.shape[1],) + (1,) * (len(x.shape) - 2)
    grouped = x.reshape(x.shape[0], num_groups, -1)
    centred = grouped - g.apply("reduce_mean", grouped, axes=(2,))
    variance = g.apply("reduce_mean", centred * centred, axes=(2,))
    normal = (centred / g.apply("sqrt", variance + epsilon)).reshape(*x.shape)
    return normal * scale.reshape(*column) + bias.reshape(*column)


define(name="group_normalization", inputs=(3, 3), shape=_group_rule, meaning=group_normalization,
       attributes={"num_groups": REQUIRED, "epsilon": 1e-5}, decompose=_group_parts,
       flops=lambda types, result, attributes: 8 * result.size)
