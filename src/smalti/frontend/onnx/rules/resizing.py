"""Resizing: nearest element, linear and cubic interpolation, with and without antialiasing. For
each axis a table of indices and weights is computed while importing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.rules.movement import taken_at
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX

EXTENT_MAX = CONSTANT_ELEMENTS_MAX


@dataclass(frozen=True)
class Side:
    """An axis that is resized: its extents before and after, the factor between them, and the part
    of it that is taken (for crops: from 0 to 1)."""

    axis: int
    before: int
    after: int
    scale: float
    part: tuple[float, float] = (0.0, 1.0)

    def positions(self, mode: str) -> np.ndarray:
        """The coordinate in the image of each element of the result, by a
        coordinate_transformation_mode of ONNX."""
        y, wide, last = np.arange(self.after, dtype=np.float64), self.scale * self.before, \
            self.before - 1
        if mode == "asymmetric":
            return y / self.scale
        if mode == "align_corners":
            return y * last / (wide - 1) if wide != 1 else y * 0
        if mode == "pytorch_half_pixel" and wide == 1:
            return y * 0 - 0.5
        if mode == "tf_half_pixel_for_nn":
            return (y + 0.5) / self.scale
        if mode == "tf_crop_and_resize":
            low, high = self.part
            if wide == 1:
                return y * 0 + (low + high) / 2 * last
            return low * last + y * (high - low) * last / (wide - 1)
        if mode not in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
            raise Unsupported(f"coordinate_transformation_mode {mode!r}")
        shift = self.before / 2 * (1 - self.after / wide) if mode.endswith("symmetric") else 0
        return shift + (y + 0.5) / self.scale - 0.5


NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}


def linear(distance: np.ndarray) -> np.ndarray:
    """The weight of an element at a distance, for linear interpolation."""
    return np.clip(1 - np.abs(distance), 0, 1)


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """The weight of an element at a distance, for cubic interpolation (Keys 1981)."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def weights(position: np.ndarray, side: Side, reach: int, kernel: Callable[..., np.ndarray],
            antialias: bool, exclude: bool) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights [after, taps] of the elements within `reach` of each position."""
    scale = min(side.scale, 1.0) if antialias else 1.0
    first = math.floor(-reach / scale) + 1
    if (2 - 2 * first) * side.after > CONSTANT_ELEMENTS_MAX:
        raise Unsupported(f"{side.after} elements with {2 - 2 * first} weights each")
    base = np.floor(position)
    steps = np.arange(first, 2 - first)
    found = kernel((steps - (position - base)[:, None]) * scale)
    places = base[:, None] + steps
    if exclude:
        found = np.where((places < 0) | (places >= side.before), 0, found)
    if exclude or antialias:
        found = found / found.sum(axis=1, keepdims=True)
    return np.clip(places, 0, side.before - 1).astype(np.int64), found


def sides_of(call: NodeCall, x: Value) -> list[Side]:
    """The axes that are resized, as the operands `scales` or `sizes` say."""
    axes = [call.axis(x, a) for a in call.integers("axes", tuple(range(len(x.shape))))]
    scales = [float(s) for s in call.known_or(2, np.zeros(0)).reshape(-1)]
    sizes = call.known_integers(3, ())
    if len(set(axes)) < len(axes) or len(sizes or scales) != len(axes):
        raise InputError(f"scales {scales} and sizes {list(sizes)} are given for axes {axes} of "
                         f"{x.type}")
    extents = [x.shape[a] for a in axes]
    if 0 in extents:
        raise Unsupported(f"{x.type} has no elements")
    if sizes:
        scales = [n / extent for n, extent in zip(sizes, extents, strict=True)]
        policy = call.text("keep_aspect_ratio_policy", "stretch")
        if policy not in ("stretch", "not_larger", "not_smaller"):
            raise InputError(f"keep_aspect_ratio_policy {policy!r}")
        if policy != "stretch":
            common = min(scales) if policy == "not_larger" else max(scales)
            scales = [common] * len(axes)
            sizes = [math.floor(common * n + 0.5) for n in extents]
    else:
        sizes = [math.floor(s * n) if 0 < s < math.inf else 0
                 for s, n in zip(scales, extents, strict=True)]
    if min((*sizes, *scales), default=1) <= 0 or max(sizes, default=1) > EXTENT_MAX:
        raise InputError(f"{x.type} becomes {list(sizes)} along axes {axes} by {scales}")
    parts = [(0.0, 1.0)] * len(axes)
    if call.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        region = [float(r) for r in call.known(1).reshape(-1)]
        if len(region) != 2 * len(axes):
            raise InputError(f"a region of {region} for axes {axes}")
        parts = list(zip(region[:len(axes)], region[len(axes):], strict=True))
    sides = [Side(*fields) for fields in zip(axes, extents, sizes, scales, parts, strict=True)]
    return [s for s in sides if (s.after, s.scale, s.part) != (s.before, 1.0, (0.0, 1.0))]


@rule("Resize", since=11)
def resize(call: NodeCall) -> Value:
    x, mode, place = call[0], call.text("mode"), call.text("coordinate_transformation_mode")
    sides = sides_of(call, x)
    if mode == "nearest":
        near = NEAREST.get(call.text("nearest_mode"))
        if near is None:
            raise InputError(f"nearest_mode {call.text('nearest_mode')!r}")
        y = nearest(call, x, sides, [near(side.positions(place)) for side in sides])
    elif mode in ("linear", "cubic"):
        y = interpolated(call, x, sides, mode, place)
    else:
        raise InputError(f"mode {mode!r}; nearest, linear or cubic is expected")
    if place != "tf_crop_and_resize":
        return y
    outside = call.constant(call.number("extrapolation_value"), x.dtype)
    for side in sides:
        position = side.positions(place)
        inside = (position >= 0) & (position <= side.before - 1)
        if not inside.all():
            column = inside.reshape(-1, *(1,) * (len(x.shape) - 1 - side.axis))
            y = call.apply("where", call.constant(column), y, outside)
    return y


def nearest(call: NodeCall, x: Value, sides: Sequence[Side], places: Sequence[np.ndarray]) -> Value:
    """Elements taken along each axis; a `resize` if each is merely repeated."""
    repeats = [1] * len(x.shape)
    rows = []
    for side, place in zip(sides, places, strict=True):
        row = np.clip(place, 0, side.before - 1).astype(np.int64)
        factor, rest = divmod(side.after, side.before)
        if rest == 0 and np.array_equal(row, np.arange(side.before).repeat(factor)):
            repeats[side.axis] = factor
        else:
            rows.append((side.axis, row))
    for axis, row in rows:
        x = taken_at(call, x, axis, row)
    return x if max(repeats, default=1) == 1 else call.apply("resize", x, scales=tuple(repeats))


def interpolated(call: NodeCall, x: Value, sides: Sequence[Side], mode: str, place: str) -> Value:
    """Weighted sums of neighbours, one axis after the other, computed in f32 or wider."""
    a = call.number("cubic_coeff_a", -0.75)
    kernel = linear if mode == "linear" else lambda distance: cubic(distance, a)
    antialias, exclude = bool(call.integer("antialias", 0)), bool(call.integer("exclude_outside"))
    dtype = x.dtype if x.dtype in ("f32", "f64") else "f32"
    y = x if x.dtype == dtype else call.apply("cast", x, to=dtype)
    for side in sides:
        places, factors = weights(side.positions(place), side, 1 if mode == "linear" else 2, kernel,
                                  antialias, exclude)
        y = call.apply("resample", y, call.constant(places), call.constant(factors, dtype),
                       axis=side.axis)
    return y if y.dtype == x.dtype else call.apply("cast", y, to=x.dtype)


@rule("Upsample")
@rule("Resize", since=10)
def upsample(call: NodeCall) -> Value:
    """Before version 11 element y of the result is at y / scale; nearest rounds down."""
    x = call[0]
    scales = call.numbers("scales", ()) or [float(s) for s in call.known(1).reshape(-1)]
    if len(scales) != len(x.shape) or 0 in x.shape or not all(0 < s < EXTENT_MAX for s in scales):
        raise InputError(f"{x.type} by {list(scales)}")
    sides = [Side(i, n, math.floor(n * s), s)
             for i, (n, s) in enumerate(zip(x.shape, scales, strict=True)) if s != 1]
    if any(not 0 < side.after <= EXTENT_MAX for side in sides):
        raise InputError(f"{x.type} by {list(scales)}")
    if call.text("mode") == "nearest":
        return nearest(call, x, sides, [np.floor(side.positions("asymmetric")) for side in sides])
    y = x
    for side in sides:
        places, factors = weights(side.positions("asymmetric"), side, 1, linear, False, False)
        y = call.apply("resample", y, call.constant(places), call.constant(factors, x.dtype),
                       axis=side.axis)
    return y
