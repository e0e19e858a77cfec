"""Operations about the order along an axis: running sums, indices of the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define
from smalti.graph.operations.indexing import axis_of


def _running(name: str, function: Callable[..., np.ndarray], neutral: int) -> None:
    def rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
        axis_of(name, types[0], attributes["axis"])
        return types[0]

    def meaning(x: np.ndarray, *, axis: int, exclusive: int, reverse: int) -> np.ndarray:
        if reverse:
            x = np.flip(x, axis)
        if exclusive:
            x = np.concatenate([np.full_like(x.take([0], axis), neutral),
                                x.take(range(x.shape[axis] - 1), axis)], axis)
        y = function(x, axis=axis, dtype=x.dtype)
        return np.flip(y, axis) if reverse else y

    meaning.__doc__ = f"The {name} of what stands before along `axis`, itself unless `exclusive`."
    define(name=name, inputs=(1, 1), shape=rule, meaning=meaning,
           attributes={"axis": REQUIRED, "exclusive": 0, "reverse": 0},
           flops=lambda types, result, attributes: result.size)


_running("cum_sum", np.cumsum, 0)
_running("cum_prod", np.cumprod, 1)


def _extreme(name: str, function: Callable[..., np.ndarray]) -> None:
    def rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
        (x,) = types
        axis = axis_of(name, x, attributes["axis"])
        if not x.shape[axis]:
            raise InputError(f"{name} of {x} along the empty axis {axis}")
        kept = (1,) if attributes["keepdims"] else ()
        return Type((*x.shape[:axis], *kept, *x.shape[axis + 1:]), "i64")

    def meaning(x: np.ndarray, *, axis: int, keepdims: int, select_last_index: int) -> np.ndarray:
        if select_last_index:
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            found = function(x, axis=axis)
        return np.expand_dims(found, axis) if keepdims else found

    meaning.__doc__ = f"The place of the {name[4:]}imum along `axis`, the first or the last one."
    define(name=name, inputs=(1, 1), shape=rule, meaning=meaning,
           attributes={"axis": 0, "keepdims": 1, "select_last_index": 0},
           flops=lambda types, result, attributes: types[0].size)


_extreme("arg_max", np.argmax)
_extreme("arg_min", np.argmin)


def _top_k_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), k = types, attributes["k"]
    axis = axis_of("top_k_indices", x, attributes["axis"])
    if not 0 <= k <= x.shape[axis]:
        raise InputError(f"top_k_indices of {x}: {k} of {x.shape[axis]} along axis {axis}")
    return Type((*x.shape[:axis], k, *x.shape[axis + 1:]), "i64")


def top_k_indices(x: np.ndarray, *, axis: int, k: int, largest: int) -> np.ndarray:
    """Indices of the k largest (or smallest) elements along `axis`, sorted; of equal elements the
    first comes first. NaN counts as larger than all."""
    if largest:  # a stable sort backwards: of equal elements the first comes first
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return order.take(range(k), axis)


define(name="top_k_indices", inputs=(1, 1), shape=_top_k_rule, meaning=top_k_indices,
       attributes={"axis": -1, "k": REQUIRED, "largest": 1},
       flops=lambda types, result, attributes: types[0].size)
