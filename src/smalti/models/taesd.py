"""TAESD, the tiny autoencoder for previews (Ollin Boer Bohan 2023, madebyollin/taesd).

It reads and makes latents of the diffusion model's space, without scale or shift. Names are those
of the original code, in which all layers of a half stand in one row and count, learned or not.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import TaesdConfig
from smalti.nn import conv2d, relu, upsample_nearest

PREFIX = "taesd"
LATENT_MAX = 3.0
"""Latents are brought softly into [-3, 3] before they are decoded."""


def taesd_decoder_graph(config: TaesdConfig, batch: int, height: int, width: int) -> Graph:
    """latent f32[batch, z, height, width] -> image f32[batch, 3, f * height, f * width].

    The latent is that of the diffusion model; pixels are in [-1, 1]; f is `config.downscale`.
    `height` and `width` are those of the latent.

    >>> from smalti.models.config import TAESD
    >>> g = taesd_decoder_graph(TAESD, batch=1, height=64, width=48)
    >>> g.outputs["image"].shape, g.parameters["taesd.decoder.3.conv.0.weight"].shape
    ((1, 3, 512, 384), (64, 64, 3, 3))
    """
    g = Graph("taesd_decoder")
    x = g.input("latent", (batch, config.z_channels, height, width))
    x = g.apply("tanh", x * (1 / LATENT_MAX)) * LATENT_MAX
    with g.scope(f"{PREFIX}.decoder"):
        x, number = relu(conv2d(x, "1", config.channels, 3)), 3
        for blocks in config.decoder_blocks[:-1]:
            x, number = _blocks(x, number, blocks)
            x = conv2d(upsample_nearest(x), f"{number + 1}", config.channels, 3, bias=False)
            number += 2
        x, number = _blocks(x, number, config.decoder_blocks[-1])
        x = conv2d(x, f"{number}", config.image_channels, 3)     # [n, 3, f h, f w] in [0, 1]
    g.output("image", x * 2.0 - 1.0)
    return g


def taesd_encoder_graph(config: TaesdConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] in [-1, 1] -> latent f32[batch, z, height / f, width / f].

    The latent is that of the diffusion model; f is `config.downscale`; `height` and `width` are in
    pixels. Raises InputError when f does not divide them.

    >>> from smalti.models.config import TAESD
    >>> taesd_encoder_graph(TAESD, batch=1, height=512, width=384).outputs["latent"].shape
    (1, 4, 64, 48)
    """
    if height % config.downscale or width % config.downscale or min(height, width) < 1:
        raise InputError(f"an image of {height} x {width} pixels (height x width) is given; this "
                         f"encoder needs positive multiples of {config.downscale}")
    g = Graph("taesd_encoder")
    x = g.input("image", (batch, config.image_channels, height, width)) * 0.5 + 0.5
    with g.scope(f"{PREFIX}.encoder"):
        x = conv2d(x, "0", config.channels, 3)
        x, number = _blocks(x, 1, config.encoder_blocks[0])
        for blocks in config.encoder_blocks[1:]:
            x = conv2d(x, f"{number}", config.channels, 3, stride=2, bias=False)
            x, number = _blocks(x, number + 1, blocks)
        g.output("latent", conv2d(x, f"{number}", config.z_channels, 3))
    return g


def _blocks(x: Value, number: int, count: int) -> tuple[Value, int]:
    """`count` residual blocks, the first of which has this number; and the number after them."""
    g, channels = x.graph, x.shape[1]
    for i in range(number, number + count):
        with g.scope(f"{i}.conv"):
            y = relu(conv2d(x, "0", channels, 3))
            y = relu(conv2d(y, "2", channels, 3))
            x = relu(conv2d(y, "4", channels, 3) + x)
    return x, number + count
