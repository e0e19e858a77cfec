"""The UNet of latent diffusion (Rombach et al. 2022, arXiv:2112.10752; Ho et al. 2020).

Names are those of the original code (CompVis `openaimodel.py`): `input_blocks`, `middle_block`,
`output_blocks`, in which block numbers run on through the levels.
"""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import UNetConfig
from smalti.nn import (
    conv2d,
    cross_attention,
    from_tokens,
    geglu_feed_forward,
    group_norm,
    layer_norm,
    linear,
    silu,
    timestep_embedding,
    to_tokens,
    upsample_nearest,
)

PREFIX = "model.diffusion_model"
GUIDANCE_UNIT, GUIDANCE_PERIOD_MAX = 1000.0, 10000.0
"""Guidance is embedded in thousandths, with sinusoids as slow as those of time."""
TRANSFORMER_NORM_EPS = 1e-6
"""GroupNorm before a transformer; everywhere else in the UNet it is `config.eps`."""


def unet_graph(config: UNetConfig, batch: int, height: int, width: int, tokens: int = 77,
               control: bool = False) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] in training steps,
    context f32[batch, tokens, context_dim] and, where the configuration has them, vector
    f32[batch, vector_dim] and guidance f32[batch] (such as 8.5) -> prediction f32[batch,
    out_channels, height, width], which is the noise or the velocity, as the model was trained. With
    `control` there are inputs more, the outputs of a ControlNet (see `controlnet_graph`):
    `control.0` ... are added to what the blocks on the way down hand to those on the way up,
    `control.middle` to what the middle makes. Raises InputError for a size that cannot be halved
    once between each two levels.

    >>> from smalti.models.config import SD15
    >>> g = unet_graph(SD15.denoiser, batch=2, height=64, width=96)
    >>> g.outputs["prediction"].shape, len(g.parameters)
    ((2, 4, 64, 96), 686)
    """
    g = Graph("unet")
    x, timesteps, context = unet_inputs(g, config, batch, height, width, tokens)
    with g.scope(PREFIX):
        time = time_embedding(timesteps, config)           # [n, time_dim]
        x = first_block(x, config)
        skips = input_blocks(x, time, context, config)
        x = middle_block(skips[-1], time, context, config)
        if control:
            skips = [skip + g.input(f"control.{i}", skip.shape) for i, skip in enumerate(skips)]
            x = x + g.input("control.middle", x.shape)
        x = _output_blocks(x, skips, time, context, config)
        x = silu(group_norm(x, "out.0", config.norm_groups, config.eps))
        g.output("prediction", conv2d(x, "out.2", config.out_channels, 3))
    return g


def unet_inputs(g: Graph, config: UNetConfig, batch: int, height: int, width: int,
                tokens: int) -> tuple[Value, Value, Value]:
    """Latent, timesteps and context of a UNet or of what accompanies one."""
    multiple = 2 ** (len(config.block_channels) - 1)
    if height % multiple or width % multiple or min(height, width) < 1:
        raise InputError(f"a latent of {height} x {width} (height x width) is given; this UNet "
                         f"halves it {len(config.block_channels) - 1} times, so both must be "
                         f"positive multiples of {multiple}")
    return (g.input("latent", (batch, config.in_channels, height, width)),
            g.input("timesteps", (batch,)),
            g.input("context", (batch, tokens, config.context_dim)))


def time_embedding(timesteps: Value, config: UNetConfig) -> Value:
    """What every residual block is told: the time, and guidance and the vector where the model
    reads them."""
    g, width = timesteps.graph, config.time_dim
    x = timestep_embedding(timesteps, config.block_channels[0])
    if config.guidance:
        strength = _guidance_embedding(g.input("guidance", (x.shape[0],)), config)
        x = x + linear(strength, "time_embed.cond_proj", config.block_channels[0], bias=False)
    x = _two_linear(x, "time_embed", width)
    if config.vector_dim:
        vector = g.input("vector", (x.shape[0], config.vector_dim))
        x = x + _two_linear(vector, "label_emb.0", width)
    return x                                               # [n, time_dim]


def _guidance_embedding(guidance: Value, config: UNetConfig) -> Value:
    """The strength of guidance [n] less one, in thousandths, as sines and then cosines [n, f].

    Frequencies fall to 1 / 10000 at the last, and are rounded as in the published code: angles are
    of thousands, where another rounding would be seen.
    """
    g, half = guidance.graph, config.guidance_sinusoids // 2
    step = np.float32(-math.log(GUIDANCE_PERIOD_MAX) / (half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = ((guidance - 1.0) * GUIDANCE_UNIT).reshape(-1, 1) * g.constant(frequencies)
    return g.apply("concat", g.apply("sin", angles), g.apply("cos", angles), axis=1)


def _two_linear(x: Value, name: str, features: int) -> Value:
    """Two linear layers `name.0` and `name.2` with SiLU between: x [n, i] -> [n, features]."""
    with x.graph.scope(name):
        return linear(silu(linear(x, "0", features)), "2", features)


def first_block(x: Value, config: UNetConfig) -> Value:
    """latent [n, in_channels, h, w] -> [n, c, h, w]."""
    return conv2d(x, "input_blocks.0.0", config.block_channels[0], 3)


def input_blocks(x: Value, time: Value, context: Value, config: UNetConfig) -> list[Value]:
    """The way down from what the first block made. Returns what every block makes, x first: each
    [n, c, h, w], with falling sizes."""
    g, last, skips = x.graph, len(config.block_channels) - 1, [x]
    for level, channels in enumerate(config.block_channels):
        for _ in range(config.res_blocks):
            with g.scope(f"input_blocks.{len(skips)}"):
                x = _level_block(skips[-1], level, config.transformer_depth[level], time, context,
                                 config)
            skips.append(x)
        if level < last:
            with g.scope(f"input_blocks.{len(skips)}.0"):
                x = conv2d(skips[-1], "op", channels, 3, stride=2)  # [n, c, h / 2, w / 2]
            skips.append(x)
    return skips


def middle_block(x: Value, time: Value, context: Value, config: UNetConfig) -> Value:
    """What lies between the ways down and up; x [n, c, h, w]."""
    g, channels = x.graph, x.shape[1]
    if config.middle == "none":
        return x
    with g.scope("middle_block.0"):
        x = _residual_block(x, channels, time, config)
    if config.middle == "residual":
        return x
    with g.scope("middle_block.1"):
        x = _transformer(x, context, config.middle_depth, config)
    with g.scope("middle_block.2"):
        return _residual_block(x, channels, time, config)


def _output_blocks(x: Value, skips: list[Value], time: Value, context: Value,
                   config: UNetConfig) -> Value:
    """The way up: each block also reads what its mirror image on the way down made."""
    g, skips, number = x.graph, list(skips), 0
    for level in reversed(range(len(config.block_channels))):
        for i, depth in enumerate(config.output_depths(level)):
            with g.scope(f"output_blocks.{number}"):
                x = g.apply("concat", x, skips.pop(), axis=1)  # [n, c + c_skip, h, w]
                x = _level_block(x, level, depth, time, context, config)
                if level > 0 and i == config.res_blocks:
                    with g.scope("2" if depth else "1"):
                        x = conv2d(upsample_nearest(x), "conv", x.shape[1], 3)
            number += 1
    return x


def _level_block(x: Value, level: int, depth: int, time: Value, context: Value,
                 config: UNetConfig) -> Value:
    """A residual block, then a transformer of `depth` where that is not 0."""
    g = x.graph
    with g.scope("0"):
        x = _residual_block(x, config.block_channels[level], time, config)
    if not depth:
        return x
    with g.scope("1"):
        return _transformer(x, context, depth, config)


def _residual_block(x: Value, channels: int, time: Value, config: UNetConfig) -> Value:
    """x [n, c, h, w], time [n, time_dim] -> [n, channels, h, w]."""
    h = silu(group_norm(x, "in_layers.0", config.norm_groups, config.eps))
    h = conv2d(h, "in_layers.2", channels, 3)
    shift = linear(silu(time), "emb_layers.1", channels)                  # [n, channels]
    h = h + shift.reshape(*shift.shape, 1, 1)
    h = silu(group_norm(h, "out_layers.0", config.norm_groups, config.eps))
    h = conv2d(h, "out_layers.3", channels, 3)
    if x.shape[1] != channels:
        x = conv2d(x, "skip_connection", channels, 1)
    return x + h


def _transformer(x: Value, context: Value, depth: int, config: UNetConfig) -> Value:
    """Blocks of attention over the pixels; x [n, c, h, w], context [n, s, d]."""
    g, (_, channels, height, width) = x.graph, x.shape
    y = group_norm(x, "norm", config.norm_groups, TRANSFORMER_NORM_EPS)
    if config.linear_projection:
        y = linear(to_tokens(y), "proj_in", channels)                     # [n, h * w, c]
    else:
        y = to_tokens(conv2d(y, "proj_in", channels, 1))                  # [n, h * w, c]
    for i in range(depth):
        with g.scope(f"transformer_blocks.{i}"):
            y = _transformer_block(y, context, config.heads_at(channels))
    if config.linear_projection:
        return x + from_tokens(linear(y, "proj_out", channels), height, width)
    return x + conv2d(from_tokens(y, height, width), "proj_out", channels, 1)


def _transformer_block(x: Value, context: Value, heads: int) -> Value:
    """Self-attention, attention to the context, feed-forward; x [n, t, c], context [n, s, d]."""
    g = x.graph
    y = layer_norm(x, "norm1")
    with g.scope("attn1"):
        x = x + cross_attention(y, y, heads)
    y = layer_norm(x, "norm2")
    with g.scope("attn2"):
        x = x + cross_attention(y, context, heads)
    y = layer_norm(x, "norm3")
    with g.scope("ff"):
        return x + geglu_feed_forward(y)
