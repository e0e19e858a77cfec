"""The operations, one record each; importing this package fills `operation.OPERATIONS`."""

from smalti.graph.operations import (
    attention, contraction, movement, normalization, pointwise, pooling, rotary,
)

__all__ = ["attention", "contraction", "movement", "normalization", "pointwise", "pooling",
           "rotary"]
