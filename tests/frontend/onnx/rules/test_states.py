"""Layers with a state, against the reference of the onnx package."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx_reference import compare

from smalti.errors import InputError
from smalti.frontend.onnx import load
from smalti.frontend.onnx.rules.states import UPDATES


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("update", UPDATES)
def test_linear_attention_follows_its_rule(update: str, heads: int) -> None:
    linear_attention(update, heads, tokens=5, past=heads == 4)


def test_linear_attention_over_more_tokens_than_are_unrolled() -> None:
    linear_attention("gated_delta", 2, tokens=300, past=True)


def linear_attention(update: str, heads: int, tokens: int, past: bool) -> None:
    decays, corrects = UPDATES[update]
    given = {"q": numbers(1, tokens, heads * 3), "k": numbers(1, tokens, 6, seed=1) / 3,
             "v": numbers(1, tokens, 10, seed=2)}
    if past:
        given["s"] = numbers(1, 2, 3, 5, seed=3)
    if decays:
        given["d"] = -np.abs(numbers(1, tokens, 6 if past else 2, seed=4))
    if corrects:
        given["b"] = np.abs(numbers(1, tokens, 1 if past else 2, seed=5)) / 2
    inputs = ", ".join(f"float[{','.join(map(str, x.shape))}] {name}" for name, x in given.items())
    reads = ", ".join(name if name in given else '""' for name in "qkvsdb")
    while reads.endswith(', ""'):
        reads = reads.removesuffix(', ""')
    compare(f"""
        <ir_version: 13, opset_import: ["" : 27]>
        m ({inputs}) => (float[1, {tokens}, {heads * 5}] y, float[1, 2, 3, 5] end) {{
            y, end = LinearAttention <update_rule = "{update}", q_num_heads = {heads},
                                      kv_num_heads = 2> ({reads})
        }}""", given, 1e-4)


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_a_causal_convolution_carries_what_it_saw(activation: str, past: bool) -> None:
    given = {"x": numbers(2, 3, 2), "w": numbers(3, 1, 4, seed=1), "b": numbers(3, seed=2)}
    if past:
        given["s"] = numbers(2, 3, 3, seed=3)
    compare(f"""
        <ir_version: 13, opset_import: ["" : 27]>
        m (float[2, 3, 2] x, float[3, 1, 4] w, float[3] b{", float[2, 3, 3] s" if past else ""})
            => (float[2, 3, 2] y, float[2, 3, 3] end) {{
            y, end = CausalConvWithState <activation = "{activation}"> (x, w, b{", s" * past})
        }}""", given)


def test_an_unknown_update_rule_is_refused() -> None:
    model = parser.parse_model("""
        <ir_version: 13, opset_import: ["" : 27]>
        m (float[1, 2, 4] q) => (float[1, 2, 4] y, float[1, 2, 2, 2] end) {
            y, end = LinearAttention <update_rule = "other", q_num_heads = 2, kv_num_heads = 2>
                (q, q, q)
        }""")
    with pytest.raises(InputError, match="update_rule 'other'"):
        load(model)
