"""Anima (CircleStone Labs 2025): Cosmos-Predict2 (NVIDIA 2025, arXiv:2511.00062) for drawings.

Tokens of the image attend to each other, then to those of the text, then pass an MLP; time shifts,
scales and gates each of the three, by way of a few channels ("AdaLN-LoRA"). The tokens of the text
are those of T5, which have read what a language model makes of the same text; they are a graph of
their own, once for each prompt. Names are those of the original checkpoint
(`blocks.0.self_attn.q_proj.weight`, `llm_adapter.blocks.0.cross_attn.q_proj.weight`, ...).

What blocks add up to exceeds 65504, the most that f16 holds. It is read by norms only, which do not
mind a factor when their epsilon has the square of it, and is kept in `STREAM_UNIT`: a power of two,
which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.flux import PATCH, PREFIX, check_latent
from smalti.models.transformer_config import AnimaConfig
from smalti.nn import (
    embedding,
    from_patches,
    gelu,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    patches,
    rms_norm,
    silu,
    timestep_embedding,
)

TEXT_PREFIX = f"{PREFIX}.llm_adapter"
TEXT_TOKENS = 512
"""The image sees so many tokens of a text; behind its own they are zeros, which count."""
TIME_UNIT = 1e-3
"""The model is told noise levels up to 1."""
STREAM_UNIT = 2.0**-5
"""Of the image tokens between blocks: those of two million fit f16."""

Angles = tuple[Value, Value]
"""Cosines and sines [1, t, d / 2] of the turns of tokens."""


def anima_graph(config: AnimaConfig, batch: int, height: int, width: int, length: int) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, text_dim] of `anima_text_graph` -> prediction f32[batch,
    out_channels, height, width], the velocity from picture to noise. Raises InputError for an odd
    size.

    >>> from smalti.models import ANIMA
    >>> g = anima_graph(ANIMA, batch=1, height=128, width=96, length=512)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context'], (1, 16, 128, 96))
    """
    check_latent(height, width, config.axes, config.head_dim)
    g = Graph("anima")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    context = g.input("context", (batch, length, config.text_dim))
    with g.scope(PREFIX):
        vec, shared = _time(timesteps, config)
        unpadded = g.apply("expand", g.constant(0.0), shape=(batch, 1, height, width))
        x = patches(g.apply("concat", latent, unpadded, axis=1), PATCH)
        x = linear(x, "x_embedder.proj.1", config.hidden_size, bias=False) * STREAM_UNIT
        angles = grid_angles(g, (height // PATCH, width // PATCH), 0, config.axes,
                             config.rotary_base)
        for i in range(config.blocks):
            with g.scope(f"blocks.{i}"):
                x = _block(x, context, vec, shared, angles, config)              # [n, t, c]
        with g.scope("final_layer"):
            shift, scale = _modulations(vec, shared, "adaln_modulation", 2, config)
            y = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
            y = linear(y, "linear", PATCH * PATCH * config.out_channels, bias=False)
        g.output("prediction", from_patches(y, PATCH, height, width, pixels_first=True))
    return g


def anima_text_graph(config: AnimaConfig, batch: int, length: int, tokens: int) -> Graph:
    """What the denoiser reads of a text, made once for it.

    context f32[batch, length, context_dim] of the language model and mask f32[batch, length], 1 for
    the tokens of a text and 0 behind them; tokens i32[batch, tokens] of T5 and tokens_mask
    f32[batch, tokens] alike -> context f32[batch, 512, text_dim], zeros behind the text. Raises
    InputError for more tokens.

    >>> from smalti.models import ANIMA
    >>> anima_text_graph(ANIMA, batch=1, length=64, tokens=32).outputs["context"].shape
    (1, 512, 1024)
    """
    if tokens > TEXT_TOKENS:
        raise InputError(f"a text of {tokens} tokens is given; the model reads {TEXT_TOKENS}")
    g = Graph("anima_text")
    context = g.input("context", (batch, length, config.context_dim))
    seen = g.input("mask", (batch, length))
    ids = g.input("tokens", (batch, tokens), "i32")
    own = g.input("tokens_mask", (batch, tokens))
    masks = hidden_scores(own), hidden_scores(seen)
    with g.scope(TEXT_PREFIX):
        x = embedding(ids, "embed", config.vocab_size, config.text_dim)          # [n, t, c]
        angles, behind = (_text_angles(g, count, config) for count in (tokens, length))
        for i in range(config.text_blocks):
            with g.scope(f"blocks.{i}"):
                x = _text_block(x, context, masks, angles, behind, config)       # [n, t, c]
        x = rms_norm(linear(x, "out_proj", config.text_dim), "norm", config.eps)
        x = x * own.reshape(batch, tokens, 1)
        if missing := TEXT_TOKENS - tokens:
            zeros = g.apply("expand", g.constant(0.0), shape=(batch, missing, config.text_dim))
            x = g.apply("concat", x, zeros, axis=1)
        g.output("context", x)
    return g


# ---------------------------------------------------------------------- the image


def _time(timesteps: Value, config: AnimaConfig) -> tuple[Value, Value]:
    """What each modulation is made of [n, c], and what is added to all of them [n, 3 c]."""
    waves = timestep_embedding(timesteps * TIME_UNIT, config.hidden_size)
    with timesteps.graph.scope("t_embedder.1"):
        shared = silu(linear(waves, "linear_1", config.hidden_size, bias=False))
        shared = linear(shared, "linear_2", 3 * config.hidden_size, bias=False)
    return rms_norm(waves, "t_embedding_norm", config.eps), shared


def _modulations(vec: Value, shared: Value, name: str, count: int,
                 config: AnimaConfig) -> list[Value]:
    """Shift and scale [n, c], and where three are asked for the gate."""
    g, width = vec.graph, config.hidden_size
    parts = linear(silu(vec), f"{name}.1", config.rank, bias=False)
    parts = linear(parts, f"{name}.2", count * width, bias=False)
    parts = parts + g.apply("slice", shared, axis=1, start=0, end=count * width)
    return [g.apply("slice", parts, axis=1, start=i * width, end=(i + 1) * width)
            for i in range(count)]


def _block(x: Value, context: Value, vec: Value, shared: Value, angles: Angles,
           config: AnimaConfig) -> Value:
    """x + gate * part(norm(x)), for attention among tokens of the image, attention to those of the
    text, and an MLP; x [n, t, c] in `STREAM_UNIT`."""
    size = config.hidden_size

    def attended(y: Value, seen: Value, angles: Angles | None) -> Value:
        return _attention(y, seen, angles, angles, size, config.heads, config.head_eps,
                          "output_proj")

    parts = {"self_attn": lambda y: attended(y, y, angles),
             "cross_attn": lambda y: attended(y, context, None),
             "mlp": lambda y: linear(gelu(linear(y, "layer1", config.mlp_size, bias=False)),
                                     "layer2", size, bias=False)}
    for name, part in parts.items():
        shift, scale, gate = _modulations(vec, shared, f"adaln_modulation_{name}", 3, config)
        y = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
        with x.graph.scope(name):
            x = x + part(y) * (gate.reshape(x.shape[0], 1, size) * STREAM_UNIT)
    return x


def _attention(x: Value, seen: Value, turns: Angles | None, seen_turns: Angles | None, width: int,
               heads: int, eps: float, out: str, hidden: Value | None = None) -> Value:
    """What tokens x [n, t, c] make of those that are `seen` [n, s, d]: queries and keys are
    normalised in each head, and turned where there are angles; `hidden` is added to all scores."""
    def part(tokens: Value, kind: str, angles: Angles | None) -> Value:
        n, count, _ = tokens.shape
        y = linear(tokens, f"{kind}_proj", width, bias=False)
        y = rms_norm(y.reshape(n, count, heads, width // heads), f"{kind}_norm", eps)
        y = y.reshape(n, count, width)
        return y if angles is None else x.graph.apply("rotary_embedding", y, *angles,
                                                      num_heads=heads)

    q, k = part(x, "q", turns), part(seen, "k", seen_turns)
    v = linear(seen, "v_proj", width, bias=False)
    addend = [] if hidden is None else [hidden]
    y = x.graph.apply("attention", q, k, v, *addend, num_heads=heads)
    return linear(y, out, x.shape[2], bias=False)


# ---------------------------------------------------------------------- the text


def _text_angles(g: Graph, length: int, config: AnimaConfig) -> Angles:
    """Of tokens that stand one behind the other."""
    return grid_angles(g, (length,), 0, (config.text_dim // config.text_heads,))


def _text_block(x: Value, context: Value, masks: tuple[Value, Value], angles: Angles,
                behind: Angles, config: AnimaConfig) -> Value:
    """x [n, t, c] after attention among its own tokens, attention to the states of the language
    model, and an MLP, each behind a norm and added to what it read."""
    def attended(y: Value, seen: Value, turns: Angles, mask: Value) -> Value:
        return _attention(y, seen, angles, turns, config.text_dim, config.text_heads, config.eps,
                          "o_proj", mask)

    own, whole = masks
    y = rms_norm(x, "norm_self_attn", config.eps)
    with x.graph.scope("self_attn"):
        x = x + attended(y, y, angles, own)
    y = rms_norm(x, "norm_cross_attn", config.eps)
    with x.graph.scope("cross_attn"):
        x = x + attended(y, context, behind, whole)
    y = rms_norm(x, "norm_mlp", config.eps)
    with x.graph.scope("mlp"):
        return x + linear(gelu(linear(y, "0", config.text_mlp_size)), "2", config.text_dim)
