"""Attention beyond what its kernel computes, against the reference of the onnx package."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx_reference import compare

from smalti.errors import InputError
from smalti.frontend.onnx import load

RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((2, heads, tokens, 4)).astype(np.float32)
           for heads, tokens in ((4, 3), (2, 5), (2, 5)))
OPERANDS = "float[2, 4, 3, 4] q, float[2, 2, 5, 4] k, float[2, 2, 5, 4] v"


@pytest.mark.parametrize("mode", range(4))
def test_scores_are_given_from_where_they_are_asked(mode: int) -> None:
    """Without a cap at place 0: there the reference caps, and the standard's own body does not."""
    cap = "softcap = 2.0, " if mode else ""
    mask = np.array([[True, True, False], [False, False, False], [True, False, True]])
    compare(f"""
        <ir_version: 13, opset_import: ["" : 25]>
        m ({OPERANDS}, bool[3, 3] mask) => (float[2, 4, 3, 4] y, float[2, 4, 3, 5] scores) {{
            y, pk, pv, scores = Attention <{cap}qk_matmul_output_mode = {mode}>
                (q, k, v, mask)
        }}""", {"q": Q, "k": K, "v": V, "mask": mask})


@pytest.mark.parametrize("window", ["", ", left_window_size = 1", ", right_window_size = 0"])
@pytest.mark.parametrize("causal", [0, 1])
def test_lengths_of_the_keys_may_be_known_in_a_run_only(causal: int, window: str) -> None:
    compare(f"""
        <ir_version: 13, opset_import: ["" : 25]>
        m ({OPERANDS}, int64[2] lengths) => (float[2, 4, 3, 4] y) {{
            y = Attention <is_causal = {causal}{window}> (q, k, v, "", "", "", lengths)
        }}""", {"q": Q, "k": K, "v": V, "lengths": np.array([5, 2])})


def test_flexible_attention_runs_the_bodies_of_the_model() -> None:
    compare(f"""
        <ir_version: 13, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
        m ({OPERANDS}, float half) => (float[2, 4, 3, 4] y) {{
            y = ai.onnx.preview.FlexAttention <
                score_mod = bent (float[b, h, l, s] s) => (float[b, h, l, s] t) {{ t = Tanh(s) }},
                prob_mod = less (float[b, h, l, s] p) => (float[b, h, l, s] r) {{
                    c = Constant <value_float = 0.5> ()
                    r = Mul(p, c)
                }}> (q, k, v)
        }}""", {"q": Q, "k": K, "v": V, "half": np.float32(0.5)})


def test_a_place_of_the_scores_that_there_is_not_is_refused() -> None:
    model = parser.parse_model(f"""
        <ir_version: 13, opset_import: ["" : 25]>
        m ({OPERANDS}) => (float[2, 4, 3, 4] y, float[2, 4, 3, 5] scores) {{
            y, pk, pv, scores = Attention <qk_matmul_output_mode = 4> (q, k, v)
        }}""")
    with pytest.raises(InputError, match="qk_matmul_output_mode 4; 0 to 3"):
        load(model)
