"""Krea 2 (Krea 2026), a flow transformer of one stream whose attention has gates.

Text and image are one sequence. What modulates a block is the same for all, but for a table that
each adds; factors of norms are stored without the one that is added to them. States of several
layers of the text encoder become one for each token in a graph of its own, once for each prompt.
Names are those of the original checkpoint (`blocks.0.attn.wq.weight`, ...).

What blocks add up to is read by norms only, and kept in `STREAM_UNIT`, as in Anima, so that large
sums fit f16: a power of two, which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from collections.abc import Sequence

from smalti.graph import Graph, Value
from smalti.models.flux import PATCH, PREFIX, TIME_FEATURES, check_latent, rows
from smalti.models.transformer_config import Krea2Config
from smalti.nn import (
    from_patches,
    gelu_tanh,
    grid_angles,
    hidden_scores,
    linear,
    patches,
    rms_norm,
    rotary_embedding,
    silu,
    timestep_embedding,
)

STREAM_UNIT = 2.0**-5
"""Of the tokens between blocks: those of two million fit f16."""

Angles = tuple[Value, Value]
"""Cosines and sines [1, t, d / 2] of the turns of tokens."""


def krea2_graph(config: Krea2Config, batch: int, height: int, width: int, length: int) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, hidden_size] of `krea2_text_graph`, mask f32[batch, length], 1 for
    the tokens of a text and 0 behind them -> prediction f32[batch, out_channels, height, width],
    the velocity from picture to noise. Raises InputError for an odd size, or for axes that do not
    make up a head.

    >>> from smalti.models import KREA2
    >>> g = krea2_graph(KREA2, batch=1, height=128, width=96, length=64)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context', 'mask'], (1, 16, 128, 96))
    """
    check_latent(height, width, config.axes, config.head_dim)
    g, size = Graph("krea2"), config.hidden_size
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    txt = g.input("context", (batch, length, size))
    mask = g.input("mask", (batch, length))
    with g.scope(PREFIX):
        time = timestep_embedding(timesteps, TIME_FEATURES)
        time = linear(gelu_tanh(linear(time, "tmlp.0", size)), "tmlp.2", size)       # [n, c]
        shared = linear(gelu_tanh(time), "tproj.1", 6 * size)
        img = linear(patches(latent, PATCH), "first", size)                          # [n, i, c]
        x = g.apply("concat", txt, img, axis=1) * STREAM_UNIT                        # [n, t, c]
        angles = grid_angles(g, (height // PATCH, width // PATCH), length, config.axes,
                             config.rotary_base)
        hidden = hidden_scores(mask, img.shape[1])
        for i in range(config.blocks):
            with g.scope(f"blocks.{i}"):
                x = _block(x, shared, angles, hidden, config)
        with g.scope("last"):
            table = g.parameter("modulation.lin", (2, size))
            scale, shift = (time + _row(table, i, size) for i in range(2))
            x = rows(x, length, x.shape[1])
            y = _modulated(_norm(x, "norm", config, STREAM_UNIT), scale, shift)
            y = linear(y, "linear", PATCH * PATCH * config.out_channels)
        g.output("prediction", from_patches(y, PATCH, height, width))
    return g


def krea2_text_graph(config: Krea2Config, batch: int, length: int) -> Graph:
    """What the denoiser reads of a text, made once for it.

    context f32[batch, length, taps * text_dim], the states of the text encoder behind its layers,
    channels side by side, and mask f32[batch, length], 1 for the tokens of a text and 0 behind them
    -> context f32[batch, length, hidden_size].

    >>> from smalti.models import KREA2
    >>> krea2_text_graph(KREA2, batch=1, length=64).outputs["context"].shape
    (1, 64, 6144)
    """
    g, width = Graph("krea2_text"), config.text_dim
    context = g.input("context", (batch, length, config.context_dim))
    mask = g.input("mask", (batch, length))
    with g.scope(PREFIX):
        with g.scope("txtfusion"):
            x = context.reshape(batch * length, config.taps, width)
            for i in range(config.layer_blocks):
                with g.scope(f"layerwise_blocks.{i}"):
                    x = _text_block(x, [], config)
            weights = g.parameter("projector.weight", (1, config.taps)).reshape(1, 1, config.taps)
            weights = g.apply("expand", weights, shape=(batch * length, 1, config.taps))
            x = g.apply("mat_mul", weights, x).reshape(batch, length, width)          # [n, t, c]
            for i in range(config.text_blocks):
                with g.scope(f"refiner_blocks.{i}"):
                    x = _text_block(x, [hidden_scores(mask)], config)
        x = linear(_norm(x, "txtmlp.0", config), "txtmlp.1", config.hidden_size)
        g.output("context", linear(gelu_tanh(x), "txtmlp.3", config.hidden_size))
    return g


def _row(table: Value, row: int, width: int) -> Value:
    """A row of a table [k, c] -> [1, c]."""
    return table.graph.apply("slice", table, axis=0, start=row, end=row + 1).reshape(1, width)


def _block(x: Value, shared: Value, angles: Angles, hidden: Value, config: Krea2Config) -> Value:
    """x [n, t, c] after gated attention and the feed-forward layer, in `STREAM_UNIT`."""
    g, (n, _, width) = x.graph, x.shape
    table = g.parameter("mod.lin", (6 * width,))
    both = shared + table.reshape(1, 6 * width)
    parts = [g.apply("slice", both, axis=1, start=i * width, end=(i + 1) * width)
             for i in range(6)]
    scale, shift, gate, ffn_scale, ffn_shift, ffn_gate = parts
    y = _modulated(_norm(x, "prenorm", config, STREAM_UNIT), scale, shift)
    y = _attention(y, angles, [hidden], config.heads, config.kv_heads, config)
    x = x + y * (gate.reshape(n, 1, width) * STREAM_UNIT)
    y = _modulated(_norm(x, "postnorm", config, STREAM_UNIT), ffn_scale, ffn_shift)
    y = _feed_forward(y, config.mlp_size)
    return x + y * (ffn_gate.reshape(n, 1, width) * STREAM_UNIT)


def _text_block(x: Value, hidden: Sequence[Value], config: Krea2Config) -> Value:
    """x [n, t, c] after gated attention and the feed-forward layer, without time or place."""
    y = _norm(x, "prenorm", config)
    x = x + _attention(y, None, hidden, config.text_heads, config.text_kv_heads, config)
    return x + _feed_forward(_norm(x, "postnorm", config), config.text_mlp_size)


def _norm(x: Value, name: str, config: Krea2Config, unit: float = 1.0) -> Value:
    """x [..., c], which is in a `unit`, over its root mean square; one is added to the factors
    `name.scale` [c]."""
    return rms_norm(x, name, config.eps * unit**2, "scale", added=1.0)


def _modulated(x: Value, scale: Value, shift: Value) -> Value:
    """x [n, t, c] times 1 + scale [n, c], plus shift."""
    n, _, width = x.shape
    return x * (scale.reshape(n, 1, width) + 1.0) + shift.reshape(n, 1, width)


def _attention(x: Value, angles: Angles | None, hidden: Sequence[Value], heads: int, kv_heads: int,
               config: Krea2Config) -> Value:
    """What tokens x [n, t, c] make of each other, channel by channel through a gate from 0 to 1.

    Groups of heads of queries share the keys and values of one head.
    """
    g, (n, tokens, width) = x.graph, x.shape
    head_dim = width // heads
    with g.scope("attn"):
        def part(kind: str, count: int) -> Value:
            y = linear(x, f"w{kind}", count * head_dim, bias=False)
            y = y.reshape(n, tokens, count, head_dim)
            y = _norm(y, f"qknorm.{kind}norm", config).reshape(n, tokens, count * head_dim)
            return y if angles is None else rotary_embedding(y, *angles, count)

        q, k = part("q", heads), part("k", kv_heads)
        v = linear(x, "wv", kv_heads * head_dim, bias=False)
        mixed = g.apply("attention", q, k, v, *hidden, num_heads=heads)
        gate = g.apply("sigmoid", linear(x, "gate", width, bias=False))
        return linear(mixed * gate, "wo", width, bias=False)


def _feed_forward(x: Value, inner: int) -> Value:
    """(silu(x @ gate) * (x @ up)) @ down (Shazeer 2020, arXiv:2002.05202)."""
    with x.graph.scope("mlp"):
        gate, up = (linear(x, name, inner, bias=False) for name in ("gate", "up"))
        return linear(silu(gate) * up, "down", x.shape[2], bias=False)
