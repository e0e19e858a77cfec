"""The text encoders of CLIP (Radford et al. 2021, arXiv:2103.00020, section 2.4) and OpenCLIP.

Names are those of transformers' `CLIPTextModelWithProjection`, under the prefix of the
configuration.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import ClipTextConfig
from smalti.models.language_config import ReduxConfig
from smalti.nn import embedding, gelu, gelu_tanh, layer_norm, linear, quick_gelu

ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}


def clip_text_graph(config: ClipTextConfig, batch: int, tokens: int = 77, *, skip: int = 1,
                    final_norm: bool = True, pooled: bool = False,
                    embedded: bool = False) -> Graph:
    """tokens i32[batch, tokens] -> context f32[batch, tokens, hidden_size].

    The context is the hidden state after the layer that is `skip`-th from the end (1 is the last:
    "clip skip"), behind the final layer norm unless `final_norm` is false. With `embedded` the
    input is `embeddings` f32[batch, tokens, hidden_size] instead, the rows of the tokens without
    those of their places.

    With `pooled` there is an input more, `end` i32[batch], the place of each prompt's first end
    token, and an output more, `pooled` f32[batch, projection or hidden_size]: the last layer's
    hidden state there, behind the final layer norm and the projection where the model has one.
    Raises InputError for more tokens than the model has positions, for a skipped layer that it has
    not, or an unknown activation.

    >>> from smalti.models.config import OPENCLIP_G, SD15
    >>> g = clip_text_graph(SD15.texts["clip_l"], batch=2)
    >>> g.inputs["tokens"], g.outputs["context"].type.shape
    (<input 'tokens' i32[2, 77]>, (2, 77, 768))
    >>> g = clip_text_graph(OPENCLIP_G, batch=2, skip=2, final_norm=False, pooled=True)
    >>> g.outputs["context"].type.shape, g.outputs["pooled"].type.shape
    ((2, 77, 1280), (2, 1280))
    """
    if tokens > config.positions:
        raise InputError(f"the text encoder reads at most {config.positions} tokens, got {tokens}")
    if config.activation not in ACTIVATIONS:
        raise InputError(f"activation {config.activation!r} is not one of {sorted(ACTIVATIONS)}")
    if not 1 <= skip <= config.layers:
        raise InputError(f"the text encoder has {config.layers} layers; the one that is {skip}. "
                         f"from the end is asked for")
    g, shape = Graph("clip_text"), (batch, tokens)
    given = (g.input("embeddings", (*shape, config.hidden_size)) if embedded
             else g.input("tokens", shape, "i32"))
    with g.scope(f"{config.prefix}.text_model"):
        with g.scope("embeddings"):
            x = _embeddings(given, config, embedded)  # [n, t, c]
        states = []
        for i in range(config.layers if pooled else config.layers - skip + 1):
            with g.scope(f"encoder.layers.{i}"):
                x = clip_layer(x, config)                # [n, t, c]
            states.append(x)
        context = states[config.layers - skip]
        if final_norm:
            context = layer_norm(context, "final_layer_norm", config.eps)
        g.output("context", context)
        if pooled:
            x = _rows(states[-1], g.input("end", (batch,), "i32"))
            x = layer_norm(x, "final_layer_norm", config.eps)
    if pooled:
        with g.scope(config.prefix):
            g.output("pooled", linear(x, "text_projection", config.projection, bias=False)
                     if config.projection else x)
    return g


def _embeddings(given: Value, config: ClipTextConfig, embedded: bool) -> Value:
    g, tokens = given.graph, given.shape[1]
    words = given if embedded else embedding(given, "token_embedding", config.vocab_size,
                                             config.hidden_size)
    places = g.parameter("position_embedding.weight", (config.positions, config.hidden_size))
    if tokens < config.positions:
        places = g.apply("slice", places, axis=0, start=0, end=tokens)
    return words + places                            # [n, t, c] + [t, c]


def clip_layer(x: Value, config: ClipTextConfig | ReduxConfig, *, causal: bool = True) -> Value:
    """x + attention(norm(x)), then x + mlp(norm(x)); x [n, t, c]. A token sees those before it, or
    where that is not `causal`, all."""
    g, width = x.graph, x.shape[2]
    y = layer_norm(x, "layer_norm1", config.eps)
    with g.scope("self_attn"):
        q, k, v = (linear(y, name, width) for name in ("q_proj", "k_proj", "v_proj"))
        y = g.apply("attention", q, k, v, num_heads=config.heads, is_causal=int(causal))
        x = x + linear(y, "out_proj", width)
    y = layer_norm(x, "layer_norm2", config.eps)
    with g.scope("mlp"):
        y = linear(y, "fc1", config.intermediate_size)
        y = ACTIVATIONS[config.activation](y)
        return x + linear(y, "fc2", width)


def _rows(x: Value, places: Value) -> Value:
    """The token at one place of each prompt: x [n, t, c], places i32[n] -> [n, c]."""
    g, (n, tokens, width) = x.graph, x.shape
    rows = [g.apply("gather",
                    g.apply("slice", x, axis=0, start=i, end=i + 1).reshape(tokens, width),
                    g.apply("slice", places, axis=0, start=i, end=i + 1)) for i in range(n)]
    return g.apply("concat", *rows, axis=0) if n > 1 else rows[0]
