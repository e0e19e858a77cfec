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
    losses,
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
    states,
    text,
)

__all__ = ["attention", "chance", "collections", "contraction", "contributed",
           "contributed_quantized", "control", "einstein", "indexing", "losses", "movement",
           "normalization", "pictures", "pointwise", "pooling", "quantization", "recurrent",
           "reduction", "resizing", "sampling", "selection", "shapes", "signal", "states", "text"]
