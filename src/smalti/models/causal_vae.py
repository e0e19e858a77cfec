"""The autoencoder of Wan 2.1 and Qwen-Image (Wan team 2025, arXiv:2503.20314, section 4.1), of one
picture.

Its convolutions are causal in time: a frame is computed from those before it, and what lies before
the first frame is zeros. Of a kernel of three frames a single one therefore meets the last tap
only, and is a convolution of a picture. What halves and doubles time leaves the first frame as it
is. So this graph is exactly what the autoencoder of films computes of a film of one frame, with
two-dimensional weights; `families/keys/causal_vae.py` takes the tap.

Names are those of diffusers' `AutoencoderKLWan` and `AutoencoderKLQwenImage`, whose encoder counts
residual blocks and resampling in a row.
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.config import CausalVaeConfig
from smalti.models.vae import PREFIX, check_image
from smalti.nn import (
    conv2d,
    from_tokens,
    rms_norm,
    silu,
    to_tokens,
    upsample_nearest,
)

EPS = 1e-24
"""Of the norms: the square of diffusers' 1e-12, which keeps zeros from being divided by zero."""


def causal_decoder_graph(config: CausalVaeConfig, batch: int, height: int, width: int) -> Graph:
    """latent f32[batch, z, height, width] -> image f32[batch, 3, f * height, f * width].

    The latent is that of the autoencoder, latent * latents_std + latents_mean of the model's; f is
    `config.downscale`; pixels are in [-1, 1], red, green, blue. `height` and `width` are those of
    the latent.

    >>> from smalti.models.config import WAN_VAE
    >>> g = causal_decoder_graph(WAN_VAE, batch=1, height=64, width=48)
    >>> g.outputs["image"].shape, len(g.parameters)
    ((1, 3, 512, 384), 104)
    """
    g = Graph("causal_decoder")
    x = g.input("latent", (batch, config.z_channels, height, width))
    with g.scope(PREFIX):
        x = conv2d(x, "post_quant_conv", config.z_channels, 1)
        with g.scope("decoder"):
            x = conv2d(x, "conv_in", config.block_channels[-1], 3)
            x = middle(x)
            for level, channels in enumerate(reversed(config.block_channels)):
                with g.scope(f"up_blocks.{level}"):
                    for i in range(config.res_blocks + 1):
                        with g.scope(f"resnets.{i}"):
                            x = residual_block(x, channels)
                    if level < len(config.block_channels) - 1:
                        x = conv2d(upsample_nearest(x), "upsamplers.0.resample.1", channels // 2, 3)
            g.output("image", head(x, config.image_channels))
    return g


def causal_encoder_graph(config: CausalVaeConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] -> moments f32[batch, 2 * z, height / f, width / f].

    Pixels are in [-1, 1]; f is `config.downscale`. The first half of the moments is the mean, the
    second the logarithm of the variance; a latent of the model is the mean less `latents_mean`,
    over `latents_std`. `height` and `width` are in pixels. Raises InputError when f does not divide
    them.

    >>> from smalti.models.config import WAN_VAE
    >>> g = causal_encoder_graph(WAN_VAE, batch=1, height=512, width=384)
    >>> g.outputs["moments"].shape, len(g.parameters)
    ((1, 32, 64, 48), 82)
    """
    check_image(height, width, config)
    g = Graph("causal_encoder")
    x = g.input("image", (batch, config.image_channels, height, width))
    with g.scope(PREFIX):
        with g.scope("encoder"):
            x = conv2d(x, "conv_in", config.block_channels[0], 3)
            place = 0
            for level, channels in enumerate(config.block_channels):
                for _ in range(config.res_blocks):
                    with g.scope(f"down_blocks.{place}"):
                        x = residual_block(x, channels)
                    place += 1
                if level < len(config.block_channels) - 1:
                    x = conv2d(x, f"down_blocks.{place}.resample.1", channels, 3, stride=2,
                               pads=(0, 0, 1, 1))
                    place += 1
            x = middle(x)
            x = head(x, 2 * config.z_channels)
        g.output("moments", conv2d(x, "quant_conv", 2 * config.z_channels, 1))
    return g


def middle(x: Value) -> Value:
    """x [n, c, h, w] after two residual blocks with attention between them."""
    g, channels = x.graph, x.shape[1]
    with g.scope("mid_block"):
        with g.scope("resnets.0"):
            x = residual_block(x, channels)
        with g.scope("attentions.0"):
            x = _attention(x)
        with g.scope("resnets.1"):
            return residual_block(x, channels)


def head(x: Value, channels: int) -> Value:
    """The last layer of either half: x [n, c, h, w] -> [n, channels, h, w]."""
    return conv2d(silu(_norm(x, "norm_out")), "conv_out", channels, 3)


def residual_block(x: Value, channels: int) -> Value:
    """x [n, c, h, w] -> [n, channels, h, w]."""
    y = conv2d(silu(_norm(x, "norm1")), "conv1", channels, 3)
    y = conv2d(silu(_norm(y, "norm2")), "conv2", channels, 3)
    if x.shape[1] != channels:
        x = conv2d(x, "conv_shortcut", channels, 1)
    return x + y


def _attention(x: Value) -> Value:
    """Self-attention of all pixels with one head; x [n, c, h, w]."""
    g, (_, channels, height, width) = x.graph, x.shape
    qkv = to_tokens(conv2d(_norm(x, "norm"), "to_qkv", 3 * channels, 1))  # [n, h * w, 3 c]
    q, k, v = (g.apply("slice", qkv, axis=2, start=i * channels, end=(i + 1) * channels)
               for i in range(3))
    y = g.apply("attention", q, k, v, num_heads=1)
    return x + conv2d(from_tokens(y, height, width), "proj", channels, 1)


def _norm(x: Value, name: str) -> Value:
    """x [n, c, h, w] with the channels of each pixel over their root mean square."""
    return from_tokens(rms_norm(to_tokens(x), name, EPS, "gamma"), *x.shape[2:])
