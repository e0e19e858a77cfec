"""Quantised weights in memory of the device: codes in words along the depth, scales behind them.

    from [part][o of the part][group][scale, (minimum,) codes]      as `graph.quantised` holds them
    to   [r s c / codes of a word][part][o]       a word each: codes of neighbours along the depth
         [group][part][o]                         a word each: scale, and minimum above it
         [group / 2][part][o]                     without minima: two scales of neighbours

A group is of neighbours in the file, where the window of a channel lies side by side: of 3x3, a
group of 32 is three or four channels. It stays what it is; a word of codes has those of one place
of the window, of up to three groups.

Codes are counted up from 0. Scales and minima are `short` floats of 16 bits: a sign, 5 bits of
exponent and 10 of mantissa as f16 has, but exponents begin at 2^-24, the least f16 above 0. So all
are normal numbers, where drivers may take subnormal f16 for 0; every f16 below 128 is one of them,
and other values are rounded to 11 bits, as to f16.
"""

from __future__ import annotations

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph.quantised import FORMATS, Format

MANTISSA_BITS = 10
"""As f16 has."""
SHIFT = 23 - MANTISSA_BITS
"""From the bits of an f32 to those of a short float."""
EXPONENT_LEAST, EXPONENTS = 127 - 24, 31
"""The exponent field of the f32 that the least short float is, which is the least f16 above 0, and
how many there are."""
WIDENED = 2.0 ** (EXPONENT_LEAST - 1)
"""What the bits of a short float are multiplied with once they stand where those of an f32 do."""
SHORT_MAX = (2 - 2.0 ** -MANTISSA_BITS) * 2.0 ** (EXPONENT_LEAST + EXPONENTS - 1 - 127)
"""The largest scale or minimum: just below 128. A group of 8 bits reaches 16256 with it, one of 4
bits 1024."""
ROWS_AT_ONCE = 64
"""Channels whose codes are moved at a time, in cache."""
RUN_MAX = 8
"""Codes along the depth that are unpacked together, at most."""


def shortened(values: np.ndarray, name: str = "a weight") -> np.ndarray:
    """f32 as short floats; below the least, 0. Raises InputError for what is too large.

    >>> [hex(short) for short in shortened(np.float32([0, 2**-24, 1, -1.5, 1e-9]))]
    ['0x0', '0x400', '0x6400', '0xe600', '0x0']
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign, size = bits >> 31, bits & np.uint32(0x7FFFFFFF)
    rounded = (size + ((1 << SHIFT - 1) - 1) + (size >> SHIFT & 1)) >> SHIFT
    least = EXPONENT_LEAST - 1 << MANTISSA_BITS
    short = np.where(rounded >= least + (1 << MANTISSA_BITS), rounded - least, 0)
    if short.size and short.max() >= EXPONENTS + 1 << MANTISSA_BITS:
        raise InputError(
            f"{name} has groups with a scale or minimum of {np.abs(values).max():.4g}, and "
            f"programs of GPUs take up to {SHORT_MAX:.4g}; give it as f16 or f32, or use the CPU")
    return (sign << 15 | short).astype(np.uint16)


@dataclass(frozen=True)
class PackedGroups:
    """How the quantised weight of a buffer is laid out in memory of the device, as above.

    The depth is taps times c. `columns` are channels of a part in whole vectors; what is there
    beyond is 0.
    """

    buffer: str
    format: str
    parts: int
    o: int
    c: int
    taps: int
    columns: int

    @property
    def dtype(self) -> str:
        """What a program reads."""
        return "u32"

    @property
    def form(self) -> Format:
        """What groups look like."""
        return FORMATS[self.format]

    @property
    def rows(self) -> int:
        """The depth."""
        return self.taps * self.c

    @property
    def width(self) -> int:
        """Words of a line: a column each."""
        return self.parts * self.columns

    @property
    def heads_at(self) -> int:
        """The word at which scales begin."""
        return self.rows // self.form.codes * self.width

    def touched(self, run: int) -> int:
        """Groups that a run of channels at one place of the window can be of.

        >>> PackedGroups("weight", "q8", 1, 8, 32, 9, 8).touched(8)
        3
        """
        return 1 if self.taps == 1 else ((run - 1) * self.taps - 1) // self.form.group + 2

    @property
    def lines(self) -> int:
        """Lines of scales: of all groups, and of those behind that the last run might touch."""
        groups = self.rows // self.form.group + self.touched(RUN_MAX) - 1
        return groups if self.form.minimum else -(-groups // 2)

    @property
    def elements(self) -> int:
        """Words of it."""
        return self.heads_at + self.lines * self.width

    @property
    def bytes(self) -> int:
        """Bytes of it."""
        return 4 * self.elements

    def pack(self, words: np.ndarray, name: str = "a weight") -> np.ndarray:
        """The words [channel, group, word of a group] of a weight as the device wants them.

        Raises InputError for scales that are too large, of the weight that is called `name`.
        """
        form = self.form
        packed = np.zeros(self.elements, np.uint32)
        codes, heads = np.split(packed, [self.heads_at])
        codes = codes.reshape(-1, self.parts, self.columns)
        heads = heads.reshape(-1, self.parts, self.columns)
        for part in range(self.parts):
            for first in range(0, self.o, ROWS_AT_ONCE):
                end = min(first + ROWS_AT_ONCE, self.o)
                rows = words[part * self.o + first:part * self.o + end]
                found = self._codes(rows[..., form.heads:])
                codes[:len(found), part, first:end] = found
                found = self._heads(rows[..., :form.heads], name)
                heads[:len(found), part, first:end] = found
        return packed

    def _codes(self, words: np.ndarray) -> np.ndarray:
        """Words [along the depth, channel] of codes that count up from 0."""
        form, count = self.form, len(words)
        flat = np.ascontiguousarray(words).reshape(count, -1)
        if not form.minimum:
            flat = flat ^ np.uint32(0x80808080 if form.bits == 8 else 0x88888888)
        if self.taps == 1:
            return flat.T
        each: np.ndarray = flat.view(np.uint8)
        if form.bits == 4:
            each = np.stack([each & 15, each >> 4], axis=2)
        turned: np.ndarray = np.ascontiguousarray(
            each.reshape(count, self.c // form.codes, form.codes, self.taps).transpose(3, 1, 0, 2))
        if form.bits == 4:
            turned = turned[..., 0::2] | turned[..., 1::2] << 4
        return turned.view(np.uint32).reshape(-1, count)

    def _heads(self, words: np.ndarray, name: str) -> np.ndarray:
        """Words [group, or two, channel] of scales and minima."""
        floats = np.ascontiguousarray(words).view(np.float32)
        short = shortened(floats, name).astype(np.uint32)
        if self.form.minimum:
            return (short[..., 0] | short[..., 1] << 16).T
        even = np.pad(short[..., 0], ((0, 0), (0, short.shape[1] % 2)))
        return (even[:, 0::2] | even[:, 1::2] << 16).T
