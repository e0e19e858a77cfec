"""The CLIP text encoder (Radford et al. 2021, arXiv:2103.00020, section 2.4)."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import ClipTextConfig
from smalti.nn import embedding, gelu, layer_norm, linear, quick_gelu

PREFIX = "cond_stage_model.transformer.text_model"
ACTIVATIONS = {"gelu": gelu, "quick_gelu": quick_gelu}


def clip_text_graph(config: ClipTextConfig, batch: int, tokens: int = 77) -> Graph:
    """tokens i32[batch, tokens] -> hidden f32[batch, tokens, hidden_size].

    The output is the last hidden state after the final layer norm. With fewer `layers` in the
    configuration than in the checkpoint, it is that of an earlier layer ("clip skip"). Raises
    InputError for more tokens than the model has positions, or an unknown activation.

    >>> from smalti.models.config import SD15
    >>> g = clip_text_graph(SD15.text, batch=2)
    >>> g.inputs["tokens"], g.outputs["hidden"].type.shape
    (<input tokens i32[2, 77]>, (2, 77, 768))
    """
    if tokens > config.positions:
        raise InputError(f"the text encoder reads at most {config.positions} tokens, got {tokens}")
    if config.activation not in ACTIVATIONS:
        raise InputError(f"activation {config.activation!r} is not one of {sorted(ACTIVATIONS)}")
    g = Graph("clip_text")
    ids = g.input("tokens", (batch, tokens), "i32")
    with g.scope(PREFIX):
        with g.scope("embeddings"):
            x = _embeddings(ids, config)             # [n, t, c]
        for i in range(config.layers):
            with g.scope(f"encoder.layers.{i}"):
                x = _layer(x, config)                # [n, t, c]
        g.output("hidden", layer_norm(x, "final_layer_norm", config.eps))
    return g


def _embeddings(ids: Value, config: ClipTextConfig) -> Value:
    g, tokens = ids.graph, ids.shape[1]
    words = embedding(ids, "token_embedding", config.vocab_size, config.hidden_size)
    places = g.parameter("position_embedding.weight", (config.positions, config.hidden_size))
    if tokens < config.positions:
        places = g.apply("slice", places, axis=0, start=0, end=tokens)
    return words + places                            # [n, t, c] + [t, c]


def _layer(x: Value, config: ClipTextConfig) -> Value:
    """x + attention(norm(x)), then x + mlp(norm(x)); x [n, t, c]."""
    g, width = x.graph, config.hidden_size
    y = layer_norm(x, "layer_norm1", config.eps)
    with g.scope("self_attn"):
        q, k, v = (linear(y, name, width) for name in ("q_proj", "k_proj", "v_proj"))
        y = g.apply("attention", q, k, v, num_heads=config.heads, is_causal=1)
        x = x + linear(y, "out_proj", width)
    y = layer_norm(x, "layer_norm2", config.eps)
    with g.scope("mlp"):
        y = linear(y, "fc1", config.intermediate_size)
        y = ACTIVATIONS[config.activation](y)
        return x + linear(y, "fc2", width)
