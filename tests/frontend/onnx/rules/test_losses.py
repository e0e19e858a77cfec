"""Losses of training, against the reference of the onnx package."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx_reference import compare

from smalti.errors import InputError
from smalti.frontend.onnx import load

SCORES = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
CLASSES = np.array([[0, 4], [2, 2], [1, 3]], np.int64)
WEIGHTS = np.array([1, 2, 0.5, 3, 1], np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", ["", ", ignore_index = 2", ", ignore_index = -2"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_weigh_and_leave_out_classes(reduction: str, ignored: str, weighted: bool) -> None:
    classes = np.where(CLASSES == 2, -2, CLASSES) if "-2" in ignored else CLASSES
    given = {"x": SCORES, "t": classes} | ({"w": WEIGHTS} if weighted else {})
    more = ", float[5] w" if weighted else ""
    shape = "3, 2" if reduction == "none" else ""
    compare(f"""
        <ir_version: 9, opset_import: ["" : 20]>
        m (float[3, 5, 2] x, int64[3, 2] t{more}) => (
                float[{shape}] a, float[3, 5, 2] logs, float[{shape}] b) {{
            a, logs = SoftmaxCrossEntropyLoss <reduction = "{reduction}"{ignored}>
                (x, t{", w" * weighted})
            b = NegativeLogLikelihoodLoss <reduction = "{reduction}"{ignored}>
                (logs, t{", w" * weighted})
        }}""", given)


def test_an_unknown_reduction_is_refused() -> None:
    model = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        m (float[3, 5] x, int64[3] t) => (float y) {
            y = NegativeLogLikelihoodLoss <reduction = "most"> (x, t)
        }""")
    with pytest.raises(InputError, match="reduction 'most'"):
        load(model)
