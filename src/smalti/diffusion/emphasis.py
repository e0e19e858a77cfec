"""What the weights of a prompt do to the states of a text encoder.

"original" multiplies the states of a token by its weight, and then all of a chunk by what restores
their mean (AUTOMATIC1111's way, and stable-diffusion.cpp's); "no norm" leaves that out, which SDXL
takes better; "comfy" goes away from the states of an empty prompt: empty + (state - empty) * weight
(ComfyUI).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from smalti.errors import InputError

Floats = npt.NDArray[np.float32]


def original(states: Floats, weights: Floats, empty: Floats) -> Floats:
    """States times weights, with the mean of each chunk as it was."""
    weighted = states * weights
    means = [chunks.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
             for chunks in (states, weighted)]
    ratio = np.divide(means[0], means[1], out=np.ones_like(means[0]), where=means[1] != 0)
    return weighted * ratio.astype(np.float32)


def no_norm(states: Floats, weights: Floats, empty: Floats) -> Floats:
    """States times weights."""
    return states * weights


def comfy(states: Floats, weights: Floats, empty: Floats) -> Floats:
    """States moved away from those of an empty prompt."""
    return empty + (states - empty) * weights


EMPHASES: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "original": original,
    "no norm": no_norm,
    "comfy": comfy,
}


def weighted(states: Floats, weights: npt.ArrayLike, empty: Floats, how: str) -> Floats:
    """States f32[chunks, positions, width] with the weights [chunks, positions] of their tokens.

    `empty` are the states f32[1, positions, width] of an empty chunk. A chunk whose weights are all
    1 stays as it is, to the bit. Raises InputError for an unknown `how`, and for weights that leave
    no finite states of finite ones.

    >>> states, empty = np.full((1, 2, 1), 3, np.float32), np.ones((1, 2, 1), np.float32)
    >>> [weighted(states, [[1, 2]], empty, how).ravel().tolist() for how in EMPHASES]
    [[2.0, 4.0], [3.0, 6.0], [3.0, 5.0]]
    """
    if how not in EMPHASES:
        raise InputError(f"emphasis is {how!r}; known: {', '.join(EMPHASES)}")
    with np.errstate(over="ignore", invalid="ignore"):
        factors = np.asarray(weights, np.float32)[:, :, None]
        plain = (factors == 1).all(axis=1, keepdims=True)
        found = np.where(plain, states, EMPHASES[how](states, factors, empty))
    if np.isfinite(states).all() and not np.isfinite(found).all():
        raise InputError(f"weights in the prompt go up to {np.abs(factors).max():.3g}, at which it "
                         f"means nothing any more; write smaller ones, such as (word:1.3), and "
                         f"fewer brackets")
    return found
