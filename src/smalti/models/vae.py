"""The autoencoder of latent diffusion (Rombach et al. 2022, arXiv:2112.10752, appendix G).

Names are those of the original code (CompVis `autoencoder.py`, `diffusionmodules/model.py`), where
the decoder counts its levels like the encoder: level 0 has the size of the image in both.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import VaeConfig
from smalti.nn import (
    conv2d,
    from_patches,
    from_tokens,
    group_norm,
    patches,
    silu,
    to_tokens,
    upsample_nearest,
)

PREFIX = "first_stage_model"


def vae_decoder_graph(config: VaeConfig, batch: int, height: int, width: int) -> Graph:
    """latent f32[batch, z, height, width] -> image f32[batch, 3, f * height, f * width].

    The latent is that of the autoencoder, latent / scaling_factor + shift_factor of the model's; f
    is `config.downscale`; pixels are in [-1, 1], red, green, blue. `height` and `width` are those
    of the latent. With a `config.patch` the latent is that of the model, whose statistics are
    undone here.

    >>> from smalti.models.config import SD15
    >>> g = vae_decoder_graph(SD15.vae, batch=1, height=64, width=48)
    >>> g.outputs["image"].shape, len(g.parameters)
    ((1, 3, 512, 384), 140)
    """
    g = Graph("vae_decoder")
    x = g.input("latent", (batch, config.z_channels, height, width))
    with g.scope(PREFIX):
        if config.patch > 1:
            x = _unpacked(x, config)
        if config.quant_conv:
            x = conv2d(x, "post_quant_conv", config.inner_channels, 1)
        with g.scope("decoder"):
            x = conv2d(x, "conv_in", config.decoder_widths[-1], 3)
            x = _middle(x, config)
            for level in reversed(range(len(config.decoder_widths))):
                with g.scope(f"up.{level}"):
                    for i in range(config.res_blocks + 1):
                        with g.scope(f"block.{i}"):
                            x = _residual_block(x, config.decoder_widths[level], config)
                    if level > 0:
                        x = conv2d(upsample_nearest(x), "upsample.conv", x.shape[1], 3)
            x = silu(group_norm(x, "norm_out", config.norm_groups, config.eps))
            g.output("image", conv2d(x, "conv_out", config.image_channels, 3))
    return g


def vae_encoder_graph(config: VaeConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] -> moments f32[batch, 2 * z, height / f, width / f].

    Pixels are in [-1, 1]; f is `config.downscale`. The first half of the moments is the mean, the
    second the logarithm of the variance; a latent of the model is the mean less `shift_factor`,
    times `scaling_factor`. With a `config.patch` there is the mean alone, as the latent of the
    model: mean f32[batch, z, height / f, width / f]. `height` and `width` are in pixels. Raises
    InputError when f does not divide them.

    >>> from smalti.models.config import SD15
    >>> g = vae_encoder_graph(SD15.vae, batch=1, height=512, width=384)
    >>> g.outputs["moments"].shape, len(g.parameters)
    ((1, 8, 64, 48), 108)
    """
    check_image(height, width, config)
    g = Graph("vae_encoder")
    x = g.input("image", (batch, config.image_channels, height, width))
    with g.scope(PREFIX):
        with g.scope("encoder"):
            x = conv2d(x, "conv_in", config.block_channels[0], 3)
            for level, channels in enumerate(config.block_channels):
                with g.scope(f"down.{level}"):
                    for i in range(config.res_blocks):
                        with g.scope(f"block.{i}"):
                            x = _residual_block(x, channels, config)
                    if level < len(config.block_channels) - 1:
                        # the original pads below and on the right only
                        x = conv2d(x, "downsample.conv", channels, 3, stride=2, pads=(0, 0, 1, 1))
            x = _middle(x, config)
            x = silu(group_norm(x, "norm_out", config.norm_groups, config.eps))
            x = conv2d(x, "conv_out", 2 * config.inner_channels, 3)
        if config.quant_conv:
            x = conv2d(x, "quant_conv", 2 * config.inner_channels, 1)
        if config.patch > 1:
            g.output("mean", _packed(x, config))
        else:
            g.output("moments", x)
    return g


def check_image(height: int, width: int, config: VaeConfig) -> None:
    """Raise InputError for a picture of another size than the encoder can make smaller."""
    if height % config.downscale or width % config.downscale or min(height, width) < 1:
        raise InputError(f"an image of {height} x {width} pixels (height x width) is given; this "
                         f"encoder needs positive multiples of {config.downscale}")


def _statistics(g: Graph, config: VaeConfig) -> tuple[Value, Value]:
    """Means and deviations [z, 1, 1] of the channels of the model's latents."""
    with g.scope("bn"):
        mean, variance = (g.parameter(name, (config.z_channels,)).reshape(-1, 1, 1)
                          for name in ("running_mean", "running_var"))
    return mean, g.apply("sqrt", variance + config.statistics_eps)


def _unpacked(x: Value, config: VaeConfig) -> Value:
    """Latents of the model [n, z, h, w] -> of the convolutions [n, z / p^2, p h, p w]."""
    (_, _, height, width), side = x.shape, config.patch
    mean, deviation = _statistics(x.graph, config)
    return from_patches(to_tokens(x * deviation + mean), side, side * height, side * width)


def _packed(moments: Value, config: VaeConfig) -> Value:
    """Moments of the convolutions [n, 2 z / p^2, p h, p w] -> means of the model [n, z, h, w]."""
    g, (_, _, height, width), side = moments.graph, moments.shape, config.patch
    means = g.apply("slice", moments, axis=1, start=0, end=config.inner_channels)
    x = from_tokens(patches(means, side), height // side, width // side)
    mean, deviation = _statistics(g, config)
    return (x - mean) / deviation


def _middle(x: Value, config: VaeConfig) -> Value:
    g, channels = x.graph, x.shape[1]
    with g.scope("mid.block_1"):
        x = _residual_block(x, channels, config)
    with g.scope("mid.attn_1"):
        x = _attention(x, config)
    with g.scope("mid.block_2"):
        return _residual_block(x, channels, config)


def _residual_block(x: Value, channels: int, config: VaeConfig) -> Value:
    """x [n, c, h, w] -> [n, channels, h, w]."""
    h = silu(group_norm(x, "norm1", config.norm_groups, config.eps))
    h = conv2d(h, "conv1", channels, 3)
    h = silu(group_norm(h, "norm2", config.norm_groups, config.eps))
    h = conv2d(h, "conv2", channels, 3)
    if x.shape[1] != channels:
        x = conv2d(x, "nin_shortcut", channels, 1)
    return x + h


def _attention(x: Value, config: VaeConfig) -> Value:
    """Self-attention of all pixels with one head; x [n, c, h, w]."""
    g, (_, channels, height, width) = x.graph, x.shape
    y = group_norm(x, "norm", config.norm_groups, config.eps)
    q, k, v = (to_tokens(conv2d(y, name, channels, 1)) for name in ("q", "k", "v"))
    y = g.apply("attention", q, k, v, num_heads=1)             # [n, h * w, c]
    return x + conv2d(from_tokens(y, height, width), "proj_out", channels, 1)
