"""Pictures a little different from another: noise on the way from that of one seed to another's."""

from __future__ import annotations

import secrets

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.random import NoiseSource, batch_seeds

Floats = np.ndarray
PARALLEL = 0.9995
"""Cosine above which directions count as one, as in A1111: sines of smaller angles lose digits."""
SEED_BITS = 32  # of one that is drawn


@dataclass(frozen=True)
class Variation:
    """The first noise goes the share `strength` of the way to that of `seed`.

    Pictures of a batch have one seed, and variation seeds that follow one another, as in A1111.
    """

    seed: int
    strength: float

    def mixed(self, noise: Floats, rng: str) -> Floats:
        """Noise [pictures, channels, h, w] with its share of the other."""
        seeds = batch_seeds(self.seed, len(noise))
        return spherical(noise, NoiseSource(rng, seeds, noise.shape[1:]).draw(), self.strength)


def variation(seed: int | None, strength: float) -> Variation | None:
    """The variation that is asked for, None without a strength; the seed None or -1 draws one."""
    if strength == 0:
        return None
    if seed is None or seed == -1:
        seed = secrets.randbits(SEED_BITS)
    return Variation(seed, strength)


def spherical(start: Floats, end: Floats, share: float) -> Floats:
    """From one noise [pictures, channels, h, w] to another along a circle, so that the result has
    the deviation of noise: Shoemake 1985, "Animating Rotation with Quaternion Curves".

    Columns of a channel are the vectors that turn, as in A1111, so that pictures are the same.

    >>> spherical(np.array([[[[1.0], [0.0]]]]), np.array([[[[0.0], [1.0]]]]), 0.5).ravel().round(4)
    array([0.7071, 0.7071])
    """
    directions = [each / np.linalg.norm(each, axis=2, keepdims=True) for each in (start, end)]
    cosines = np.clip((directions[0] * directions[1]).sum(axis=2, keepdims=True), -1, 1)
    if cosines.mean() > PARALLEL:
        return ((1 - share) * start + share * end).astype(start.dtype)
    angles = np.arccos(cosines)
    turned = np.sin((1 - share) * angles) * start + np.sin(share * angles) * end
    return (turned / np.sin(angles)).astype(start.dtype)
