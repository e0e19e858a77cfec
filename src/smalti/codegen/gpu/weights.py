"""Weights as products want them in memory of the device.

    from [o][c][r][s]      to [r][s][c][part][o of the part]
                           or [r][s][c / 8][part][o of the part][8 of c]   for the matrix unit

o is padded to vectors of 4, and the depth to whole chunks, with zeros. The matrix unit takes both
factors along the depth: 8 halves of it are 16 bytes, which an invocation reads at once, and next to
them those of the next column. Where matrices are read where they are, blocks are as deep as these:
then a matrix lies in one piece. Quantised ones: `quantised.py`; bytes: `byte_weights.py`.
"""

from __future__ import annotations

from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.product import Product
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.gpu.weight_layout import Packed
from smalti.graph.quantised import FORMATS
from smalti.schedule.group import BYTES, WIDE_BYTES, WORD_OF_BYTES, GroupContraction
from smalti.schedule.merge import bytes_excess

VECTOR = 4
"""Elements that are read and written at once, where they lie so."""
WIDE = 8
"""Halves that are read and staged at once, as four words, where they lie so: 16 bytes, the most of
any device."""


def padded(columns: int) -> int:
    """Channels of a part in a packed weight."""
    return -(-columns // VECTOR) * VECTOR


def packed_weight(work: Product, schedule: GroupContraction
                  ) -> Packed | PackedGroups | PackedBytes:
    """How the weight of a contraction is laid out under a schedule."""
    if schedule.weights in FORMATS:
        return packed_groups(work, schedule)
    if schedule.weights == BYTES:
        return packed_bytes(work, schedule)
    e, chunk, block = work.extents, schedule.tile_k, 1
    if schedule.matrix:
        block = schedule.shape[2] if schedule.direct else WIDE
    return Packed("weight", schedule.weights, e.parts, e.o, e.c, e.r * e.s,
                  -(-work.depth // chunk) * chunk, padded(e.o), block)


def packed_groups(work: Product, schedule: GroupContraction) -> PackedGroups:
    """The same of a quantised weight, for which schedules make no difference."""
    e = work.extents
    return PackedGroups("weight", schedule.weights, e.parts, e.o, e.c, e.r * e.s, padded(e.o))


def packed_bytes(work: Product, schedule: GroupContraction) -> PackedBytes:
    """The same of a weight of integers."""
    e, chunk = work.extents, schedule.tile_k
    zero = int(dict(work.kernel.options).get("weight_zero", 0))
    block = WORD_OF_BYTES
    if schedule.matrix:
        block = schedule.shape[2] if schedule.direct else WIDE_BYTES
    return PackedBytes("weight", e.parts, e.o, e.c, e.r * e.s, -(-work.depth // chunk) * chunk,
                       padded(e.o), zero, bytes_excess(work.kernel), block)
