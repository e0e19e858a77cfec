"""ControlNets (Zhang et al. 2023, arXiv:2302.05543) for Stable Diffusion 3.

Some of the model's blocks are repeated, read a picture's latent besides, and what each of them made
goes to the model through a layer that was zero when training began. Names are those of the model
(see `models/mmdit.py`) and, for what is new, of the files' authors.
"""

from __future__ import annotations

from smalti.graph import Graph
from smalti.models.controlnet import PREFIX
from smalti.models.flux import Places
from smalti.models.mmdit import PATCH, condition, image_tokens, joint_block, self_block
from smalti.models.mmdit import PREFIX as MODEL
from smalti.models.transformer_config import MMDiTConfig, MMDiTControlNetConfig
from smalti.nn import conv2d, linear, to_tokens


def sd3_controlnet_graph(config: MMDiTControlNetConfig, batch: int, height: int, width: int,
                         length: int) -> Graph:
    """What the model's blocks are given more; `height` and `width` are those of the latent.

    latent, timesteps, context and pooled as of `mmdit_graph`, and hint f32[batch, hint_channels,
    height, width], the latent of a picture -> `control.0`, ... f32[batch, height / 2 * width / 2,
    hidden_size], one for each block. Without `config.joint` there is no context, and the weights
    `x_embedder` and `pos_embed` of the model are read. Raises InputError for a latent of odd size,
    or of more tokens than there are learned positions.

    >>> from smalti.models import MMDiTControlNetConfig
    >>> canny = MMDiTControlNetConfig(hidden_size=1536, heads=24, blocks=6)
    >>> g = sd3_controlnet_graph(canny, batch=1, height=128, width=96, length=154)
    >>> g.inputs["hint"].shape, len(g.outputs), g.outputs["control.5"].shape
    ((1, 16, 128, 96), 6, (1, 3072, 1536))
    """
    g = Graph("sd3_controlnet")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    pooled = g.input("pooled", (batch, config.pooled_dim))
    hint = g.input("hint", (batch, config.hint_channels, height, width))
    with g.scope(PREFIX if config.joint else MODEL):
        x = image_tokens(latent, config)                                 # [n, t, c]
    with g.scope(PREFIX):
        vec = condition(timesteps, pooled, config)                       # [n, c]
        x = x + to_tokens(conv2d(hint, "pos_embed_input.proj", config.hidden_size, PATCH,
                                 stride=PATCH, pads=(0, 0, 0, 0)))
        if config.joint:
            context = g.input("context", (batch, length, config.context_dim))
            context = linear(context, "context_embedder", config.hidden_size)
        for i in range(config.blocks):
            if config.joint:
                with g.scope(f"joint_blocks.{i}"):
                    x, context = joint_block(x, context, vec, config, dual=i < config.dual_blocks)
            else:
                with g.scope(f"transformer_blocks.{i}"):
                    x = self_block(x, vec, config)
            g.output(f"control.{i}", linear(x, f"controlnet_blocks.{i}", config.hidden_size))
    return g


def sd3_control_places(config: MMDiTControlNetConfig, model: MMDiTConfig) -> Places:
    """Which control is added behind each block of the model: each behind as many blocks in a row.

    Behind the last one there is none.

    >>> from smalti.models import SD3_MEDIUM
    >>> sd3_control_places(MMDiTControlNetConfig(1536, 24, blocks=6), SD3_MEDIUM)[:9]
    (0, 0, 0, 0, 1, 1, 1, 1, 2)
    """
    return (*(i * config.blocks // model.blocks for i in range(model.blocks - 1)), -1)
