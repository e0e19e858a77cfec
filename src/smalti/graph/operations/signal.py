"""The discrete Fourier transform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import FLOATS, REQUIRED, Type, define
from smalti.graph.operations.indexing import axis_of


def _dft_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), length = types, attributes["length"]
    axis = axis_of("dft", x, attributes["axis"])
    inverse, onesided = attributes["inverse"], attributes["onesided"]
    if (len(x.shape) < 2 or x.shape[-1] not in (1, 2) or axis == len(x.shape) - 1 or length < 1
            or x.dtype not in FLOATS or not x.size):
        raise InputError(f"dft of {x} along axis {axis}, length {length}: [n, …, 1] or complex "
                         f"[n, …, 2] and another axis than the last are expected")
    if onesided and not inverse and x.shape[-1] == 2:
        raise InputError(f"dft of {x}: the one-sided transform of a complex signal does not exist")
    extent = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if onesided and inverse else 2
    return Type((*x.shape[:axis], extent, *x.shape[axis + 1:-1], parts), x.dtype)


def dft(x: np.ndarray, *, axis: int, length: int, inverse: int, onesided: int) -> np.ndarray:
    """The discrete Fourier transform along `axis` of x, cut or filled with zeros to `length`.

    The last axis holds the real and, if it has two elements, the imaginary part. With `onesided`
    the result has the frequencies up to half of `length` only, which determine a real signal; the
    inverse then takes these and gives the real signal.
    """
    axis %= x.ndim
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    signal = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        return np.fft.irfft(signal, length, axis)[..., None].astype(x.dtype)
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    found = transform(signal, length, axis)
    return np.stack([found.real, found.imag], -1).astype(x.dtype)


define(name="dft", inputs=(1, 1), shape=_dft_rule, meaning=dft,
       attributes={"axis": REQUIRED, "length": REQUIRED, "inverse": 0, "onesided": 0},
       flops=lambda types, result, attributes:
           5 * result.size * max(1, attributes["length"].bit_length()))
