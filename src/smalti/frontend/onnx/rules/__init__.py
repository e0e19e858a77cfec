"""The rules that translate ONNX operators, one module for each family of operators; importing this
package fills `registry.RULES`."""

from smalti.frontend.onnx.rules import (
    attention,
    chance,
    collections,
    contraction,
    contributed,
    contributed_quantized,
    control,
    einstein,
    indexing,
    movement,
    normalization,
    pictures,
    pointwise,
    pooling,
    quantization,
    recurrent,
    reduction,
    resizing,
    sampling,
    selection,
    shapes,
    signal,
    text,
)

__all__ = ["attention", "chance", "collections", "contraction", "contributed",
           "contributed_quantized", "control", "einstein", "indexing", "movement",
           "normalization", "pictures", "pointwise", "pooling", "quantization", "recurrent",
           "reduction", "resizing", "sampling", "selection", "shapes", "signal", "text"]
