"""ONNX models become programs, with the weights of their file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from smalti.errors import DeviceError
from smalti.frontend.onnx import OnnxModel, load
from smalti.frontend.onnx.model import Shapes
from smalti.runtime.compilation import compile_graph
from smalti.runtime.interface import Program
from smalti.runtime.staged import INTERPRETED_MAX, StagedProgram


def compile_model(model: Any, *, shapes: Shapes | None = None,
                  precision: str = "f32", threads: int | None = None, target: str | None = None,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None, like: Program | None = None,
                  interpreted_max: int = INTERPRETED_MAX, device: str = "cpu") -> Program:
    """A program that computes an ONNX model, its weights bound.

    `shapes` fixes what the model leaves open, see `frontend.onnx.load`; the other options are those
    of `compile_graph`. With `like`, a program of the same model and weights for other shapes,
    packed weights are shared. Where shapes or branches depend on values, stages are compiled in the
    first run that needs them, and those of at most `interpreted_max` operations and elements run
    with numpy. Raises as `load` and `compile_graph` do.

    >>> import numpy as np
    >>> from onnx import parser
    >>> program = compile_model(parser.parse_model('''
    ...     <ir_version: 9, opset_import: ["" : 20]>
    ...     places (float[4] x) => (int64[1, n] y) { y = NonZero(x) }'''), threads=1)
    >>> program.run({"x": np.array([0, 2, 0, 3], np.float32)})["y"]
    array([[1, 3]])
    """
    loaded = model if isinstance(model, OnnxModel) else load(model, shapes)
    compile = partial(compile_graph, precision=precision, threads=threads, target=target,
                      objective=objective, progress=progress, like=like, device=device)
    if not loaded.static:
        return StagedProgram(loaded, compile, interpreted_max)
    try:
        program = compile(loaded.graph)
    except MemoryError as error:
        raise DeviceError(f"{loaded.name}: {error or 'memory is full'}; choose a smaller size"
                          ) from None
    if loaded.parameters:
        program.bind(loaded.parameters.__getitem__, like=like)
    return program
