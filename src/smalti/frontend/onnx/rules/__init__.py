"""The rules, a family of operators each; importing this package fills `registry.RULES`."""

from smalti.frontend.onnx.rules import (
    contraction, indexing, movement, normalization, pointwise, pooling, quantization, recurrent,
    reduction, resizing, sampling, shapes, signal,
)

__all__ = ["contraction", "indexing", "movement", "normalization", "pointwise", "pooling",
           "quantization", "recurrent", "reduction", "resizing", "sampling", "shapes", "signal"]
