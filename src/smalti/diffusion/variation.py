"""Pictures a little different from another: noise on the way from that of one seed to another's."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from smalti.diffusion.random import SEED_END, NoiseSource, batch_seeds
from smalti.errors import InputError

Floats = np.ndarray
PARALLEL = 0.9995
"""Cosine above which directions count as one."""
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

    def labels(self, number: int) -> dict[str, str]:
        """What the text of a picture of a batch says of it, in A1111's names."""
        return {"Variation seed": str((self.seed + number) % SEED_END),
                "Variation seed strength": f"{self.strength:g}"}


def variation(seed: object, strength: object) -> Variation | None:
    """The variation that is asked for, None without a strength; the seed None or -1 draws one.

    Raises InputError for numbers out of range, and for a seed without a strength.
    """
    if not isinstance(strength, Real) or isinstance(strength, bool) or not 0 <= strength <= 1:
        raise InputError(f"variation_strength is {strength!r}; expected a number from 0 to 1")
    if strength == 0:
        if seed is not None:
            raise InputError("variation_seed is given, but variation_strength is 0; 0.1 changes "
                             "little, 1 takes the other seed")
        return None
    if seed is None or seed == -1:
        seed = secrets.randbits(SEED_BITS)
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < SEED_END:
        raise InputError(f"variation_seed is {seed!r}; expected a whole number from 0 to "
                         f"{SEED_END - 1}; -1 draws one")
    return Variation(int(seed), float(strength))


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
