"""ONNX models of a few nodes, compared with the reference implementation of the `onnx` package."""

from __future__ import annotations

import numpy as np
from onnx import parser
from onnx.reference import ReferenceEvaluator

from smalti.runtime.models import compile_model


def compare(text: str, given: dict[str, np.ndarray], tolerance: float = 1e-5,
            **options: str) -> None:
    """Hold what Smalti computes, with `options` of compiling, against the reference of the onnx
    package."""
    model = parser.parse_model(text)
    expected = ReferenceEvaluator(model).run(None, given)
    found = compile_model(model, threads=1, **options).run(given)
    for name, wanted in zip((value.name for value in model.graph.output), expected, strict=True):
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name].astype(np.float64), wanted.astype(np.float64),
                                   tolerance, tolerance)
