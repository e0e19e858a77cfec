"""Qwen-Image-2.1 (Qwen team 2026), a flow transformer of one stream that reads texts as language
models do.

Text and image are one sequence with the same weights. A token of the text sees itself and those
before it, one of the image sees all. What modulates blocks is the same for all, made of time for
the image and of time 0 for the text, so that what becomes of a text does not change with the steps.
Names are those of diffusers' `QwenImage21Transformer2DModel`.

What blocks add up to is read by norms only, and kept in `STREAM_UNIT`, as in Qwen-Image, so that
large sums fit f16: a power of two, which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

import numpy as np

from smalti.graph import Graph, Value
from smalti.models.flux import PREFIX, TIME_FEATURES, check_axes, rows
from smalti.models.newer_transformer_config import QwenImage21Config
from smalti.models.z_image import Angles, joined_angles, last
from smalti.nn import (
    diagonal_angles,
    from_tokens,
    gelu_tanh,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    modulation,
    normalised_and_turned,
    rms_norm,
    silu,
    timestep_embedding,
    to_tokens,
)

STREAM_UNIT = 2.0**-6
"""Of the tokens between blocks, and of what each half of a block adds to them: those of four
millions fit f16."""

Streams = tuple[Value, Value]
"""Text and image [n, t, c]."""
Modulations = tuple[list[Value], list[Value]]
"""Scale and gate [n or 1, c] of attention, then of the MLP, for the text and for the image."""


def qwen_image21_graph(config: QwenImage21Config, batch: int, height: int, width: int,
                       length: int) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim] of the text encoder, mask f32[batch, length], 1 for the
    tokens of a text and 0 behind them -> prediction f32[batch, out_channels, height, width], the
    velocity from picture to noise. Raises InputError for axes that do not make up a head.

    >>> from smalti.models import QWEN_IMAGE21
    >>> g = qwen_image21_graph(QWEN_IMAGE21, batch=1, height=64, width=48, length=64)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context', 'mask'], (1, 64, 64, 48))
    """
    check_axes(config.axes, config.head_dim)
    g, size = Graph("qwen_image21"), config.hidden_size
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    context = g.input("context", (batch, length, config.context_dim))
    mask = g.input("mask", (batch, length))
    with g.scope(PREFIX):
        vec = _time(timesteps, config)                                          # [n + 1, c]
        shared = [_each(part, batch) for part in modulation(vec, "modulation.1", 4, bias=False)]
        parts = [still for _, still in shared], [moving for moving, _ in shared]
        streams = _text(context, config), linear(
            to_tokens(latent), "img_in", size, bias=False) * STREAM_UNIT        # [n, t, c] each
        angles = _angles(mask, height, width, config)
        hidden = hidden_scores(mask, height * width)
        for i in range(config.blocks):
            with g.scope(f"transformer_blocks.{i}"):
                streams = _block(streams, parts, angles, hidden, config)
        (scale,) = modulation(_each(vec, batch)[0], "norm_out.linear", 1, bias=False)
        x = modulated_norm(streams[1], None, scale, config.eps * STREAM_UNIT**2)
        x = linear(x, "proj_out", config.out_channels, bias=False)
        g.output("prediction", from_tokens(x, height, width))
    return g


# ---------------------------------------------------------------------- conditions


def _time(timesteps: Value, config: QwenImage21Config) -> Value:
    """What modulates [n + 1, c]: of these times, then of time 0."""
    g, size = timesteps.graph, config.hidden_size
    times = g.apply("concat", timesteps, g.constant(np.zeros(1, np.float32)), axis=0)
    with g.scope("time_text_embed.timestep_embedder"):
        vec = linear(timestep_embedding(times, TIME_FEATURES), "linear_1", size, bias=False)
        return linear(silu(vec), "linear_2", size, bias=False)


def _each(x: Value, batch: int) -> tuple[Value, Value]:
    """The rows of x [n + 1, c] for the times of a batch, and that for time 0."""
    moving, still = (x.graph.apply("slice", x, axis=0, start=start, end=end)
                     for start, end in ((0, batch), (batch, batch + 1)))
    return moving, still


def _text(context: Value, config: QwenImage21Config) -> Value:
    """The tokens of a text [n, t, c]; factors of the norm are stored less one."""
    with context.graph.scope("txt_in"):
        x = rms_norm(context, "text_norm", config.eps, added=1.0)
        x = gelu_tanh(linear(x, "in_layer", config.hidden_size, bias=False))
        return linear(x, "out_layer", config.hidden_size, bias=False) * STREAM_UNIT


def _angles(mask: Value, height: int, width: int, config: QwenImage21Config) -> Angles:
    """Of the tokens of a text, which stand on the diagonal, and of those of an image, which stands
    around 0 with its middle and behind its text on the first axis [n, t, d / 2]."""
    g, (batch, length), axes = mask.graph, mask.shape, config.axes
    text = diagonal_angles(g, length, axes, config.rotary_base)
    behind = diagonal_angles(g, length, axes[:1], config.rotary_base, start=1)
    starts = tuple(side // 2 - side for side in (height, width))
    plane = grid_angles(g, (height, width), 0, axes[1:], config.rotary_base, starts=starts)
    ends, tokens, images = last(mask), height * width, []
    for along, across in zip(behind, plane):
        turning = along.shape[2]
        ahead = g.apply("mat_mul", ends, along.reshape(length, turning))
        ahead = g.apply("expand", ahead.reshape(batch, 1, turning), shape=(batch, tokens, turning))
        across = g.apply("expand", across, shape=(batch, tokens, across.shape[2]))
        images.append(g.apply("concat", ahead, across, axis=2))
    return joined_angles(text, (images[0], images[1]))


# ---------------------------------------------------------------------- blocks


def _block(streams: Streams, parts: Modulations, angles: Angles, hidden: Value,
           config: QwenImage21Config) -> Streams:
    """Text and image after attention and the gated MLP, in `STREAM_UNIT`; `hidden` [n, 1, 1, t] is
    added to the scores of the image."""
    g, made, start = streams[0].graph, [], 0
    for x, (scale, *_) in zip(streams, parts, strict=True):
        end = start + x.shape[1]
        made.append(_heads(_norm(x, scale, config),
                           (rows(angles[0], start, end), rows(angles[1], start, end)), config))
        start = end
    text, image = made
    keys, values = (g.apply("concat", *both, axis=1) for both in list(zip(text, image))[1:])
    mixed = (g.apply("attention", *text, num_heads=config.heads, is_causal=1),
             g.apply("attention", image[0], keys, values, hidden, num_heads=config.heads))
    txt, img = (_behind(x, y, part, config)
                for x, y, part in zip(streams, mixed, parts, strict=True))
    return txt, img


def _norm(x: Value, scale: Value, config: QwenImage21Config) -> Value:
    """x [n, t, c], which is in `STREAM_UNIT`, normalised, then times 1 + scale [n or 1, c]."""
    g, size = x.graph, config.hidden_size
    scales = g.apply("expand", scale, shape=(x.shape[0], size))
    return modulated_norm(x, None, scales, config.eps * STREAM_UNIT**2)


def _heads(x: Value, angles: Angles, config: QwenImage21Config) -> tuple[Value, Value, Value]:
    """Queries, keys and values of a stream [n, t, c]."""
    size = config.hidden_size
    with x.graph.scope("attn"):
        q, k = (normalised_and_turned(linear(x, f"to_{kind}", size, bias=False), f"norm_{kind}",
                                      *angles, config.heads, config.eps) for kind in "qk")
        return q, k, linear(x, "to_v", size, bias=False)


def _behind(x: Value, mixed: Value, part: list[Value], config: QwenImage21Config) -> Value:
    """x + gate * projection of what attention gave, then x + gate * MLP of it; sums are f32, and in
    the unit of x before they are stored."""
    g, size = x.graph, config.hidden_size
    _, gate, mlp_scale, mlp_gate = part
    with g.scope("attn"):
        y = linear(mixed, "to_out.0", size, bias=False) * STREAM_UNIT
    x = x + g.apply("tanh", gate).reshape(-1, 1, size) * y
    y = _norm(x, mlp_scale, config)
    with g.scope("img_mlp"):
        gated, y = (linear(y, name, config.mlp_size, bias=False) for name in
                    ("gate_layer", "proj"))
        y = linear(silu(gated) * y, "out", size, bias=False) * STREAM_UNIT
    return x + g.apply("tanh", mlp_gate).reshape(-1, 1, size) * y
