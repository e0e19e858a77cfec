"""The operations, one record each: shape rule, meaning in numpy, cost, decomposition.

Importing this package fills `operation.OPERATIONS`.
"""

from smalti.graph.operations import (
    attention,
    contraction,
    indexing,
    movement,
    normalization,
    ordering,
    pointwise,
    pooling,
    recurrent,
    rotary,
    sampling,
    signal,
    transposed,
)

__all__ = ["attention", "contraction", "indexing", "movement", "normalization", "ordering",
           "pointwise", "pooling", "recurrent", "rotary", "sampling", "signal", "transposed"]
