"""Gaussian noise that is the same on every machine, in the two conventions that users compare with.

"cpu" is what `torch.randn` draws from a CPU generator (Mersenne Twister; Matsumoto & Nishimura
1998), which diffusers and ComfyUI users know. "cuda" is what it draws on an NVIDIA card (Philox
4x32-10; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), which A1111 users know.
Each image of a batch has a generator of its own, which goes on with every draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from smalti.errors import InputError

SEED_END = 2**64  # seeds have 64 bits
Floats = npt.NDArray[np.float32]


class Generator(Protocol):
    """A stream of standard normal numbers."""

    def randn(self, count: int) -> Floats:
        """The next draw: `count` numbers at once."""
        ...


class NoiseSource:
    """Noise of a batch of images, one generator and one seed per image.

    `shape` is that of one image's latents, `kind` is "cpu" or "cuda". Raises `InputError` for
    another kind, or a seed outside 0 to 2**64 - 1.

    >>> source = NoiseSource("cpu", batch_seeds(0, 2), (4, 64, 64))
    >>> source.draw().shape, source.draw()[0, 0, 0, :2].round(4).tolist()
    ((2, 4, 64, 64), [-0.551800012588501, 1.5398000478744507])
    """

    def __init__(self, kind: str, seeds: Sequence[int], shape: tuple[int, ...]) -> None:
        if kind not in RNGS:
            known = ", ".join(RNGS)
            raise InputError(f"unknown random numbers {kind!r}; known: {known}")
        for seed in seeds:
            if not 0 <= seed < SEED_END:
                raise InputError(f"seed {seed} is out of range; expected 0 to {SEED_END - 1}")
        self.kind = kind
        self.seeds = tuple(seeds)
        self.shape = shape
        self._generators = [RNGS[kind](seed) for seed in seeds]

    def draw(self) -> Floats:
        """The next noise of each image, float32 of shape (images, *shape)."""
        count = math.prod(self.shape)
        flat = [generator.randn(count) for generator in self._generators]
        return np.stack(flat).reshape(len(flat), *self.shape)


def batch_seeds(seed: int, batch_size: int) -> tuple[int, ...]:
    """The seed of each image of a batch: image b has seed + b.

    >>> batch_seeds(7, 3)
    (7, 8, 9)
    """
    return tuple((seed + image) % SEED_END for image in range(batch_size))


class TorchCpuGenerator:
    """`torch.Generator("cpu")` as `torch.randn` of float32 uses it.

    Draws of 16 numbers and more take 24-bit uniforms in blocks of 16, shorter draws take one
    53-bit Box-Muller pair after the other. Source: the behaviour of torch; see the test vectors.
    """

    BLOCK = 16

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed & 0xFFFFFFFF)
        self._second: float | None = None  # of the last Box-Muller pair of a short draw

    def randn(self, count: int) -> Floats:
        """The next `count` numbers, as `torch.randn(count)` gives them."""
        if count < self.BLOCK:
            return np.array([self._one() for _ in range(count)], np.float32)
        uniform = self._uniform24(count)
        whole = count - count % self.BLOCK
        normal = np.empty(count, np.float32)
        normal[:whole] = self._normal_blocks(uniform[:whole])
        if whole < count:  # the last 16 are drawn once more
            normal[-self.BLOCK :] = self._normal_blocks(self._uniform24(self.BLOCK))
        return normal

    def _words(self, count: int) -> npt.NDArray[np.uint32]:
        return self._twister.randint(0, 2**32, count, np.uint32)

    def _uniform24(self, count: int) -> Floats:
        return (self._words(count) & 0xFFFFFF).astype(np.float32) * np.float32(2**-24)

    def _normal_blocks(self, uniform: Floats) -> Floats:
        """Box-Muller in blocks of 16: number j of a block goes with number j + 8."""
        first, second = uniform.reshape(-1, 2, 8).transpose(1, 0, 2)
        radius = np.sqrt(np.float32(-2) * np.log(np.float32(1) - first))
        angle = np.float32(2 * math.pi) * second
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)

    def _one(self) -> float:
        if self._second is not None:
            value, self._second = self._second, None
            return value
        high0, low0, high1, low1 = (int(word) for word in self._words(4))
        angle = 2 * math.pi * _uniform53(high0, low0)
        radius = math.sqrt(-2 * math.log1p(-_uniform53(high1, low1)))
        self._second = radius * math.sin(angle)
        return radius * math.cos(angle)


def _uniform53(high: int, low: int) -> float:
    return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53


class PhiloxGenerator:
    """`torch.Generator("cuda")`: number i of draw k is a function of (seed, k, i) alone."""

    ROUNDS = 10
    MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
    KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

    def __init__(self, seed: int) -> None:
        self._key = (seed & 0xFFFFFFFF, seed >> 32)
        self._draws = 0

    def randn(self, count: int) -> Floats:
        """The next `count` numbers, as `torch.randn(count, device="cuda")` gives them."""
        first, second, _, _ = self._words(self._draws, count)
        self._draws += 1
        u = first * 2.0**-32 + 2.0**-33
        v = (second * 2.0**-32 + 2.0**-33) * (2 * math.pi)
        return (np.sqrt(-2 * np.log(u)) * np.sin(v)).astype(np.float32)

    def _words(self, draw: int, count: int) -> list[npt.NDArray[np.uint64]]:
        """Four 32-bit words for each counter (draw, 0, i, 0)."""
        zeros = np.zeros(count, np.uint64)
        counter = [zeros + np.uint64(draw), zeros, np.arange(count, dtype=np.uint64), zeros]
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        for turn in range(self.ROUNDS):
            keys = [
                np.uint64((key + turn * step) & 0xFFFFFFFF)
                for key, step in zip(self._key, self.KEY_STEPS, strict=True)
            ]
            product0 = counter[0] * self.MULTIPLIERS[0]
            product1 = counter[2] * self.MULTIPLIERS[1]
            counter = [
                (product1 >> shift) ^ counter[1] ^ keys[0],
                product1 & low,
                (product0 >> shift) ^ counter[3] ^ keys[1],
                product0 & low,
            ]
        return counter


RNGS: Mapping[str, Callable[[int], Generator]] = {
    "cpu": TorchCpuGenerator, "cuda": PhiloxGenerator}
