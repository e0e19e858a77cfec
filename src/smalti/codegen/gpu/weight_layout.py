"""How weights of floats are laid out in memory of a device."""

from __future__ import annotations

from itertools import product

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised

BLOCK = 64
"""Channels of weights along both axes that are turned at a time, in cache."""


@dataclass(frozen=True)
class Packed:
    """How the weight of a buffer is laid out in memory of the device:

        from [part][o of the part][c][tap]      to [row][part][column] of `dtype`

    Rows are taps times c, columns are o of the part; those beyond are 0. In blocks of `block` rows
    it is [row / block][part][column][row in the block].
    """

    buffer: str
    dtype: str
    parts: int
    o: int
    c: int
    taps: int
    rows: int
    columns: int
    block: int = 1

    @property
    def elements(self) -> int:
        """Elements of it, zeros included."""
        return self.rows * self.parts * self.columns

    @property
    def bytes(self) -> int:
        """Bytes of it."""
        return self.elements * np.dtype(DTYPES[self.dtype]).itemsize

    def pack(self, given: np.ndarray | Quantised) -> np.ndarray:
        """The weight as the device wants it. Quantised ones are widened."""
        values = given.floats() if isinstance(given, Quantised) else np.asarray(given)
        values = values.reshape(self.parts, self.o, self.c, self.taps)
        packed = np.zeros((self.rows, self.parts, self.columns), DTYPES[self.dtype])
        target = packed[:self.taps * self.c].reshape(self.taps, self.c, *packed.shape[1:])
        for part, o, c in product(range(self.parts), range(0, self.o, BLOCK),
                                  range(0, self.c, BLOCK)):
            block = values[part, o:o + BLOCK, c:c + BLOCK].astype(packed.dtype)
            target[:, c:c + BLOCK, part, o:o + len(block)] = block.transpose(2, 1, 0)
        if self.block == 1:
            return packed
        blocks = packed.reshape(-1, self.block, self.parts, self.columns)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))
