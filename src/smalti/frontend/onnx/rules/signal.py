"""Fourier transforms of signals, and filter banks."""

from __future__ import annotations

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.rules.movement import taken_at
from smalti.frontend.onnx.tensors import dtype_of
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES


@rule("DFT")
def dft(call: NodeCall) -> Value:
    """Before version 20 the axis is an attribute, later an operand."""
    x = call[0]
    axis = call.known_integers(2, (-2,))[0] if call.version >= 20 else call.integer("axis")
    axis, inverse, onesided = call.axis(x, axis), call.integer("inverse"), call.integer("onesided")
    usual = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    (length,) = call.known_integers(1, (usual,))
    return call.apply("dft", x, axis=axis, length=length, inverse=inverse, onesided=onesided)


@rule("STFT")
def stft(call: NodeCall) -> Value:
    """The short-time Fourier transform: a signal [n, length, 1 or 2] is cut into overlapping
    frames, each multiplied by the window and transformed.

    A real signal may lack the last axis, which is for real and imaginary part.
    """
    signal, window = call[0], call.optional(2)
    if len(signal.shape) == 2:
        signal = signal.reshape(*signal.shape, 1)
    step = call.known_integer(1)
    usual = (signal.shape[1] if len(signal.shape) > 1 else 0) if window is None \
        else window.type.size
    (length,) = call.known_integers(3, (usual,))
    if len(signal.shape) != 3 or step < 1 or not 1 <= length <= signal.shape[1] \
            or window is not None and window.shape != (length,):
        raise InputError(f"frames of {length} every {step} of {signal.type}")
    frames = 1 + (signal.shape[1] - length) // step
    if frames * length > CONSTANT_ELEMENTS_MAX:
        raise Unsupported(f"{frames} frames of {length}; at most {CONSTANT_ELEMENTS_MAX} elements "
                          f"are gathered")
    places = call.counted(frames)[:, None] * step + call.counted(length)
    framed = taken_at(call, signal, 1, places)
    if window is not None:
        framed = framed * window.reshape(length, 1)
    return call.apply("dft", framed, axis=2, length=length, onesided=call.integer("onesided"))


@rule("MelWeightMatrix")
def mel_weights(call: NodeCall) -> Value:
    """A bank of triangular filters, evenly spaced in mel = 2595 log10(1 + hertz / 700)."""
    bins, length, rate = (call.known_integers(i)[0] for i in range(3))
    low, high = (float(call.known(i).reshape(-1)[0]) for i in (3, 4))
    rows = length // 2 + 1
    if bins < 1 or length < 1 or rate < 1 or not 0 <= low <= high:
        raise InputError(f"{bins} bins of {length} samples at {rate} Hz from {low} to {high} Hz")
    if bins * rows > CONSTANT_ELEMENTS_MAX:
        raise Unsupported(f"a table of {rows} x {bins}")
    least, most = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    mel = call.counted(bins + 2) * ((most - least) / (bins + 2)) + least
    edges = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(np.int64)
    if edges[-1] >= rows:
        raise InputError(f"{high} Hz lie beyond half of {rate} Hz")
    table = np.zeros((rows, bins))
    for i, (left, middle, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rise, fall = np.arange(left, middle + 1), np.arange(middle, right)
        table[rise, i] = (rise - left) / (middle - left) if middle > left else 1
        if right > middle:
            table[fall, i] = (right - fall) / (right - middle)
    dtype = dtype_of(call.integer("output_datatype"), call.where)
    return call.constant(table.astype(DTYPES[dtype]), dtype)
