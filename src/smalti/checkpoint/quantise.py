"""Numbers become blocks of ggml's formats (`blocks.py` has the layouts).

The rules are those of ggml-quants.c (https://github.com/ggml-org/ggml, MIT): the simple formats
take scale and minimum from the range of a block, the K formats search those with the least weighted
error among some twenty, large numbers weighing more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.blocks import FORMATS

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Encode = Callable[[Floats], np.ndarray]

NUMBERS_AT_ONCE = 1 << 16
"""Numbers that are encoded at a time, so that what lies between stays in the cache."""
SCALE_MAX = 63
"""The scales and minima of the parts of Q4_K and Q5_K have 6 bits."""

ENCODERS: dict[str, Encode] = {}
"""Format -> what makes records of [n, elements of a block]."""


def quantise(name: str, values: Floats) -> Bytes:
    """The blocks of `values`, whole ones, as bytes: format `name` is a key of ENCODERS.

    >>> from smalti.checkpoint.blocks import dequantise
    >>> dequantise("Q8_0", quantise("Q8_0", np.float32([127, 1, -5] + [0] * 29)))[:3].tolist()
    [127.0, 1.0, -5.0]
    """
    format, encode = FORMATS[name], ENCODERS[name]
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, format.elements)
    found = np.empty(len(blocks), format.record)
    step = NUMBERS_AT_ONCE // format.elements
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            found[start:start + step] = encode(blocks[start:start + step])
    return found.view(np.uint8)


def _encoder(name: str) -> Callable[[Encode], Encode]:
    def enter(encode: Encode) -> Encode:
        ENCODERS[name] = encode
        return encode

    return enter


def _record(name: str, **fields: np.ndarray) -> np.ndarray:
    found = np.empty(len(next(iter(fields.values()))), FORMATS[name].record)
    for field, values in fields.items():
        found[field] = values
    return found


def _inverse(values: Floats) -> Floats:
    """1 / values, and 0 for 0."""
    return np.where(values == 0, np.float32(0), 1 / values)


def _pairs(q: np.ndarray, width: int) -> Bytes:
    """Numbers of 4 bits two in a byte: of each 2 * `width` the first half in the low bits."""
    halves: Bytes = q.astype(np.uint8).reshape(len(q), -1, 2, width)
    return (halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)).reshape(len(q), -1)


def _high_bits(q: np.ndarray) -> np.ndarray:
    """Bit 4 of 32 numbers as one word."""
    return ((q >> 4).astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype="u4")


@_encoder("Q8_0")
def _(x: Floats) -> np.ndarray:
    d = np.abs(x).max(axis=1) / np.float32(127)
    scaled = x * _inverse(d)[:, None]
    return _record("Q8_0", d=d, q=np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled))


def _signed(x: Floats, half: int) -> tuple[Floats, np.ndarray]:
    """Scale and numbers from 0 to 2 half - 1, of which `half` is zero: the largest is exact."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = largest / np.float32(-half)
    q = (x * _inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1)
    return d[:, 0], q.astype(np.uint8)


def _ranged(x: Floats, most: int) -> tuple[Floats, Floats, np.ndarray]:
    """Scale, minimum and numbers from 0 to `most`, over the range of the block."""
    least = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - least) / np.float32(most)
    q = ((x - least) * _inverse(d) + np.float32(0.5)).clip(0, most)
    return d[:, 0], least[:, 0], q.astype(np.uint8)


@_encoder("Q4_0")
def _(x: Floats) -> np.ndarray:
    d, q = _signed(x, 8)
    return _record("Q4_0", d=d, q=_pairs(q, 16))


@_encoder("Q4_1")
def _(x: Floats) -> np.ndarray:
    d, m, q = _ranged(x, 15)
    return _record("Q4_1", d=d, m=m, q=_pairs(q, 16))


@_encoder("Q5_0")
def _(x: Floats) -> np.ndarray:
    d, q = _signed(x, 16)
    return _record("Q5_0", d=d, h=_high_bits(q), q=_pairs(q & 15, 16))


@_encoder("Q5_1")
def _(x: Floats) -> np.ndarray:
    d, m, q = _ranged(x, 31)
    return _record("Q5_1", d=d, m=m, h=_high_bits(q), q=_pairs(q & 15, 16))


def _least_error_with_minimum(x: Floats, most: int, first: float, steps: int
                              ) -> tuple[Floats, Floats]:
    """Scale and minimum (as what is subtracted, 0 or more) of parts [32, n], for 0 to `most`.

    Starts from the range, then for slightly other ranges above the best minimum so far takes the
    straight line of least weighted squares through the rounded numbers (make_qkx2_quants). With
    the sums over a part w, wx, wxx, wq, wqq and wxq, the error of a scale s and a minimum m is
    that of the sum of w (s q + m - x)^2.
    """
    most_x, m = x.max(axis=0), np.minimum(x.min(axis=0), np.float32(0))
    weight = np.sqrt(np.square(x).mean(axis=0)) + np.abs(x)
    weighted, q, room = weight * x, np.empty_like(x), np.empty_like(x)
    w, wx, wxx = weight.sum(axis=0), weighted.sum(axis=0), (weighted * x).sum(axis=0)

    def total(first: Floats, second: Floats) -> Floats:
        return np.multiply(first, second, out=room).sum(axis=0)

    def rounded(steps: float) -> tuple[Floats, Floats, Floats]:
        """Sums for the numbers of a range that is so many steps wide."""
        np.subtract(x, m, out=q)
        np.multiply(q, np.float32(steps) * _inverse(most_x - m), out=q)
        np.clip(np.rint(q, out=q), 0, most, out=q)
        wxq, wq = total(weighted, q), total(weight, q)
        return wq, total(room, q), wxq

    def error(s: Floats, m: Floats, wq: Floats, wqq: Floats, wxq: Floats) -> Floats:
        return s * (s * wqq + 2 * (m * wq - wxq)) + m * (m * w - 2 * wx) + wxx

    s = (most_x - m) / np.float32(most)
    best = error(s, m, *rounded(most))
    for step in range(steps + 1):
        wq, wqq, wxq = sums = rounded(first + 0.1 * step + most)
        determinant = w * wqq - wq * wq
        slope, offset = (w * wxq - wx * wq) / determinant, (wqq * wx - wq * wxq) / determinant
        slope, offset = np.where(offset > 0, wxq / wqq, slope), np.minimum(offset, np.float32(0))
        found = error(slope, offset, *sums)
        better = (determinant > 0) & (found < best)
        best, s, m = (np.where(better, *pair) for pair in ((found, best), (slope, s), (offset, m)))
    return s, -m


def _with_minima(x: Floats, most: int, first: float, steps: int
                 ) -> tuple[Floats, Floats, Bytes, np.ndarray]:
    """Scale, minimum, packed scales of the parts and numbers, for Q4_K and Q5_K."""
    parts = np.ascontiguousarray(x.reshape(-1, 32).T)
    scales, minima = (values.reshape(-1, 8)
                      for values in _least_error_with_minimum(parts, most, first, steps))
    d, m = (np.maximum(values.max(axis=1), 0) / np.float32(SCALE_MAX)
            for values in (scales, minima))
    ls, lm = (np.rint(values * _inverse(top)[:, None]).clip(0, SCALE_MAX).astype(np.uint8)
              for values, top in ((scales, d), (minima, m)))
    packed = np.concatenate([ls[:, :4] | (ls[:, 4:] >> 4) << 6, lm[:, :4] | (lm[:, 4:] >> 4) << 6,
                             ls[:, 4:] & 15 | lm[:, 4:] << 4], axis=1)
    scale = d.astype(np.float16).astype(np.float32)[:, None] * ls
    least = m.astype(np.float16).astype(np.float32)[:, None] * lm
    q = (x.reshape(-1, 8, 32) + least[:, :, None]) * _inverse(scale)[:, :, None]
    return d, m, packed, np.rint(q).clip(0, most).astype(np.uint8)


@_encoder("Q4_K")
def _(x: Floats) -> np.ndarray:
    d, m, s, q = _with_minima(x, 15, -1.0, 20)
    return _record("Q4_K", d=d, m=m, s=s, q=_pairs(q, 32))


@_encoder("Q5_K")
def _(x: Floats) -> np.ndarray:
    d, m, s, q = _with_minima(x, 31, -0.5, 15)
    high = ((q >> 4) << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8)
    return _record("Q5_K", d=d, m=m, s=s, h=high, q=_pairs(q & 15, 32))


def _least_error(x: Floats, half: int) -> Floats:
    """Scale of parts [16, n] for numbers from -half to half - 1, squares as weights
    (make_qx_quants)."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    weight, inverse = np.square(x), -_inverse(largest)
    weighted, q, room = weight * x, np.empty_like(x), np.empty_like(x)
    best_scale, best = np.zeros_like(largest), np.zeros_like(largest)
    for step in (0, *range(-9, 0), *range(1, 10)):
        np.multiply(x, np.float32(half + 0.1 * step) * inverse, out=q)
        np.clip(np.rint(q, out=q), -half, half - 1, out=q)
        wxq = np.multiply(weighted, q, out=room).sum(axis=0)
        wqq = np.multiply(np.multiply(weight, q, out=room), q, out=room).sum(axis=0)
        better = (wqq > 0) & (wxq * wxq > best * wqq)
        scale = wxq / wqq
        best_scale = np.where(better, scale, best_scale)
        best = np.where(better, scale * wxq, best)
    return best_scale


@_encoder("Q6_K")
def _(x: Floats) -> np.ndarray:
    parts = np.ascontiguousarray(x.reshape(-1, 16).T)
    scales = _least_error(parts, 32).reshape(-1, 16)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    d = (largest / np.float32(-128)).astype(np.float16)
    s = np.rint(scales * np.float32(-128) * _inverse(largest)).clip(-128, 127)
    each = d.astype(np.float32) * s
    q = np.rint(x.reshape(-1, 16, 16) * _inverse(each)[:, :, None]).clip(-32, 31) + 32
    q = q.astype(np.uint8).reshape(-1, 2, 4, 32)
    high = (q >> 4) << np.array([[0], [2], [4], [6]], np.uint8)
    return _record("Q6_K", d=d[:, 0], s=s, h=high.sum(axis=2, dtype=np.uint8).reshape(-1, 64),
                   q=_pairs(q.reshape(-1, 256) & 15, 64))
