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
    q = q.astype(np.uint8).reshape(len(q), -1, 2, width)
    return (q[:, :, 0] | q[:, :, 1] << 4).reshape(len(q), -1)


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
    """Scale and minimum (as what is subtracted, 0 or more) of parts [n, 32], for 0 to `most`.

    Starts from the range, then for slightly other ranges above the best minimum so far takes the
    straight line of least weighted squares through the rounded numbers (make_qkx2_quants).
    """
    weight = np.sqrt(np.square(x).mean(axis=1, keepdims=True)) + np.abs(x)
    most_x, least = x.max(axis=1), np.minimum(x.min(axis=1), np.float32(0))
    weighted = weight * x
    w, wx = weight.sum(axis=1), weighted.sum(axis=1)

    def error(q: Floats, scale: Floats, offset: Floats) -> Floats:
        return (weight * np.square(scale[:, None] * q + offset[:, None] - x)).sum(axis=1)

    def rounded(steps: float) -> Floats:
        inverse = np.float32(steps) * _inverse(most_x - best_least)
        return np.rint((x - best_least[:, None]) * inverse[:, None]).clip(0, most)

    best_scale, best_least = (most_x - least) / np.float32(most), least
    best = error(rounded(most), best_scale, best_least)
    for step in range(steps + 1):
        q = rounded(first + 0.1 * step + most)
        wq = weight * q
        l, l2, xl = wq.sum(axis=1), (wq * q).sum(axis=1), (weighted * q).sum(axis=1)
        determinant = w * l2 - l * l
        scale, offset = (w * xl - wx * l) / determinant, (l2 * wx - l * xl) / determinant
        scale, offset = np.where(offset > 0, xl / l2, scale), np.minimum(offset, np.float32(0))
        found = error(q, scale, offset)
        better = (determinant > 0) & (found < best)
        best = np.where(better, found, best)
        best_scale = np.where(better, scale, best_scale)
        best_least = np.where(better, offset, best_least)
    return best_scale, -best_least


def _with_minima(x: Floats, most: int, first: float, steps: int
                 ) -> tuple[Floats, Floats, Bytes, np.ndarray]:
    """Scale, minimum, packed scales of the parts and numbers, for Q4_K and Q5_K."""
    parts = x.reshape(-1, 32)
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
    """Scale of parts [n, 16] for numbers from -half to half - 1, squares as weights
    (make_qx_quants)."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    weight = np.square(x)
    weighted, inverse = weight * x, -_inverse(largest)
    best_scale, best = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        q = np.rint(x * (np.float32(half + 0.1 * step) * inverse)).clip(-half, half - 1)
        xl, l2 = (weighted * q).sum(axis=1), (weight * q * q).sum(axis=1)
        better = (l2 > 0) & (xl * xl > best * l2)
        scale = xl / l2
        best_scale = np.where(better, scale, best_scale)
        best = np.where(better, scale * xl, best)
    return best_scale


@_encoder("Q6_K")
def _(x: Floats) -> np.ndarray:
    parts = x.reshape(-1, 16)
    scales = _least_error(parts, 32).reshape(-1, 16)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    d = (largest / np.float32(-128)).astype(np.float16)
    s = np.rint(scales * np.float32(-128) * _inverse(largest)).clip(-128, 127)
    each = d.astype(np.float32) * s
    q = np.rint(x.reshape(-1, 16, 16) * _inverse(each)[:, :, None]).clip(-32, 31) + 32
    q = q.astype(np.uint8).reshape(-1, 2, 4, 32)
    high = (q >> 4) << np.uint8([0, 2, 4, 6])[:, None]
    return _record("Q6_K", d=d[:, 0], s=s, h=high.sum(axis=2, dtype=np.uint8).reshape(-1, 64),
                   q=_pairs(q.reshape(-1, 256) & 15, 64))
