"""The autoencoder of Qwen-Image-2.1 (Qwen team 2026): that of Wan 2.2 of one picture, of four
channels: colours and opacity.

It is the autoencoder of Wan 2.1 (see `causal_vae`) with what each level reads added to what it
gives, brought to that size by means of neighbouring pixels and channels, or by repeating them. As
they are counted in films, a picture is the last of two frames where time is halved as well, of
which the first is zeros.

Names are those of diffusers' `AutoencoderKLQwenImage21`.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.causal_vae import head, middle, residual_block
from smalti.models.config import ResidualVaeConfig
from smalti.models.vae import PREFIX, check_image
from smalti.nn import conv2d, pixel_shuffle, pixel_unshuffle, upsample_nearest

SIDE = 2
"""Times by which a level makes the sides of a picture larger or smaller."""


def residual_decoder_graph(config: ResidualVaeConfig, batch: int, height: int,
                           width: int) -> Graph:
    """latent f32[batch, z, height, width] -> image f32[batch, 4, f * height, f * width].

    The latent is that of the autoencoder, latent * latents_std + latents_mean of the model's; f is
    `config.downscale`; pixels are in [-1, 1], red, green, blue and opacity. `height` and `width`
    are those of the latent. Raises InputError for levels whose channels do not divide each other.

    >>> from smalti.models.config import QWEN_IMAGE21_VAE
    >>> g = residual_decoder_graph(QWEN_IMAGE21_VAE, batch=1, height=32, width=24)
    >>> g.outputs["image"].shape, len(g.parameters)
    ((1, 4, 512, 384), 128)
    """
    g, widths = Graph("residual_decoder"), config.decoder_widths
    x = g.input("latent", (batch, config.z_channels, height, width))
    with g.scope(PREFIX):
        x = conv2d(x, "post_quant_conv", config.z_channels, 1)
        with g.scope("decoder"):
            x = middle(conv2d(x, "conv_in", widths[-1], 3))
            for number, level in enumerate(reversed(range(len(widths)))):
                read, channels = x, widths[level]
                with g.scope(f"up_blocks.{number}"):
                    for i in range(config.res_blocks + 1):
                        with g.scope(f"resnets.{i}"):
                            x = residual_block(x, channels)
                    if level:
                        x = conv2d(upsample_nearest(x), "upsampler.resample.1", channels, 3)
                        x = x + enlarged(read, channels, config.frames(level - 1))
            g.output("image", head(x, config.image_channels))
    return g


def residual_encoder_graph(config: ResidualVaeConfig, batch: int, height: int,
                           width: int) -> Graph:
    """image f32[batch, 4, height, width] -> moments f32[batch, 2 * z, height / f, width / f].

    Pixels are in [-1, 1]; f is `config.downscale`. The first half of the moments is the mean, the
    second the logarithm of the variance; a latent of the model is the mean less `latents_mean`,
    over `latents_std`. `height` and `width` are in pixels. Raises InputError when f does not divide
    them, and for levels whose channels do not divide each other.

    >>> from smalti.models.config import QWEN_IMAGE21_VAE
    >>> g = residual_encoder_graph(QWEN_IMAGE21_VAE, batch=1, height=512, width=384)
    >>> g.outputs["moments"].shape, len(g.parameters)
    ((1, 128, 32, 24), 98)
    """
    check_image(height, width, config)
    g, widths = Graph("residual_encoder"), config.block_channels
    x = g.input("image", (batch, config.image_channels, height, width))
    with g.scope(PREFIX):
        with g.scope("encoder"):
            x = conv2d(x, "conv_in", config.channels, 3)
            for level, channels in enumerate(widths):
                read, last = x, level == len(widths) - 1
                with g.scope(f"down_blocks.{level}"):
                    for i in range(config.res_blocks):
                        with g.scope(f"resnets.{i}"):
                            x = residual_block(x, channels)
                    if not last:
                        x = conv2d(x, "downsampler.resample.1", channels, 3, stride=2,
                                   pads=(0, 0, 1, 1))
                x = x + reduced(read, channels, 1 if last else SIDE, config.frames(level))
            x = head(middle(x), 2 * config.z_channels)
        g.output("moments", conv2d(x, "quant_conv", 2 * config.z_channels, 1))
    return g


def enlarged(x: Value, channels: int, frames: int) -> Value:
    """x [n, c, h, w] -> [n, channels, 2 h, 2 w]: each of c channels in turn fills as many of the
    places (channel, frame, row, column) of the result, of which the last frame is the picture.

    Raises InputError where c does not divide these places.

    >>> x = Graph().input("x", (1, 8, 3, 2))
    >>> enlarged(x, 8, 2).shape, enlarged(x, 4, 1).shape
    ((1, 8, 6, 4), (1, 4, 6, 4))
    """
    g, (n, read, height, width) = x.graph, x.shape
    places = channels * frames * SIDE**2
    if places % read:
        raise _uneven(read, channels)
    times = places // read
    if times % SIDE**2 == 0 and frames % (times // SIDE**2) == 0:  # squares are of one channel
        shared = frames * SIDE**2 // times  # channels that fill one of the result in turn
        y = x.reshape(n, channels, shared, height, width)
        y = g.apply("slice", y, axis=2, start=shared - 1, end=shared)
        return upsample_nearest(y.reshape(n, channels, height, width))
    y = g.apply("expand", x.reshape(n, read, 1, height, width),
                shape=(n, read, times, height, width))
    y = y.reshape(n, channels, frames, SIDE**2, height * width)
    y = g.apply("slice", y, axis=2, start=frames - 1, end=frames)
    return pixel_shuffle(y.reshape(n, channels * SIDE**2, height, width), SIDE)


def reduced(x: Value, channels: int, side: int, frames: int) -> Value:
    """x [n, c, side h, side w] -> [n, channels, h, w]: means of as many neighbours among the places
    (channel, frame, row, column) of c channels, where frames but the last are zeros.

    Raises InputError where `channels` does not divide these places.

    >>> x = Graph().input("x", (1, 4, 6, 4))
    >>> reduced(x, 8, 2, 2).shape, reduced(x, 4, 1, 1) is x
    ((1, 8, 3, 2), True)
    """
    g, (n, read, height, width) = x.graph, x.shape
    height, width, places = height // side, width // side, read * frames * side**2
    if places % channels:
        raise _uneven(read, channels)
    if places == channels == read:
        return x
    y = pixel_unshuffle(x, side).reshape(n, read, 1, side**2, height, width)
    if frames > 1:
        empty = g.apply("expand", g.constant(0.0),
                        shape=(n, read, frames - 1, side**2, height, width))
        y = g.apply("concat", empty, y, axis=2)
    y = g.apply("reduce_mean", y.reshape(n, channels, places // channels, height, width),
                axes=(2,))
    return y.reshape(n, channels, height, width)


def _uneven(read: int, channels: int) -> InputError:
    return InputError(f"a level of the autoencoder reads {read} channels and gives {channels}; one "
                      f"must be a multiple of the other")
