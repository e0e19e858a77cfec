"""The numeric guard: measures how precise Winograd's algorithm is with the weights that are bound.

Winograd's algorithm adds and subtracts inputs and weights before it multiplies, so its rounding
errors are larger than those of the direct sum: about 10 times in F(4), twice in F(2). They are
worse with weights whose transforms leave the range in which f32 is precise. The error is measured
for some output channels of each layer, on random activations, against the same algorithm in f64.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smalti.codegen.cpu.winograd_transforms import TRANSFORMS, Matrix, WinogradTransform

ERROR_MAX = 1e-5
"""The largest error of a layer, relative to its result in the Euclidean norm. Errors of layers are
independent, so 60 layers add up to less than 1e-4, which a whole model may be off. With weights of
real models F(4) has 4e-6 to 6e-6, F(2) 1e-6."""
OUTPUTS, CHANNELS_MAX, BLOCKS = 8, 1024, 2
"""What the error of a weight is estimated from: so many of its output channels, at most so many of
its input channels, and blocks of random inputs."""


def winograd_error(weight: np.ndarray, size: int, folded: bool) -> float:
    """The relative error of F(size) with `weight` [o, c, 3, 3]: the root mean square over some
    output channels.

    Activations are random, normally distributed. The error is infinity if a sum leaves the range of
    f32.

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
    """The output channels, of `outputs`, from which the error is estimated.

    Applied to as many channels as it returns, it gives all of these.

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
