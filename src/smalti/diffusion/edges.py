"""Edges of a picture (Canny 1986, A computational approach to edge detection), for ControlNets.

With no blur this is OpenCV's `Canny` with the L1 norm, pixel for pixel, which is what ControlNets
for edges were trained with.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smalti.errors import InputError

LOW, HIGH = 100.0, 200.0
"""Thresholds that the interfaces of ControlNet begin with."""
BLUR_MAX = 100.0
SHIFT = 15
TANGENT = round(math.tan(math.pi / 8) * 2**SHIFT)
"""The tangent of 22.5 degrees as a fixed-point number; that of 67.5 degrees is 2 more."""

Gradient = npt.NDArray[np.int64]


def canny(image: npt.NDArray[np.uint8], low: float = LOW, high: float = HIGH,
          blur: float = 0.0) -> npt.NDArray[np.uint8]:
    """image u8[h, w] or u8[h, w, channels] -> u8[h, w]: 255 on edges, else 0.

    A pixel is on an edge when its gradient |dx| + |dy|, at most 2040, is the largest across the
    edge and above `high`, or above `low` and next to a pixel that is on an edge. `blur` is the
    standard deviation, in pixels, of a Gaussian that is applied first. Raises InputError for
    another shape or type, and for thresholds that are no numbers or not in order.

    >>> image = np.zeros((5, 6), np.uint8)
    >>> image[:, 3:] = 255
    >>> canny(image)[2]
    array([  0,   0, 255,   0,   0,   0], dtype=uint8)
    """
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.size == 0:
        raise InputError(f"edges are found in u8[h, w] or u8[h, w, channels], got "
                         f"{image.dtype}{list(image.shape)}")
    if not 0 <= low <= high < math.inf:
        raise InputError(f"thresholds {low} and {high} are given; 0 <= low <= high is expected")
    if not 0 <= blur <= BLUR_MAX:
        raise InputError(f"a blur of {blur} pixels is given; expected 0 to {BLUR_MAX:.0f}")
    planes = image.reshape(*image.shape[:2], -1)
    if blur:
        planes = _blurred(planes, blur)
    dx, dy, size = _gradient(planes)
    ridge = _ridge(dx, dy, size) & (size > math.floor(low))
    return _connected(ridge, ridge & (size > math.floor(high)))


def _blurred(planes: np.ndarray, deviation: float) -> np.ndarray:
    """A Gaussian to three deviations along both axes, rounded; edges are repeated outwards."""
    radius = math.ceil(3 * deviation)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / deviation) ** 2)
    weights /= weights.sum()
    x = planes.astype(np.float64)
    for axis in (0, 1):
        around = [(radius, radius) if i == axis else (0, 0) for i in range(3)]
        padded, extent = np.pad(x, around, mode="edge"), x.shape[axis]
        x = sum(weight * padded.take(np.arange(i, i + extent), axis)
                for i, weight in enumerate(weights))
    return np.rint(x).astype(np.uint8)


def _gradient(planes: np.ndarray) -> tuple[Gradient, Gradient, Gradient]:
    """dx, dy and |dx| + |dy| by Sobel's 3x3 windows, of the channel in which it is the largest."""
    p = np.pad(planes.astype(np.int64), ((1, 1), (1, 1), (0, 0)), mode="edge")
    across = p[:, 2:] - p[:, :-2]
    down = p[2:] - p[:-2]
    dx = across[:-2] + 2 * across[1:-1] + across[2:]
    dy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    size = np.abs(dx) + np.abs(dy)
    largest = size.argmax(axis=2)[..., None]
    dx, dy, size = (np.take_along_axis(x, largest, axis=2)[..., 0] for x in (dx, dy, size))
    return dx, dy, size


def _ridge(dx: Gradient, dy: Gradient, size: Gradient) -> npt.NDArray[np.bool_]:
    """Where the gradient is the largest along its own direction, one of four."""
    height, width = size.shape
    around = np.pad(size, 1)

    def at(row: int, column: int) -> Gradient:
        return around[1 + row:1 + row + height, 1 + column:1 + column + width]

    x, y = np.abs(dx) * TANGENT, np.abs(dy) << SHIFT
    level, steep = y < x, y > x + (np.abs(dx) << (SHIFT + 1))
    falling = (dx ^ dy) < 0
    diagonal = np.where(falling, (size > at(-1, 1)) & (size > at(1, -1)),
                        (size > at(-1, -1)) & (size > at(1, 1)))
    return np.where(level, (size > at(0, -1)) & (size >= at(0, 1)),
                    np.where(steep, (size > at(-1, 0)) & (size >= at(1, 0)), diagonal))


def _connected(ridge: npt.NDArray[np.bool_], strong: npt.NDArray[np.bool_]
               ) -> npt.NDArray[np.uint8]:
    """255 on the pixels of `ridge` that are `strong`, or joined to such by others of the ridge."""
    width = ridge.shape[1] + 2
    steps = np.array([row * width + column for row in (-1, 0, 1) for column in (-1, 0, 1)])
    waiting, found = np.pad(ridge & ~strong, 1).ravel(), np.pad(strong, 1).ravel()
    front = np.flatnonzero(found)
    while front.size:
        near = (front[:, None] + steps).ravel()
        front = np.unique(near[waiting[near]])
        waiting[front], found[front] = False, True
    return np.where(found.reshape(-1, width)[1:-1, 1:-1], 255, 0).astype(np.uint8)
