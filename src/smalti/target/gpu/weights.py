"""Weights as products want them in memory of the device.

    from [o][c][r][s]      to [r][s][c][part][o of the part]

o is padded to vectors of 4, and the depth to whole chunks, with zeros. Quantised weights are
widened.
"""

from __future__ import annotations

import numpy as np

from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised
from smalti.schedule.group import GroupContraction
from smalti.target.gpu.lowered import Packed
from smalti.target.gpu.product import Product

VECTOR = 4


def padded(columns: int) -> int:
    """Channels of a part in a packed weight."""
    return -(-columns // VECTOR) * VECTOR


def packed_weight(product: Product, schedule: GroupContraction) -> Packed:
    """How the weight of a contraction is laid out under a schedule."""
    e, depth = product.extents, product.depth
    shape = (-(-depth // schedule.tile_k) * schedule.tile_k, e.parts, padded(e.o))

    def pack(given: np.ndarray | Quantised) -> np.ndarray:
        values = given.floats() if isinstance(given, Quantised) else np.asarray(given)
        values = values.reshape(e.parts, e.o, e.c, e.r, e.s)
        packed = np.zeros(shape, DTYPES[schedule.weights])
        packed[:depth, :, :e.o] = values.transpose(3, 4, 2, 0, 1).reshape(depth, e.parts, e.o)
        return packed

    rows, parts, columns = shape
    layout = f"{schedule.weights} [r s c {rows}][part {parts}][o {columns}]"
    return Packed("weight", layout, schedule.weights, rows * parts * columns, pack)
