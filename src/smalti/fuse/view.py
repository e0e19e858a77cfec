"""Storages and strided views of them, which reshape, transpose, slice and expand without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph.operation import DTYPES


@dataclass(eq=False)
class Storage:
    """Memory of one stored value.

    `kind` is "input" or "parameter" (given by the caller under `name`), "constant" (with its
    `data`) or "arena" (a value between kernels). `size` is in elements.
    """

    kind: str
    size: int
    dtype: str = "f32"
    name: str = ""
    data: np.ndarray | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.element_bytes


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a storage. `offset` and `strides`, one for each axis, are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def transpose(self, perm: Sequence[int]) -> View:
        """The view with its axes in the order `perm`."""
        return View(self.storage, self.offset, tuple(self.shape[i] for i in perm),
                    tuple(self.strides[i] for i in perm))

    def slice(self, axis: int, start: int, end: int) -> View:
        """The elements from `start` to `end` along `axis`."""
        shape = (*self.shape[:axis], end - start, *self.shape[axis + 1:])
        return View(self.storage, self.offset + start * self.strides[axis], shape, self.strides)

    def expand(self, shape: Sequence[int]) -> View:
        """The view broadcast to `shape`: axes of extent 1 and new leading axes get strides of 0."""
        extra = len(shape) - len(self.shape)
        strides = tuple(0 if old == 1 and new != 1 else stride
                        for old, new, stride in zip(self.shape, shape[extra:], self.strides))
        return View(self.storage, self.offset, tuple(shape), (0,) * extra + strides)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same elements in another shape, or None when strides cannot express it."""
        old = [(n, s) for n, s in zip(self.shape, self.strides) if n != 1]
        strides: list[int] = []
        position = 0
        remaining = [n for n in shape]
        at = 0
        while at < len(remaining):
            extent = remaining[at]
            if extent == 1:
                strides.append(0)
                at += 1
                continue
            group = [old[position]]
            position += 1
            product, wanted, last = group[0][0], extent, at
            while product != wanted:
                if product < wanted:
                    if group[-1][1] != old[position][0] * old[position][1]:
                        return None
                    group.append(old[position])
                    product *= old[position][0]
                    position += 1
                else:
                    last += 1
                    wanted *= remaining[last]
            inner = group[-1][1]
            extents = remaining[at:last + 1]
            found: list[int] = []
            for n in reversed(extents):
                found.append(0 if n == 1 else inner)
                inner *= n
            strides.extend(reversed(found))
            at = last + 1
        return View(self.storage, self.offset, tuple(shape), tuple(strides))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array whose last axis is innermost."""
    strides, size = [], 1
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))


def stored(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in which a new value is stored: images [n, c, h, w] channels-last, all else
    row-major.

    >>> stored((2, 3, 8, 8))
    (192, 1, 24, 3)
    """
    if len(shape) != 4:
        return row_major(shape)
    n, y, x, c = row_major((shape[0], shape[2], shape[3], shape[1]))
    return (n, c, y, x)


FEW_CHANNELS = 4
"""Input images of up to so many channels are stored as the caller gives them, not channels-last:
pictures have 3 or 4 channels, latents often 4."""


def given(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in which an input is stored: those of `stored`, but for images of few channels,
    which stay row-major as the caller gives them.

    Copying such an input in is a single copy of memory, and pixels of a channel lie side by side.

    >>> given((2, 3, 8, 8)), given((2, 5, 8, 8))
    ((192, 64, 8, 1), (320, 1, 40, 5))
    """
    few = len(shape) == 4 and shape[1] <= FEW_CHANNELS
    return row_major(shape) if few else stored(shape)
