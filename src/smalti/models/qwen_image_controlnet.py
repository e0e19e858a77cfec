"""ControlNets (Zhang et al. 2023, arXiv:2302.05543) for Qwen-Image.

Some of the model's blocks are repeated, read a picture's latent besides, and what each of them made
of the image goes to the model through a layer that was zero when training began. Names are those of
the model (see `models/qwen_image.py`) and, for what is new, of the files' authors.
"""

from __future__ import annotations

from smalti.graph import Graph
from smalti.models.controlnet import PREFIX
from smalti.models.flux import PATCH, Places, check_latent
from smalti.models.qwen_image import (
    STREAM_UNIT,
    angles_of,
    block,
    block_modulations,
    computed,
    text_tokens,
)
from smalti.models.transformer_config import QwenImageConfig, QwenImageControlNetConfig
from smalti.nn import hidden_scores, linear, patches


def qwen_image_controlnet_graph(config: QwenImageControlNetConfig, batch: int, height: int,
                                width: int, length: int) -> Graph:
    """What the model's blocks are given more; `height` and `width` are those of the latent.

    latent, timesteps, context and mask as of `qwen_image_graph`, and hint f32[batch, hint_channels,
    height, width], the latent of a picture, behind it for inpainting 1 where that is to stay and 0
    where it is filled -> `control.0`, ... f32[batch, height / 2 * width / 2, hidden_size] in
    `STREAM_UNIT`, one for each block. Raises InputError for an odd size, or for axes that do not
    make up a head.

    >>> from smalti.models import QwenImageControlNetConfig
    >>> union = QwenImageControlNetConfig(3072, heads=24, mlp_size=12288, blocks=5)
    >>> g = qwen_image_controlnet_graph(union, batch=1, height=128, width=96, length=64)
    >>> g.inputs["hint"].shape, len(g.outputs), g.outputs["control.4"].shape
    ((1, 16, 128, 96), 5, (1, 3072, 3072))
    """
    check_latent(height, width, config.axes, config.head_dim)
    g = Graph("qwen_image_controlnet")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    hint = g.input("hint", (batch, config.hint_channels, height, width))
    context = g.input("context", (batch, length, config.context_dim))
    hidden = hidden_scores(g.input("mask", (batch, length)), height // PATCH * (width // PATCH))
    source = computed(g, config, batch, PREFIX)
    with g.scope(PREFIX):
        img = (linear(patches(latent, PATCH), "img_in", config.hidden_size)
               + linear(patches(hint, PATCH), "controlnet_x_embedder", config.hidden_size))
        streams = {"txt": text_tokens(context, config), "img": img * STREAM_UNIT}  # [n, t, c]
        angles = angles_of(g, length, ((height, width),), config)
        for i in range(config.blocks):
            with g.scope(f"transformer_blocks.{i}"):
                streams = block(streams, block_modulations(source, i), angles, hidden, config)
            g.output(f"control.{i}", linear(streams["img"], f"controlnet_blocks.{i}",
                                            config.hidden_size, unit=STREAM_UNIT))
    return g


def qwen_image_control_places(config: QwenImageControlNetConfig, model: QwenImageConfig) -> Places:
    """Which control is added behind each block of the model: each behind as many blocks in a row,
    but for the last, where they do not divide.

    >>> from smalti.models import QWEN_IMAGE
    >>> union = QwenImageControlNetConfig(3072, heads=24, mlp_size=12288, blocks=5)
    >>> qwen_image_control_places(union, QWEN_IMAGE)[10:14]
    (0, 0, 1, 1)
    """
    each = -(-model.blocks // config.blocks)
    return tuple(i // each for i in range(model.blocks))
