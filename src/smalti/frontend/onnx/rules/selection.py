"""Operators whose results have a shape that depends on values; the host computes them."""

from __future__ import annotations

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import HostNodeCall, host


@host("NonZero")
def non_zero(call: HostNodeCall) -> list[np.ndarray]:
    return [np.stack(np.nonzero(np.atleast_1d(call[0]))).astype(np.int64)]


@host("Compress")
def compress(call: HostNodeCall) -> list[np.ndarray]:
    x, axis = call[0], call.integer("axis", None)
    condition = np.asarray(call[1], bool).reshape(-1)
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise InputError(f"axis {axis} does not exist in {list(x.shape)}")
    extent = x.size if axis is None else x.shape[axis]
    if condition.size > extent and condition[extent:].any():
        raise InputError(f"{condition.size} elements are chosen of {extent}")
    return [np.compress(condition[:extent], x, axis)]


@host("Unique")
def unique(call: HostNodeCall) -> list[np.ndarray]:
    x, axis = call[0], call.integer("axis", None)
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise InputError(f"axis {axis} does not exist in {list(x.shape)}")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not call.integer("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return [values, *(a.astype(np.int64) for a in (first, inverse, counts))]


@host("NonMaxSuppression")
def non_max_suppression(call: HostNodeCall) -> list[np.ndarray]:
    """Greedy non-maximum suppression: boxes in descending order of score, each kept unless it
    overlaps a kept one too much (Girshick et al. 2014)."""
    boxes, scores = call[0], call[1]
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 \
            or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise InputError(f"boxes {list(boxes.shape)} with scores {list(scores.shape)}")
    most = 0 if call.optional(2) is None else int(np.asarray(call[2]).reshape(-1)[0])
    overlap = 0.0 if call.optional(3) is None else float(np.asarray(call[3]).reshape(-1)[0])
    least = -np.inf if call.optional(4) is None else float(np.asarray(call[4]).reshape(-1)[0])
    found = []
    for n, (image, classes) in enumerate(zip(boxes, scores, strict=True)):
        corners = _corners(image.astype(np.float64), call.integer("center_point_box"))
        for c, score in enumerate(classes):
            kept = _suppressed(corners, score, most, overlap, least)
            found += [(n, c, int(i)) for i in kept]
    return [np.array(found, np.int64).reshape(-1, 3)]


def _corners(boxes: np.ndarray, centred: int) -> np.ndarray:
    """Boxes [boxes, 4] as the smallest and largest coordinates along both axes; if `centred`, they
    are given by centre and size."""
    if centred:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]),
                           np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _suppressed(corners: np.ndarray, scores: np.ndarray, most: int, overlap: float,
                least: float) -> list[int]:
    """The indices of the boxes of one class that are kept."""
    areas = np.prod(corners[:, 2:] - corners[:, :2], 1)
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > least] if least > -np.inf else order
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[order, :2])
        high = np.minimum(corners[best, 2:], corners[order, 2:])
        shared = np.prod(np.maximum(high - low, 0), 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = shared / (areas[best] + areas[order] - shared)
        order = order[~(ratio > overlap)]
    return kept
