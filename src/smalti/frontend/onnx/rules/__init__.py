"""The rules, a family of operators each; importing this package fills `registry.RULES`."""

from smalti.frontend.onnx.rules import (
    contraction, movement, normalization, pointwise, pooling, reduction, shapes,
)

__all__ = ["contraction", "movement", "normalization", "pointwise", "pooling", "reduction",
           "shapes"]
