"""The encoder of T5 v1.1 (Raffel et al. 2020, arXiv:1910.10683), with gated MLPs (Shazeer 2020).

Attention is not scaled by the width of a head, and positions enter as a bias of the scores: one
number for each head and each bucket of distances. Block 0 holds these biases; all blocks add them.
"""

from __future__ import annotations

import math

import numpy as np

from smalti.graph import Graph, Value
from smalti.models.transformer_config import T5Config
from smalti.nn import embedding, gelu_tanh, hidden_scores, linear, rms_norm

PREFIX = "text_encoders.t5xxl.transformer"


def t5_graph(config: T5Config, batch: int, length: int, masked: bool = False) -> Graph:
    """tokens i32[batch, length] -> context f32[batch, length, hidden_size].

    With `masked` an input `mask` f32[batch, length] is 1 for tokens that others see, 0 for those
    that none sees.

    >>> from smalti.models import T5_XXL
    >>> g = t5_graph(T5_XXL, batch=1, length=256)
    >>> g.outputs["context"].shape, len(g.parameters)
    ((1, 256, 4096), 219)
    """
    g = Graph("t5")
    ids = g.input("tokens", (batch, length), "i32")
    mask = g.input("mask", (batch, length)) if masked else None
    with g.scope(PREFIX):
        x = embedding(ids, "shared", config.vocab_size, config.hidden_size)     # [n, t, c]
        with g.scope("encoder.block.0.layer.0.SelfAttention"):
            bias = _position_bias(g, length, config)                            # [1, heads, t, t]
        if mask is not None:
            bias = bias + hidden_scores(mask)                                   # [n, heads, t, t]
        for i in range(config.layers):
            with g.scope(f"encoder.block.{i}"):
                x = _block(x, bias, config)
        g.output("context", rms_norm(x, "encoder.final_layer_norm", config.eps))
    return g


def position_buckets(length: int, buckets: int, distance_max: int) -> np.ndarray:
    """Bucket i32[length, length] of the distance from each token (row) to each other (column).

    The first half of `buckets` is for what stands before a token and itself, the second for what
    comes after. Of each, half are for one distance each, the others grow with its logarithm.

    >>> position_buckets(12, 32, 128)[0]
    array([ 0, 17, 18, 19, 20, 21, 22, 23, 24, 24, 24, 24], dtype=int32)
    """
    places = np.arange(length)
    distance = places[None, :] - places[:, None]
    side, near = buckets // 2, buckets // 4
    size = np.abs(distance)
    far = np.log(np.maximum(size, near).astype(np.float32) / near)
    far = near + (far / np.float32(math.log(distance_max / near)) * (side - near)).astype(int)
    found = np.where(size < near, size, np.minimum(far, side - 1))
    return (found + np.where(distance > 0, side, 0)).astype(np.int32)


def _position_bias(g: Graph, length: int, config: T5Config) -> Value:
    """What positions add to the scores [1, heads, t, t]."""
    found = position_buckets(length, config.buckets, config.distance_max)
    bias = embedding(g.constant(found), "relative_attention_bias", config.buckets, config.heads)
    return bias.transpose(2, 0, 1).reshape(1, config.heads, length, length)


def _block(x: Value, bias: Value, config: T5Config) -> Value:
    """x + attention(norm(x)), then x + mlp(norm(x)); x [n, t, c]."""
    g, width = x.graph, config.hidden_size
    with g.scope("layer.0"):
        y = rms_norm(x, "layer_norm", config.eps)
        with g.scope("SelfAttention"):
            q, k, v = (linear(y, name, config.inner_size, bias=False) for name in "qkv")
            y = g.apply("attention", q, k, v, bias, num_heads=config.heads, scale=1.0)
            x = x + linear(y, "o", width, bias=False)
    with g.scope("layer.1"):
        y = rms_norm(x, "layer_norm", config.eps)
        with g.scope("DenseReluDense"):
            gate, y = (linear(y, name, config.mlp_size, bias=False) for name in ("wi_0", "wi_1"))
            return x + linear(gelu_tanh(gate) * y, "wo", width, bias=False)
