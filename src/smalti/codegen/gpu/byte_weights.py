"""Weights of products of integers as products want them in memory of the device.

    from [o][c][r][s]      to [r s c / 4][part][o of the part] words of four bytes with a sign,
                              which are neighbours along c
                           or [r s c / 16][part][o of the part][4] words, for the matrix unit
    and behind them        [part][o of the part], what the sum of each column begins with, as i32

Where matrices are read where they are, blocks are as deep as these, not 16. o is padded to vectors
of 4, and the depth to whole chunks, with zeros.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from smalti.dataclass import dataclass
from smalti.schedule.group import WORD_OF_BYTES


@dataclass(frozen=True)
class PackedBytes:
    """How the weight of a buffer is laid out in memory of the device, as above.

    Bytes are those that are given less their `zero` point. Those of the patch are `less` more than
    they mean, so a sum begins with -less times the sum of the weights of its column. `rows` are
    places along the depth, and `columns` channels of a part, both with those that are padded; in
    blocks of `block` rows those of a column lie side by side.
    """

    buffer: str
    parts: int
    o: int
    c: int
    taps: int
    rows: int
    columns: int
    zero: int
    less: int
    block: int = WORD_OF_BYTES
    dtype: ClassVar[str] = "u32"

    @property
    def starts_at(self) -> int:
        """The word at which what sums begin with does."""
        return self.rows // WORD_OF_BYTES * self.parts * self.columns

    @property
    def elements(self) -> int:
        """Words of it."""
        return self.starts_at + self.parts * self.columns

    @property
    def bytes(self) -> int:
        """Bytes of it."""
        return 4 * self.elements

    def pack(self, given: np.ndarray) -> np.ndarray:
        """The words of a weight as the device wants them.

        >>> w = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int8)
        >>> PackedBytes("weight", 1, 2, 4, 1, 4, 4, 0, 2).pack(w).view(np.int32).tolist()
        [67305985, 134678021, 0, 0, -20, -52, 0, 0]
        """
        values = given.reshape(self.parts, self.o, self.c, self.taps)
        signed = (values.astype(np.int16) - self.zero).astype(np.int8)
        padded = np.zeros((self.rows, self.parts, self.columns), np.int8)
        padded[:self.taps * self.c].reshape(self.taps, self.c, *padded.shape[1:])[..., :self.o] = (
            signed.transpose(3, 2, 0, 1))
        blocks = padded.reshape(-1, self.block, self.parts * self.columns)
        words = np.ascontiguousarray(blocks.transpose(0, 2, 1)).view(np.uint32)
        starts = -self.less * padded.sum(axis=0, dtype=np.int64)
        return np.concatenate([words.reshape(-1), starts.astype(np.int32).view(np.uint32).ravel()])
