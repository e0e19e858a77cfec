"""The maximum or mean of windows that move over an image, along any number of axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define


def pool_extent(extent: int, kernel: int, stride: int, dilation: int, front: int, back: int,
                ceil_mode: int) -> int:
    """The number of windows along an axis. With `ceil_mode` the last one may reach beyond the
    padded end, but not start beyond it."""
    rest = extent + front + back - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return rest // stride + 1
    count = -(-rest // stride) + 1
    return count - 1 if (count - 1) * stride >= extent + front else count


def _extents(shape: Sequence[int], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    pads, kernel = attributes["pads"], attributes["kernel_shape"]
    rank = len(kernel)
    return tuple(
        pool_extent(n, k, s, d, front, back, attributes["ceil_mode"])
        for n, k, s, d, front, back in zip(
            shape, kernel, attributes["strides"], attributes["dilations"], pads[:rank],
            pads[rank:], strict=True))


def _pool_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), kernel = types, attributes["kernel_shape"]
    rank = len(kernel)
    fits = len(x.shape) == rank + 2 and len(attributes["pads"]) == 2 * rank \
        and len(attributes["strides"]) == len(attributes["dilations"]) == rank \
        and min((*kernel, *attributes["strides"], *attributes["dilations"])) > 0
    extents = _extents(x.shape[2:], attributes) if fits else (0,)
    if min(extents) < 1:
        raise InputError(f"windows of {list(kernel)} do not fit {x} with pads "
                         f"{list(attributes['pads'])}")
    return Type((*x.shape[:2], *extents), x.dtype)


def windows(x: np.ndarray, outside: float, attributes: Mapping[str, Any],
            extents: Sequence[int] = ()) -> Iterator[np.ndarray]:
    """For each position within the window: the elements of x at that position of all windows, [n,
    c, ...].

    Beyond the borders of x they are `outside`. `extents` is the number of windows along each axis,
    by default what the attributes give.
    """
    pads, kernel = attributes["pads"], attributes["kernel_shape"]
    strides, dilations = attributes["strides"], attributes["dilations"]
    rank, extents = len(kernel), extents or _extents(x.shape[2:], attributes)
    reach = [(n - 1) * s + (k - 1) * d + 1
             for n, s, k, d in zip(extents, strides, kernel, dilations, strict=True)]
    borders = [(front, max(0, r - front - n))
               for front, r, n in zip(pads[:rank], reach, x.shape[2:], strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *borders], constant_values=outside)
    for place in np.ndindex(*kernel):
        starts = [p * d for p, d in zip(place, dilations, strict=True)]
        taken: tuple = (..., *(slice(a, a + (n - 1) * s + 1, s)
                               for a, n, s in zip(starts, extents, strides, strict=True)))
        yield x[taken]


def max_pool(x: np.ndarray, **attributes: Any) -> np.ndarray:
    """The largest element of each window of x [n, c, ...]; padding is never the largest."""
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    views = windows(x, lowest, attributes)
    result = next(views).copy()
    for view in views:
        np.maximum(result, view, out=result)
    return result


def max_pool_indices(x: np.ndarray, *, storage_order: int, **attributes: Any) -> np.ndarray:
    """The index of each maximum of `max_pool` in x [n, c, ...] flattened; of equal elements the
    first.

    With `storage_order` 1 the image is flattened in column-major order: its first axis innermost.
    """
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    counted = np.arange(math.prod(x.shape[2:]))
    inside = counted.reshape(x.shape[:1:-1]).T if storage_order else counted.reshape(x.shape[2:])
    places = images * inside.size + inside
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    pairs = zip(windows(x, lowest, attributes), windows(places, -1, attributes), strict=True)
    best, found = (array.copy() for array in next(pairs))
    for view, place in pairs:
        better = (place >= 0) & ((view > best) | (found < 0))
        best, found = np.where(better, view, best), np.where(better, place, found)
    return found


def average_pool(x: np.ndarray, *, count_include_pad: int, **attributes: Any) -> np.ndarray:
    """The mean of each window of x [n, c, ...].

    Elements beyond borders are 0. They are counted only with `count_include_pad`, and only within
    the pads.
    """
    rank, pads = len(attributes["kernel_shape"]), attributes["pads"]
    count, extents = np.ones((1, 1, *x.shape[2:]), np.float32), _extents(x.shape[2:], attributes)
    if count_include_pad:
        around = list(zip(pads[:rank], pads[rank:], strict=True))
        count = np.pad(count, [(0, 0), (0, 0), *around], constant_values=1)
        x = np.pad(x, [(0, 0), (0, 0), *around])
        attributes = {**attributes, "pads": (0,) * (2 * rank)}
    total = sum(view.astype(np.float32) for view in windows(x, 0, attributes, extents))
    return total / np.maximum(sum(windows(count, 0, attributes, extents)), 1)


_WINDOW = {"kernel_shape": REQUIRED, "strides": REQUIRED, "pads": REQUIRED, "dilations": REQUIRED,
           "ceil_mode": 0}


def _flops(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    return result.size * math.prod(attributes["kernel_shape"])


define(name="max_pool", inputs=(1, 1), shape=_pool_rule, meaning=max_pool, flops=_flops,
       attributes=_WINDOW)
define(name="max_pool_indices", inputs=(1, 1), meaning=max_pool_indices, flops=_flops,
       shape=lambda types, attributes: Type(_pool_rule(types, attributes).shape, "i64"),
       attributes={**_WINDOW, "storage_order": 0})
define(name="average_pool", inputs=(1, 1), shape=_pool_rule, meaning=average_pool, flops=_flops,
       attributes={**_WINDOW, "count_include_pad": 0})
