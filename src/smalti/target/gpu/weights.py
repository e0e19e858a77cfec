"""Weights as products want them in memory of the device.

    from [o][c][r][s]      to [r][s][c][part][o of the part]

o is padded to vectors of 4, and the depth to whole chunks, with zeros. Quantised weights are
widened.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised
from smalti.schedule.group import GroupContraction
from smalti.target.gpu.lowered import Packed
from smalti.target.gpu.product import Product

VECTOR = 4
BLOCK = 64
"""Channels along both axes that are turned at a time, in cache."""


def padded(columns: int) -> int:
    """Channels of a part in a packed weight."""
    return -(-columns // VECTOR) * VECTOR


def packed_weight(work: Product, schedule: GroupContraction) -> Packed:
    """How the weight of a contraction is laid out under a schedule."""
    e, depth = work.extents, work.depth
    shape = (-(-depth // schedule.tile_k) * schedule.tile_k, e.parts, padded(e.o))

    def pack(given: np.ndarray | Quantised) -> np.ndarray:
        values = given.floats() if isinstance(given, Quantised) else np.asarray(given)
        values = values.reshape(e.parts, e.o, e.c, e.r * e.s)
        packed = np.zeros(shape, DTYPES[schedule.weights])
        target = packed[:depth].reshape(e.r * e.s, e.c, *shape[1:])
        for part, o, c in product(range(e.parts), range(0, e.o, BLOCK), range(0, e.c, BLOCK)):
            block = values[part, o:o + BLOCK, c:c + BLOCK].astype(packed.dtype)
            target[:, c:c + BLOCK, part, o:o + len(block)] = block.transpose(2, 1, 0)
        return packed

    rows, parts, columns = shape
    layout = f"{schedule.weights} [r s c {rows}][part {parts}][o {columns}]"
    return Packed("weight", layout, schedule.weights, rows * parts * columns, pack)
