"""The numeric guard of Winograd: how far off it is with the weights that are bound.

Winograd adds and subtracts inputs and weights before it multiplies, so it rounds more than
the direct sum: about 10 times as much in F(4), twice in F(2). With weights whose transforms leave
the range in which f32 is precise it is worse. The error is measured for some output channels of
each layer, on random activations, against the same algorithm in f64.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smalti.codegen.x86.winograd_transforms import TRANSFORMS, Matrix, WinogradTransform

ERROR_MAX = 1e-5
"""Relative to the result, in the Euclidean norm. Errors of layers are independent: those of 60 add
up to less than 1e-4, which a whole model may be off. F(4) makes 4e-6 to 6e-6 of weights as models
have them, F(2) 1e-6."""
OUTPUTS, CHANNELS_MAX, BLOCKS = 8, 1024, 2
"""Of a weight what the error is estimated with: output channels, input channels of each, and blocks
of random inputs."""


def winograd_error(weight: np.ndarray, size: int, folded: bool) -> float:
    """The relative error of F(`size`) with `weight` [o, c, 3, 3], in the root mean square of some
    output channels.

    Activations are normally distributed, two blocks of each channel. Infinity where a sum leaves
    the range of f32.

    >>> rng = np.random.default_rng(0)
    >>> bool(1e-8 < winograd_error(rng.standard_normal((8, 64, 3, 3)), 4, False) < ERROR_MAX)
    True
    """
    f = TRANSFORMS[size, folded]
    some = np.asarray(weight[sampled(len(weight)), :CHANNELS_MAX], np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        found, truth = (_outputs(f, some, dtype).astype(np.float64)
                        for dtype in (np.float32, np.float64))
        off = np.linalg.norm(found - truth, axis=1)
        scale = np.linalg.norm(truth, axis=1)
        share = np.divide(off, scale, out=np.zeros_like(off), where=off != 0)
    return float(np.sqrt(np.mean(np.square(np.where(np.isnan(share), np.inf, share)))))


def sampled(outputs: int) -> np.ndarray:
    """The output channels that are looked at, of so many; of those themselves all.

    >>> sampled(15).tolist(), sampled(3).tolist()
    ([0, 2, 4, 6, 8, 10, 12, 14], [0, 1, 2])
    """
    return np.linspace(0, outputs - 1, min(OUTPUTS, outputs)).astype(int)


def _outputs(f: WinogradTransform, weight: np.ndarray, dtype: type) -> np.ndarray:
    """The outputs [o, pixels of all blocks] for the activations of `_inputs`, in `dtype`."""
    outputs, channels = weight.shape[:2]
    u = _both_sides(f.weights, weight.astype(dtype).transpose(2, 3, 0, 1))
    m = u @ _inputs(f, dtype)[:, :, :channels]                    # [point, point, o, block]
    return _both_sides(f.outputs, m).transpose(2, 3, 0, 1).reshape(outputs, -1)


@lru_cache(maxsize=len(TRANSFORMS) * 2)
def _inputs(f: WinogradTransform, dtype: type) -> np.ndarray:
    """Transformed activations [point, point, channel, block]."""
    shape = (CHANNELS_MAX, BLOCKS, f.window, f.window)
    activations: np.ndarray = np.random.default_rng(0).standard_normal(
        shape, np.float32).astype(dtype)
    return _both_sides(f.inputs, activations.transpose(2, 3, 0, 1))


def _both_sides(matrix: Matrix, squares: np.ndarray) -> np.ndarray:
    """matrix @ square @ matrix^T for every square in the first two axes.

    As a product a row and a column, each too small for the BLAS of numpy to wake its threads: they
    would keep the cores from those that bind.
    """
    sides = np.array(matrix, squares.dtype)
    half = sides @ squares.reshape(*squares.shape[:2], -1)        # [row, column of the result, ...]
    both = (sides @ half.swapaxes(0, 1)).swapaxes(0, 1)
    return both.reshape(*both.shape[:2], *squares.shape[2:])
