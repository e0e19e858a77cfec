"""Pictures in tiles that fade into each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

Floats = np.ndarray


def tiles(extent: int, tile: int, overlap: int, step: int = 1,
          scale: int = 1) -> Iterator[tuple[int, int, Floats]]:
    """First and last pixel of tiles of one size that cover `extent`, and a weight for each pixel
    of what is made of them, which is `scale` times as large.

    Neighbours share `overlap` pixels at least, and fade into each other over half as many in the
    middle of them: what is computed nearest to an edge of a tile knows least of what is around.
    Weights of all tiles add up to 1. Tiles begin at multiples of `step`.

    >>> [(first, end) for first, end, _ in tiles(100, 48, 16)]
    [(0, 48), (26, 74), (52, 100)]
    """
    if extent <= tile:
        yield 0, extent, np.ones(scale * extent, np.float32)
        return
    count = -(-(extent - overlap) // (tile - overlap))
    starts = [round(i * (extent - tile) / (count - 1) / step) * step for i in range(count)]
    middles = [(before + tile + after) / 2 for before, after in pairwise(starts)]
    places = (np.arange(scale * extent, dtype=np.float32) + 0.5) / scale
    begun = [np.ones_like(places),
             *(np.clip((places - middle) / (overlap / 2) + 0.5, 0, 1) for middle in middles),
             np.zeros_like(places)]
    for start, (own, following) in zip(starts, pairwise(begun), strict=True):
        yield start, start + tile, (own - following)[scale * start:scale * (start + tile)]
