"""Weights as products want them in memory of the device.

    from [o][c][r][s]      to [r][s][c][part][o of the part]

o is padded to vectors of 4, and the depth to whole chunks, with zeros.
"""

from __future__ import annotations

from smalti.codegen.gpu.lowered import Packed
from smalti.codegen.gpu.product import Product
from smalti.schedule.group import GroupContraction

VECTOR = 4


def padded(columns: int) -> int:
    """Channels of a part in a packed weight."""
    return -(-columns // VECTOR) * VECTOR


def packed_weight(work: Product, schedule: GroupContraction) -> Packed:
    """How the weight of a contraction is laid out under a schedule."""
    e, chunk = work.extents, schedule.tile_k
    return Packed("weight", schedule.weights, e.parts, e.o, e.c, e.r * e.s,
                  -(-work.depth // chunk) * chunk, padded(e.o))
