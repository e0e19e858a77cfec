"""Operations that sample an image between its elements: resampling, grids, deformable convolution,
regions of interest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import FLOATS, REQUIRED, Type, define
from smalti.graph.operations.contraction import conv_extent
from smalti.graph.operations.indexing import INDICES, axis_of, wrapped

Tap = tuple[np.ndarray, np.ndarray]
POSITION_MAX = 1 << 30
"""Coordinates are clipped to this: far outside of any picture, and within 32 bits."""
REGION_SAMPLES_MAX = 1 << 24
"""The most samples along one side of a region: a file can ask for any number."""


# ---------------------------------------------------------------- along one axis


def _resample_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, indices, weights = types
    axis = axis_of("resample", x, attributes["axis"])
    if (len(indices.shape) != 2 or indices.dtype not in INDICES or x.dtype not in FLOATS
            or weights != Type(indices.shape, x.dtype)):
        raise InputError(f"resample of {x} by {indices} and {weights}: places and weights "
                         f"[extent, taps] are expected")
    return Type((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1:]), x.dtype)


def resample(x: np.ndarray, indices: np.ndarray, weights: np.ndarray, *, axis: int) -> np.ndarray:
    """y[i] = sum over t of weights[i, t] * x[indices[i, t]] along `axis`."""
    axis %= x.ndim
    places = wrapped(indices, x.shape[axis])
    column = (-1,) + (1,) * (x.ndim - 1 - axis)
    return sum(x.take(places[:, t], axis) * weights[:, t].reshape(column)
               for t in range(places.shape[1]))


define(name="resample", inputs=(3, 3), attributes={"axis": REQUIRED}, shape=_resample_rule,
       meaning=resample,
       flops=lambda types, result, attributes: 2 * result.size * types[1].shape[1])


# ---------------------------------------------------------------- in several axes


def _products(x: np.ndarray, taps: Sequence[Sequence[Tap]]) -> Iterator[np.ndarray]:
    """The terms of an interpolation along several axes: for each choice of one tap per axis, x
    there times the product of the weights, [n, c, …out].

    x is [n, c, …spatial]; a tap is a pair of indices [n, …out] and weights of the same shape.
    """
    n, c, *spatial = x.shape
    flat = x.reshape(n, c, -1)
    for choice in itertools.product(*taps):
        place = np.zeros((), np.int64)
        weight = np.ones((), x.dtype)
        for extent, (index, factor) in zip(spatial, choice, strict=True):
            place, weight = place * extent + index, weight * factor
        found = np.take_along_axis(flat, place.reshape(n, 1, -1), 2)
        yield found.reshape(n, c, *place.shape[1:]) * weight[:, None].astype(x.dtype)


def _reflected(x: np.ndarray, low: float, high: float) -> np.ndarray:
    span = high - low
    if span <= 0:
        return np.full_like(x, low)
    distance = np.where(x < low, low - x, x - high)
    turns = np.trunc(distance / span)
    rest, even = distance - turns * span, turns % 2 == 0
    return np.where(x < low, np.where(even, low + rest, high - rest),
                    np.where(x > high, np.where(even, high - rest, low + rest), x))


def cubic_weights(fraction: np.ndarray, a: float = -0.75) -> list[np.ndarray]:
    """Weights of the four neighbours, at `fraction` after the second (Keys 1981)."""
    def near(t: np.ndarray) -> np.ndarray:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: np.ndarray) -> np.ndarray:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(1 + fraction), near(fraction), near(1 - fraction), far(2 - fraction)]


def _grid_taps(position: np.ndarray, extent: int, mode: str, padding: str,
               align: int) -> list[Tap]:
    """The taps of coordinates in [-1, 1] along an axis: indices and weights of neighbours."""
    if align:
        position, low, high = (position + 1) / 2 * (extent - 1), 0.0, extent - 1.0
    else:
        position, low, high = ((position + 1) * extent - 1) / 2, -0.5, extent - 0.5
    position = np.clip(np.nan_to_num(position), -POSITION_MAX, POSITION_MAX)
    if mode == "nearest":
        position = np.rint(position)
    if padding == "reflection":
        position = _reflected(position, low, high)
    first = np.floor(position)
    fraction = position - first
    if mode == "nearest":
        near = [(first, np.ones_like(first))]
    elif mode == "linear":
        near = [(first, 1 - fraction), (first + 1, fraction)]
    else:
        near = [(first + k - 1, w) for k, w in enumerate(cubic_weights(fraction))]
    taps = []
    for place, weight in near:
        if padding == "zeros":
            weight = np.where((place < 0) | (place >= extent), 0, weight)
        elif padding == "reflection":
            place = np.trunc(_reflected(place, low, high))
        taps.append((np.clip(place, 0, extent - 1).astype(np.int64), weight))
    return taps


def _grid_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, grid = types
    known = {"mode": ("nearest", "linear", "cubic"),
             "padding_mode": ("zeros", "border", "reflection")}
    if any(attributes[name] not in values for name, values in known.items()):
        raise InputError(f"grid_sample: one of each of {known} is expected, got {attributes}")
    rank = len(x.shape)
    if (rank < 3 or len(grid.shape) != rank or grid.shape[-1] != rank - 2
            or grid.shape[0] != x.shape[0] or x.dtype not in FLOATS or grid.dtype not in FLOATS
            or 0 in x.shape[2:]):
        raise InputError(f"grid_sample of {x} at {grid}: [n, c, …] and as many coordinates as "
                         f"there are axes behind, [n, …, axes], are expected")
    return Type((*x.shape[:2], *grid.shape[1:-1]), x.dtype)


def grid_sample(x: np.ndarray, grid: np.ndarray, *, mode: str, padding_mode: str,
                align_corners: int) -> np.ndarray:
    """x [n, c, …] sampled at the coordinates `grid` [n, …out, axes], from -1 to 1 along each axis;
    the last axis of x has the first coordinate."""
    taps = [_grid_taps(grid[..., -1 - k].astype(np.float32), extent, mode, padding_mode,
                       align_corners) for k, extent in enumerate(x.shape[2:])]
    return reduce(np.add, _products(x, taps))


define(name="grid_sample", inputs=(2, 2), shape=_grid_rule, meaning=grid_sample,
       attributes={"mode": "linear", "padding_mode": "zeros", "align_corners": 0},
       flops=lambda types, result, attributes:
           2 * result.size * {"nearest": 1, "linear": 2, "cubic": 4}[attributes["mode"]]
           ** (len(types[0].shape) - 2))


def _deform_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, w, offset, bias, mask = types
    groups, offset_groups = attributes["group"], attributes["offset_group"]
    strides, dilations, pads = (attributes[k] for k in ("strides", "dilations", "pads"))
    if not (len(x.shape) == len(w.shape) == 4 and len(strides) == len(dilations) == 2
            and len(pads) == 4 and min(*strides, *dilations, groups, offset_groups) > 0
            and x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0
            and x.shape[1] % offset_groups == 0 and 0 not in x.shape):
        raise InputError(f"deform_conv of {x} with {w}, {dict(attributes)}: [n, c, h, w] and "
                         f"[o, c / group, r, s] are expected")
    r, s = w.shape[2:]
    spatial = tuple(conv_extent(x.shape[k + 2], w.shape[k + 2], strides[k], dilations[k],
                                pads[k] + pads[k + 2]) for k in range(2))
    taps = offset_groups * r * s
    expected = [(x.shape[0], 2 * taps, *spatial), w.shape[:1], (x.shape[0], taps, *spatial)]
    if min(spatial) < 1 or [offset.shape, bias.shape, mask.shape] != expected \
            or any(t.dtype != x.dtype for t in types):
        raise InputError(f"deform_conv of {x} with {w}: offset, bias and mask of {expected} are "
                         f"expected, got {offset}, {bias} and {mask}")
    return Type((x.shape[0], w.shape[0], *spatial), x.dtype)


def deform_conv(x: np.ndarray, w: np.ndarray, offset: np.ndarray, bias: np.ndarray,
                mask: np.ndarray, *, strides: Sequence[int], pads: Sequence[int],
                dilations: Sequence[int], group: int, offset_group: int) -> np.ndarray:
    """Deformable convolution: each tap is displaced by an offset, and multiplied by a mask (Dai et
    al. 2017).

    offset is [n, offset_group * r * s * 2, oh, ow], mask [n, offset_group * r * s, oh, ow]; pixels
    are interpolated between.
    """
    (n, _, *extents), (o, _, r, s), spatial = x.shape, w.shape, offset.shape[2:]
    offset = offset.reshape(n * offset_group, r, s, 2, *spatial)
    mask = mask.reshape(n * offset_group, r, s, 1, *spatial)
    image = x.reshape(n * offset_group, -1, *extents)
    kernel = w.reshape(group, o // group, -1, r, s)
    y = np.zeros((n, group, o // group, *spatial), x.dtype)
    for i, j in np.ndindex(r, s):
        taps = []
        for k, tap in enumerate((i, j)):
            start = np.arange(spatial[k]) * strides[k] - pads[k] + tap * dilations[k]
            position = start.reshape((-1, 1) if k == 0 else (1, -1)) + offset[:, i, j, k]
            position = np.clip(position, -POSITION_MAX, POSITION_MAX)
            low = np.floor(position)
            taps.append([
                (np.clip(place, 0, extents[k] - 1).astype(np.int64),
                 np.where((place < 0) | (place >= extents[k]), 0, weight))
                for place, weight in ((low, 1 - position + low), (low + 1, position - low))])
        patch = sum(_products(image, taps)) * mask[:, i, j]
        y += np.einsum("ngchw,goc->ngohw", patch.reshape(n, group, -1, *spatial),
                       kernel[..., i, j], optimize=True)
    return y.reshape(n, o, *spatial) + bias[:, None, None]


define(name="deform_conv", inputs=(5, 5), shape=_deform_rule, meaning=deform_conv,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1,
                   "offset_group": 1},
       flops=lambda types, result, attributes: 2 * result.size * types[1].size
       // max(1, types[1].shape[0]) + 8 * types[0].shape[1] * types[4].size)


# ---------------------------------------------------------------- regions of an image


def _region_rule(name: str, columns: int) -> Callable[..., Type]:
    def rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
        x, regions = types[:2]
        shape = (attributes["output_height"], attributes["output_width"])
        batch = types[2:]
        if (len(x.shape) != 4 or len(regions.shape) != 2 or regions.shape[1] != columns
                or 0 in x.shape or min(shape) < 1 or x.dtype not in FLOATS
                or any(b.shape != regions.shape[:1] or b.dtype not in INDICES for b in batch)):
            raise InputError(f"{name} of {x} in {regions} to {list(shape)}: [n, c, h, w] and "
                             f"[regions, {columns}] are expected")
        return Type((regions.shape[0], x.shape[1], *shape), x.dtype)
    return rule


def _region_cost(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    return 16 * result.size


def _region_taps(start: float, end: float, extent: int, parts: int, samples: int,
                 half_pixel: bool) -> tuple[list[Tap], int]:
    """The taps of all samples along a side of a region, and the samples of each part."""
    length = end - start if half_pixel else max(end - start, 1.0)
    samples = samples if samples > 0 else max(0, math.ceil(length / parts))
    if samples * parts > REGION_SAMPLES_MAX:
        raise InputError(f"roi_align of a region {length} long; it has more samples than memory")
    steps = (np.arange(parts * samples) + 0.5) / max(samples, 1)
    position = start + steps * (length / parts)
    outside = (position < -1) | (position > extent)
    position = np.clip(np.nan_to_num(position), 0, extent - 1)
    low = position.astype(np.int64)
    taps = ((low, 1 - position + low), (np.minimum(low + 1, extent - 1), position - low))
    return [(place, np.where(outside, 0, weight)) for place, weight in taps], samples


def roi_align(x: np.ndarray, regions: np.ndarray, batch: np.ndarray, *, output_height: int,
              output_width: int, spatial_scale: float, sampling_ratio: int, mode: str,
              half_pixel: int) -> np.ndarray:
    """The mean or maximum of samples in each part of regions (x1, y1, x2, y2) (He et al. 2017).

    Each region is divided into `output_height` by `output_width` parts. A maximum is that of the
    weighted neighbours of samples, not of interpolated samples, as ONNX defines it.
    """
    y = np.zeros((len(regions), x.shape[1], output_height, output_width), x.dtype)
    corners = regions * regions.dtype.type(spatial_scale) - regions.dtype.type(half_pixel / 2)
    for found, image, (x1, y1, x2, y2) in zip(y, wrapped(batch, len(x)), corners, strict=True):
        sides = ((y1, y2, x.shape[2], output_height), (x1, x2, x.shape[3], output_width))
        (rows, high), (columns, wide) = (_region_taps(*side, sampling_ratio, bool(half_pixel))
                                         for side in sides)
        if not high or not wide:
            continue
        taps = [[(p[None, :, None], w[None, :, None]) for p, w in rows],
                [(p[None, None], w[None, None]) for p, w in columns]]
        parts = [product.reshape(-1, output_height, high, output_width, wide)
                 for product in _products(x[image:image + 1], taps)]
        found[...] = (reduce(np.add, parts).mean(axis=(2, 4)) if mode == "avg" else
                      np.max(parts, axis=0).max(axis=(2, 4)))
    return y


define(name="roi_align", inputs=(3, 3), shape=_region_rule("roi_align", 4), meaning=roi_align,
       attributes={"output_height": 1, "output_width": 1, "spatial_scale": 1.0,
                   "sampling_ratio": 0, "mode": "avg", "half_pixel": 1}, flops=_region_cost)


def max_roi_pool(x: np.ndarray, regions: np.ndarray, *, output_height: int, output_width: int,
                 spatial_scale: float) -> np.ndarray:
    """The maximum of each part of regions (image, x1, y1, x2, y2), corners included (Girshick
    2015)."""
    y = np.zeros((len(regions), x.shape[1], output_height, output_width), x.dtype)
    images = wrapped(regions[:, 0].astype(np.int64), len(x))
    corners = np.floor(regions[:, 1:].astype(np.float64) * spatial_scale + 0.5).astype(np.int64)
    for found, image, (x1, y1, x2, y2) in zip(y, images, corners, strict=True):
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(output_height, output_width):
            top = np.clip(y1 + i * height // output_height, 0, x.shape[2])
            bottom = np.clip(y1 - (-(i + 1) * height // output_height), 0, x.shape[2])
            left = np.clip(x1 + j * width // output_width, 0, x.shape[3])
            right = np.clip(x1 - (-(j + 1) * width // output_width), 0, x.shape[3])
            if top < bottom and left < right:
                found[:, i, j] = x[image, :, top:bottom, left:right].max(axis=(1, 2))
    return y


define(name="max_roi_pool", inputs=(2, 2), shape=_region_rule("max_roi_pool", 5),
       meaning=max_roi_pool, flops=_region_cost,
       attributes={"output_height": 1, "output_width": 1, "spatial_scale": 1.0})
