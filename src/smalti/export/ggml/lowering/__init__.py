"""Each operation of the graph in terms of ggml's; `ops.h` has those that are several of them.

A lowering takes the builder and a node and gives the tensor of its result, or raises NotExportable.
"""

from smalti.export.ggml.lowering.movement import INTEGERS, MOVEMENT
from smalti.export.ggml.lowering.normalization import NORMALIZATION
from smalti.export.ggml.lowering.pointwise import POINTWISE
from smalti.export.ggml.lowering.pooling import POOLING
from smalti.export.ggml.lowering.products import PRODUCTS, is_depthwise, is_swap

LOWERINGS = {**POINTWISE, **PRODUCTS, **NORMALIZATION, **POOLING, **MOVEMENT}

__all__ = ["INTEGERS", "LOWERINGS", "is_depthwise", "is_swap"]
