"""ERNIE-Image (Baidu 2026), a flow transformer of one stream.

Text and image are one sequence. Time makes six vectors, which modulate all blocks alike.
Names are those of the authors and of diffusers (`layers.0.self_attention.to_q.weight`, ...).

What blocks add up to is read by norms only, and kept in `STREAM_UNIT`, as in Krea 2, so that large
sums fit f16: a power of two, which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.flux import PREFIX, check_axes, rows
from smalti.models.newer_transformer_config import ErnieImageConfig
from smalti.models.z_image import Angles, joined_angles, text_and_image_angles
from smalti.nn import (
    from_tokens,
    gelu,
    hidden_scores,
    linear,
    modulated_norm,
    modulation,
    rms_norm,
    silu,
    timestep_embedding,
    to_tokens,
)

STREAM_UNIT = 2.0**-5
"""Of the tokens between blocks: those of two million fit f16."""


def ernie_image_graph(config: ErnieImageConfig, batch: int, height: int, width: int,
                      length: int) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim] of the text encoder, mask f32[batch, length], 1 for the
    tokens of a text and 0 behind them -> prediction f32[batch, out_channels, height, width], the
    velocity from picture to noise. Raises InputError for axes that do not make up a head.

    >>> from smalti.models import ERNIE_IMAGE
    >>> g = ernie_image_graph(ERNIE_IMAGE, batch=1, height=64, width=48, length=64)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context', 'mask'], (1, 128, 64, 48))
    """
    check_axes(config.axes, config.head_dim)
    g, size = Graph("ernie_image"), config.hidden_size
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    txt = g.input("context", (batch, length, config.context_dim))
    mask = g.input("mask", (batch, length))
    with g.scope(PREFIX):
        vec = timestep_embedding(timesteps, size, sines_first=True)
        with g.scope("time_embedding"):
            vec = linear(silu(linear(vec, "linear_1", size)), "linear_2", size)     # [n, c]
        shared = modulation(vec, "adaLN_modulation.1", 6)
        img = linear(to_tokens(latent), "x_embedder.proj", size) * STREAM_UNIT      # [n, i, c]
        if config.context_dim != size:
            txt = linear(txt, "text_proj", size, bias=False)
        x = g.apply("concat", txt * STREAM_UNIT, img, axis=1)                       # [n, t, c]
        angles = _doubled(joined_angles(*text_and_image_angles(mask, height, width, config)))
        hidden = hidden_scores(mask, height * width)
        for i in range(config.blocks):
            with g.scope(f"layers.{i}"):
                x = _block(x, shared, angles, hidden, config)
        scale, shift = _halves(linear(vec, "final_norm.linear", 2 * size))
        x = rows(x, length, length + height * width)
        x = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
        x = linear(x, "final_linear", config.out_channels)
        g.output("prediction", from_tokens(x, height, width))
    return g


def _block(x: Value, shared: list[Value], angles: tuple[Angles, Angles], hidden: Value,
           config: ErnieImageConfig) -> Value:
    """x [n, t, c] after attention and the gated MLP, in `STREAM_UNIT`; `shared` are shift, scale
    and gate [n, c] of the one, then of the other."""
    g, (n, _, size) = x.graph, x.shape
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (
        each.reshape(n, 1, size) for each in shared)
    y = _norm(x, "adaLN_sa_ln", config) * (scale + 1.0) + shift
    with g.scope("self_attention"):
        q, k = (_turned(linear(y, f"to_{kind}", size, bias=False), f"norm_{kind}", angles, config)
                for kind in "qk")
        v = linear(y, "to_v", size, bias=False)
        y = linear(g.apply("attention", q, k, v, hidden, num_heads=config.heads), "to_out.0", size,
                   bias=False)
    x = x + y * (gate * STREAM_UNIT)
    y = _norm(x, "adaLN_mlp_ln", config) * (mlp_scale + 1.0) + mlp_shift
    with g.scope("mlp"):
        gated, y = (linear(y, name, config.mlp_size, bias=False) for name in
                    ("gate_proj", "up_proj"))
        y = linear(y * gelu(gated), "linear_fc2", size, bias=False)
    return x + y * (mlp_gate * STREAM_UNIT)


def _norm(x: Value, name: str, config: ErnieImageConfig) -> Value:
    """x [n, t, c], which is in `STREAM_UNIT`, over its root mean square."""
    return rms_norm(x, name, config.eps * STREAM_UNIT**2)


def _halves(x: Value) -> tuple[Value, Value]:
    """The first half of the last axis of x, and the second."""
    axis, half = len(x.shape) - 1, x.shape[-1] // 2
    first, second = (x.graph.apply("slice", x, axis=axis, start=start, end=start + half)
                     for start in (0, half))
    return first, second


def _doubled(angles: Angles) -> tuple[Angles, Angles]:
    """Cosines and sines [n, t, 1, d / 2] for the first half of a head's channels, and for the
    second, of d / 2 angles of tokens, each of which stands for two neighbouring channels."""
    twice = []
    for table in angles:
        n, tokens, pairs = table.shape
        both = table.graph.apply("expand", table.reshape(n, tokens, pairs, 1),
                                 shape=(n, tokens, pairs, 2))
        twice.append(_halves(both.reshape(n, tokens, 1, 2 * pairs)))
    (cos_first, cos_second), (sin_first, sin_second) = twice
    return (cos_first, sin_first), (cos_second, sin_second)


def _turned(x: Value, norm: str, angles: tuple[Angles, Angles], config: ErnieImageConfig) -> Value:
    """Queries or keys x [n, t, c], normalised in each head, then turned.

    Channel j of the first half of a head is paired with channel j of the second, as in language
    models, but angles lie as for pairs of neighbours: the two have angles of their own, and it is
    no rotation. So the model was trained (diffusers, `ErnieImageSingleStreamAttnProcessor`).
    """
    (n, tokens, size), ((cos, sin), (other_cos, other_sin)) = x.shape, angles
    y = rms_norm(x.reshape(n, tokens, config.heads, config.head_dim), norm, config.eps)
    first, second = _halves(y)
    turned = x.graph.apply("concat", first * cos - second * sin,
                           second * other_cos + first * other_sin, axis=3)
    return turned.reshape(n, tokens, size)
