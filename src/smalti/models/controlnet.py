"""ControlNet (Zhang et al. 2023, arXiv:2302.05543): a UNet's way down that also reads a picture.

Names are those of the original code (lllyasviel/ControlNet `cldm.py`). A union (xinsir's
ControlNetPlus) is one ControlNet for several kinds of pictures, some of them at once; the names of
what it has more are those of its files.
"""

from __future__ import annotations

from itertools import pairwise

from smalti.graph import Graph, Value
from smalti.models.config import ControlNetConfig
from smalti.models.unet import (
    first_block,
    input_blocks,
    middle_block,
    time_embedding,
    unet_inputs,
)
from smalti.nn import conv2d, layer_norm, linear, quick_gelu, silu, timestep_embedding

PREFIX = "control_model"


def controlnet_graph(config: ControlNetConfig, batch: int, height: int, width: int,
                     tokens: int = 77, *, hints: int = 1) -> Graph:
    """What a UNet's blocks are given more; `height` and `width` are those of the latent.

    latent, timesteps, context and vector as of the UNet (see `unet_graph`), and hint
    f32[batch, 3, f * height, f * width] in [0, 1] -> `control.0` ..., one for each block on the way
    down, and `control.middle`, each of the shape of what it is added to.

    A union reads `types` f32[hints, types] besides, in each row a 1 at the kind of that hint; with
    several `hints` they are called `hint.0`, ... Raises InputError for a size that cannot be
    halved once between each two levels.

    >>> from smalti.models.config import SD1_UNET, ControlNetConfig
    >>> g = controlnet_graph(ControlNetConfig(SD1_UNET), batch=2, height=64, width=96)
    >>> g.inputs["hint"].shape, len(g.outputs), g.outputs["control.middle"].shape
    ((2, 3, 512, 768), 13, (2, 1280, 8, 12))
    """
    unet, factor = config.unet, config.downscale
    g = Graph("controlnet")
    x, timesteps, context = unet_inputs(g, unet, batch, height, width, tokens)
    names = ["hint"] if hints == 1 else [f"hint.{i}" for i in range(hints)]
    pictures = [g.input(name, (batch, config.image_channels, factor * height, factor * width))
                for name in names]
    with g.scope(PREFIX):
        time = time_embedding(timesteps, unet)             # [n, time_dim]
        x = first_block(x, unet)
        seen = [hint_block(picture, config.hint_channels, unet.block_channels[0])
                for picture in pictures]
        if config.types:
            types = g.input("types", (hints, config.types))
            time = time + _type_embedding(types, config)
            seen = _tell_types(seen, types, config)
        for each in seen:
            x = x + each                                   # [n, c, h, w]
        skips = input_blocks(x, time, context, unet)
        for i, skip in enumerate(skips):
            g.output(f"control.{i}", _zero_conv(skip, f"zero_convs.{i}.0", config))
        x = middle_block(skips[-1], time, context, unet)
        g.output("control.middle", _zero_conv(x, "middle_block_out.0", config))
    return g


def hint_block(x: Value, widths: tuple[int, ...], channels: int) -> Value:
    """picture [n, 3, f h, f w] -> [n, channels, h, w]; each width has half the size of the last."""
    number = 2
    with x.graph.scope("input_hint_block"):
        x = silu(conv2d(x, "0", widths[0], 3))
        for before, after in pairwise(widths):
            x = silu(conv2d(x, f"{number}", before, 3))
            x = silu(conv2d(x, f"{number + 2}", after, 3, stride=2))
            number += 4
        return conv2d(x, f"{number}", channels, 3)


def _zero_conv(x: Value, name: str, config: ControlNetConfig) -> Value:
    """The convolution that was zero when training began; or its mean over all pixels."""
    x = conv2d(x, name, x.shape[1], 1)
    if not config.pooled:
        return x
    mean = x.graph.apply("reduce_mean", x, axes=(2, 3), keepdims=1)
    return x.graph.apply("expand", mean, shape=x.shape)


# ---------------------------------------------------------------- union


def _type_embedding(types: Value, config: ControlNetConfig) -> Value:
    """Of which kinds the hints are, for the residual blocks: [1, time_dim]."""
    g = types.graph
    used = g.apply("reduce_max", types, axes=(0,), keepdims=0)               # [types]
    waves = timestep_embedding(used, config.type_sinusoids).reshape(1, -1)
    with g.scope("control_add_embedding"):
        x = silu(linear(waves, "linear_1", config.unet.time_dim))
        return linear(x, "linear_2", config.unet.time_dim)


def _tell_types(seen: list[Value], types: Value, config: ControlNetConfig) -> list[Value]:
    """Each of `seen` [n, c, h, w] plus what its kind and its mean say of every channel."""
    g, width = types.graph, config.unet.block_channels[0]
    kinds = g.apply("mat_mul", types,
                    g.parameter("task_embedding", (config.types, width)))    # [hints, c]
    told = []
    for i, x in enumerate(seen):
        token = g.apply("reduce_mean", x, axes=(2, 3), keepdims=0)           # [n, c]
        token = token + g.apply("slice", kinds, axis=0, start=i, end=i + 1)
        for layer in range(config.type_layers):
            with g.scope(f"transformer_layes.{layer}"):
                token = _union_block(token)
        shift = linear(token, "spatial_ch_projs", width)
        told.append(x + shift.reshape(*shift.shape, 1, 1))
    return told


def _union_block(x: Value) -> Value:
    """x [n, c] plus attention, plus MLP.

    As it was trained, a token attends to the tokens at its place in a batch, not to the others of
    its picture; for one picture, or copies of it, that is to itself, which gives its value.
    """
    g, width = x.graph, x.shape[-1]
    y = layer_norm(x, "ln_1")
    with g.scope("attn"):
        weight = g.parameter("in_proj_weight", (3 * width, width))
        bias = g.parameter("in_proj_bias", (3 * width,))
        weight, bias = (g.apply("slice", part, axis=0, start=2 * width, end=3 * width)
                        for part in (weight, bias))
        value = g.apply("mat_mul", y, weight.transpose(1, 0)) + bias
        x = x + linear(value, "out_proj", width)
    y = layer_norm(x, "ln_2")
    with g.scope("mlp"):
        return x + linear(quick_gelu(linear(y, "c_fc", 4 * width)), "c_proj", width)
