"""Quantised weights as programs hold them: whole numbers with a scale for each group of channels.

    w[o, c] = scale[o, c // group] * code[o, c] (+ minimum[o, c // group])

A group is a few words of 32 bits: scale and minimum as f32, then its codes, the first in the
lowest bits. A matrix is thus one of words, in rows of groups, and packing it moves words. Codes are
signed, or counted up from the minimum. A product of scale and code is an f32 for every block format
of ggml, so that `floats` is what any reader of the format computes, bit for bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass

Floats = npt.NDArray[np.float32]
WORD_BITS = 32
"""Codes are packed into words of this many bits, which GPUs read at once."""


@dataclass(frozen=True)
class Format:
    """Bits of a code, channels of a group, and whether a group has a minimum."""

    bits: int
    group: int
    minimum: bool = False

    @property
    def heads(self) -> int:
        """Words in front of the codes of a group."""
        return 2 if self.minimum else 1

    @property
    def codes(self) -> int:
        """Codes in a word."""
        return WORD_BITS // self.bits

    @property
    def words(self) -> int:
        """Words of a group."""
        return self.heads + self.group // self.codes

    @property
    def element_bytes(self) -> float:
        """Bytes of a weight, its share of scale and minimum included."""
        return 4 * self.words / self.group

    def words_of(self, elements: int) -> int:
        """Words of `elements`, which are whole groups."""
        return elements // self.group * self.words


FORMATS = {"q8": Format(8, 32), "q8_min": Format(8, 32, True), "q8_16": Format(8, 16),
           "q8_16_min": Format(8, 16, True),
           "q4": Format(4, 32), "q4_min": Format(4, 32, True), "q4_16": Format(4, 16),
           "q4_16_min": Format(4, 16, True)}
"""By the dtype of the storage that holds such weights."""


def of_eight_bits(dtype: str) -> str:
    """The format of 8 bits with groups as those of `dtype`: what changed weights are rounded to.

    >>> of_eight_bits("q4_16_min"), of_eight_bits("q8")
    ('q8_16_min', 'q8')
    """
    return dtype.replace("q4", "q8")


@dataclass(frozen=True)
class Quantised:
    """A weight of `shape` in the format `dtype`: `words` [groups, words of a group]."""

    dtype: str
    words: npt.NDArray[np.uint32]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, codes: npt.NDArray[np.integer], scales: Floats, minima: Floats | None,
           shape: tuple[int, ...]) -> Quantised:
        """Codes [groups, channels of a group], scales and minima [groups].

        >>> Quantised.of("q8", np.arange(32)[None], np.float32([2]), None, (1, 32)).floats()[0, :3]
        array([0., 2., 4.], dtype=float32)
        """
        form = FORMATS[dtype]
        words = np.empty((len(codes), form.words), np.uint32)
        words[:, 0] = np.ascontiguousarray(scales, np.float32).view(np.uint32)
        if form.minimum:
            words[:, 1] = np.ascontiguousarray(minima, np.float32).view(np.uint32)
        low = np.ascontiguousarray(codes.astype(np.int8)).view(np.uint8)
        if form.bits == 4:
            low = low[:, 0::2] & np.uint8(15) | low[:, 1::2] << np.uint8(4)
        words[:, form.heads:] = np.ascontiguousarray(low).view(np.uint32)
        return cls(dtype, words, shape)

    @property
    def heads(self) -> Floats:
        """Scale and minimum of each group."""
        return self.words[:, :FORMATS[self.dtype].heads].view(np.float32)

    @property
    def bounds(self) -> Floats:
        """What no weight of each group is larger than; infinity or NaN where one may be so."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.abs(self.heads[:, 0]) * np.float32(1 << FORMATS[self.dtype].bits) + np.abs(
                self.heads[:, 1:]).sum(axis=1)

    def floats(self) -> Floats:
        """The weights as f32."""
        form = FORMATS[self.dtype]
        low = np.ascontiguousarray(self.words[:, form.heads:]).view(np.uint8)
        if form.bits == 4:
            low = np.stack([low & 15, low >> 4], axis=2).reshape(len(low), form.group)
        codes = low.astype(np.int16)
        if not form.minimum:
            half = 1 << form.bits - 1
            codes = (codes ^ half) - half
        values = self.heads[:, :1] * codes.astype(np.float32)
        if form.minimum:
            values += self.heads[:, 1:]
        return values.reshape(self.shape)


def quantised(values: npt.ArrayLike, dtype: str) -> Quantised:
    """`values`, whose last axis is whole groups, rounded to the nearest codes of each group.

    Where a format has no minimum, the largest of a group is exact; where it has one, least and
    largest are. The error is at most half a scale: of "q8" 0.4 % of the largest of the group.

    >>> quantised(np.arange(-15, 17).reshape(1, 32), "q8").floats()[0, -1]
    np.float32(16.0)
    """
    form, array = FORMATS[dtype], np.asarray(values, np.float32)
    groups = np.ascontiguousarray(array).reshape(math.prod(array.shape) // form.group, form.group)
    if form.minimum:
        least, most = groups.min(axis=1), (1 << form.bits) - 1
        scales, range_ = (groups.max(axis=1) - least) / np.float32(most), (0, most)
        shifted = groups - least[:, None]
    else:
        least, most = None, (1 << form.bits - 1) - 1
        scales, range_ = np.abs(groups).max(axis=1) / np.float32(most), (-most, most)
        shifted = groups
    scaled = np.divide(shifted, scales[:, None], out=np.zeros_like(shifted),
                       where=scales[:, None] != 0)
    codes = np.rint(scaled).clip(*range_)
    return Quantised.of(dtype, codes.astype(np.int16), scales, least, array.shape)
