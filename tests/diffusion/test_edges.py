"""Edges, against the definition pixel by pixel and what OpenCV makes of one picture."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.diffusion.edges import canny
from smalti.errors import InputError

PUBLISHED = {(100, 200): (2170, 2447925441), (40, 400): (2095, 192650804)}
"""Thresholds -> pixels on edges and CRC-32 of what OpenCV 5.0.0 makes of `picture(96, 80)`."""


def picture(height: int, width: int) -> np.ndarray:
    """Squares, waves and noise, with another pattern in each channel."""
    y, x = np.mgrid[:height, :width]
    planes = [127 + 60 * np.sign(np.sin(x / 7 + k) * np.cos(y / 5))
              + 40 * np.sin((x + y * (k + 1)) / 11) for k in range(3)]
    noise = np.random.Generator(np.random.PCG64(1)).integers(-20, 21, (height, width, 3))
    mixed = np.rint(np.stack(planes, axis=-1)).astype(int) + noise
    return np.clip(mixed, 0, 255).astype(np.uint8)


def by_definition(image: np.ndarray, low: float, high: float) -> np.ndarray:
    """One pixel after another, with angles instead of fixed-point tangents."""
    planes = image.reshape(*image.shape[:2], -1).astype(int)
    height, width, channels = planes.shape

    def pixel(y: int, x: int, c: int) -> int:
        return planes[min(max(y, 0), height - 1), min(max(x, 0), width - 1), c]

    def gradient(y: int, x: int) -> tuple[int, int, int]:
        found = (0, 0, -1)
        for c in range(channels):
            dx = sum(w * (pixel(y + d, x + 1, c) - pixel(y + d, x - 1, c))
                     for d, w in ((-1, 1), (0, 2), (1, 1)))
            dy = sum(w * (pixel(y + 1, x + d, c) - pixel(y - 1, x + d, c))
                     for d, w in ((-1, 1), (0, 2), (1, 1)))
            found = max(found, (dx, dy, abs(dx) + abs(dy)), key=lambda each: each[2])
        return found

    gradients = {(y, x): gradient(y, x) for y in range(height) for x in range(width)}

    def size(y: int, x: int) -> int:
        return gradients.get((y, x), (0, 0, 0))[2]

    def on_ridge(y: int, x: int) -> bool:
        dx, dy, here = gradients[y, x]
        angle = math.degrees(math.atan2(abs(dy), abs(dx)))
        if angle < 22.5:
            return here > size(y, x - 1) and here >= size(y, x + 1)
        if angle > 67.5:
            return here > size(y - 1, x) and here >= size(y + 1, x)
        side = 1 if dx * dy > 0 or dx == 0 or dy == 0 else -1
        return here > size(y - 1, x - side) and here > size(y + 1, x + side)

    ridge = {at for at in gradients if size(*at) > math.floor(low) and on_ridge(*at)}
    edge = {at for at in ridge if size(*at) > math.floor(high)}
    waiting = list(edge)
    while waiting:
        y, x = waiting.pop()
        near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & ridge - edge
        edge |= near
        waiting += near
    found = np.zeros((height, width), np.uint8)
    for at in edge:
        found[at] = 255
    return found


@examples(25)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3]), st.integers(2, 256),
       st.integers(0, 2**32 - 1), st.tuples(st.floats(0, 600), st.floats(0, 900)).map(sorted))
def test_the_definition(height: int, width: int, channels: int, levels: int, seed: int,
                        thresholds: list[float]) -> None:
    random = np.random.default_rng(seed)
    image = (random.integers(0, levels, (height, width, channels)) * 255 // (levels - 1))
    image = image.astype(np.uint8)
    np.testing.assert_array_equal(canny(image, *thresholds), by_definition(image, *thresholds))


@pytest.mark.parametrize("thresholds", PUBLISHED)
def test_what_opencv_finds(thresholds: tuple[int, int]) -> None:
    found = canny(picture(96, 80), *thresholds)
    assert (np.count_nonzero(found), zlib.crc32(found.tobytes())) == PUBLISHED[thresholds]


def test_weak_edges_stay_where_they_lead_to_strong_ones() -> None:
    image = np.full((12, 30), 100, np.uint8)
    image[:, 10:] = 130          # a gradient of 120
    image[:4, :10] = 40          # that begins strong
    image[:, 20:] = 160          # and one that is weak everywhere
    found = canny(image, 100, 200)
    assert found[9, 9] == 255 and not found[6:, 15:].any()
    assert canny(image, 100, 110)[9, 19] == 255


def test_a_blur_removes_noise_and_keeps_the_outline() -> None:
    clean = np.zeros((40, 40), np.uint8)
    clean[10:30, 10:30] = 200
    noise = np.random.default_rng(1).integers(0, 56, clean.shape).astype(np.uint8)
    sharp, smooth = canny(clean + noise), canny(clean + noise, blur=1.5)
    assert np.count_nonzero(sharp) > np.count_nonzero(smooth) >= 60
    inside = np.zeros(clean.shape, bool)
    inside[7:33, 7:33] = True
    inside[13:27, 13:27] = False
    assert not smooth[~inside].any()
    flat = np.full((9, 9), 77, np.uint8)
    assert not canny(flat, 0, 0, blur=3).any()


@pytest.mark.parametrize(("image", "options", "words"), [
    (np.zeros((4, 4), np.float32), {}, r"got float32\[4, 4\]"),
    (np.zeros((2, 4, 4, 3), np.uint8), {}, r"got uint8\[2, 4, 4, 3\]"),
    (np.zeros((0, 4), np.uint8), {}, r"got uint8\[0, 4\]"),
    (np.zeros((4, 4), np.uint8), {"low": 300.0}, "thresholds 300.0 and 200.0"),
    (np.zeros((4, 4), np.uint8), {"low": math.nan}, "thresholds nan"),
    (np.zeros((4, 4), np.uint8), {"high": math.inf}, "0 <= low <= high"),
    (np.zeros((4, 4), np.uint8), {"blur": -1.0}, "a blur of -1.0 pixels"),
])
def test_what_cannot_be_is_refused(image: np.ndarray, options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        canny(image, **options)
