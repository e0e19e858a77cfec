"""Autoencoders, that of latent diffusion, that of Wan and Qwen-Image, and that of Qwen-Image-2.1:
their hyperparameters, their parts, the names of their layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, has, most, sizes
from smalti.families.hints import Hints
from smalti.families.keys.causal_vae import causal_vae, residual_vae
from smalti.families.keys.renaming import vae_renaming
from smalti.families.prefixes import VAE
from smalti.families.record import Autoencoder, Floats, Layout, ModelPart
from smalti.graph import Graph
from smalti.models.causal_vae import causal_decoder_graph, causal_encoder_graph
from smalti.models.config import (
    FLUX2_VAE,
    SD_VAE,
    CausalVaeConfig,
    ResidualVaeConfig,
    VaeConfig,
)
from smalti.models.residual_vae import residual_decoder_graph, residual_encoder_graph
from smalti.models.tileable import tileable
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

PACKED = FLUX2_VAE.patch
"""Pixels along a side of what is one of the latent, where there are statistics of it."""


def scaling(vae: VaeConfig) -> tuple[Floats, Floats]:
    """What is taken off the latents of an autoencoder, and what they are then multiplied by, to be
    those that a denoiser works on: f32[1 or channels, 1, 1] each.

    >>> [round(each.item(), 5) for each in scaling(SD_VAE)]
    [0.0, 0.18215]
    """
    mean = np.array(vae.latents_mean or [vae.shift_factor], np.float32)
    std = np.array(vae.latents_std or [1.0], np.float32)
    return mean[:, None, None], (np.float32(vae.scaling_factor) / std)[:, None, None]


def vae_config(where: object, shapes: Shapes, hints: Hints, known: VaeConfig) -> VaeConfig:
    """The autoencoder; what shapes do not tell is as in `known`.

    Raises CheckpointError where a number cannot be seen.
    """
    down = re.escape(VAE) + r"encoder\.down\."
    decoder, encoder = re.escape(VAE) + r"decoder\.", re.escape(VAE) + r"encoder\."
    widths = tuple(
        most(where, "autoencoder's width",
             sizes(shapes, rf"{down}{level}\.block\.\d+\.(conv\d|norm2)\.bias$", 0))
        for level in range(count(where, "autoencoder level", shapes, down + r"(\d{1,4})\.")))
    seen = [sizes(shapes, rf"{decoder}up\.{level}\.block\.\d+\.(conv\d|norm2)\.bias$", 0)
            for level in range(len(widths))]
    decoding = tuple(most(where, "autoencoder's width", each or [width])
                     for each, width in zip(seen, widths, strict=True))
    latent = [*sizes(shapes, decoder + r"conv_in\.weight$", 1),
              *sizes(shapes, re.escape(VAE) + r"post_quant_conv\.\w+$", 0)]
    patch = PACKED if has(shapes, f"{VAE}bn.") else 1
    return VaeConfig(
        channels=most(where, "autoencoder's width", sizes(shapes, encoder + r"conv_in\.\w+$", 0)),
        block_channels=widths,
        res_blocks=count(where, "autoencoder block", shapes, down + r"\d+\.block\.(\d{1,4})\."),
        z_channels=patch**2 * most(where, "latent channels", latent),
        norm_groups=hints.vae_groups or SD_VAE.norm_groups,
        eps=hints.vae_eps or SD_VAE.eps,
        image_channels=most(where, "image channels", sizes(shapes, decoder + r"conv_out\.\w+$", 0)),
        scaling_factor=hints.scaling_factor or known.scaling_factor,
        quant_conv=has(shapes, f"{VAE}quant_conv.", f"{VAE}post_quant_conv."),
        shift_factor=known.shift_factor if hints.shift_factor is None else hints.shift_factor,
        latents_mean=hints.latents_mean or (),
        latents_std=hints.latents_std or (),
        patch=patch,
        statistics_eps=_statistics_eps(hints, known),
        decoder_channels=() if decoding == widths else decoding,
    )


def _statistics_eps(hints: Hints, known: VaeConfig) -> float:
    """What is added to the variances of latents. Where a family knows better than others what it
    was trained with, that counts more than what a folder states."""
    usual = FLUX2_VAE.statistics_eps
    return known.statistics_eps if known.statistics_eps != usual else hints.statistics_eps or usual


def _parts(config: VaeConfig) -> dict[str, ModelPart]:
    return _coders(config, partial(vae_decoder_graph, config, 1),
                   partial(vae_encoder_graph, config, 1))


def _coders(config: VaeConfig, decoder: Callable[[int, int], Graph],
            encoder: Callable[[int, int], Graph]) -> dict[str, ModelPart]:
    """Both halves, of their graphs for a height and a width."""

    def decoding(height: int, width: int, directions: str = "") -> Graph:
        graph = decoder(height, width)
        return tileable(graph, directions) if directions else graph

    side = config.downscale
    return {"vae": ModelPart("the image decoder", decoding, (1, 1)),
            "vae_encoder": ModelPart("the image encoder", encoder, (side, side))}


def _layout(names: Iterable[str]) -> Layout:
    """Names of diffusers become those of latent diffusion, which are used inside."""
    rename = vae_renaming(names)
    return lambda name: rename(name).removeprefix(VAE)


KL = Autoencoder(
    "an autoencoder of latent diffusion", marks=("decoder.conv_in.weight", "decoder.mid"),
    without=(".gamma",), config=vae_config, parts=_parts, layout=_layout)
"""That of latent diffusion, which most families have."""


# ---------------------------------------------------------------------- of films


def causal_vae_config(where: object, shapes: Shapes, hints: Hints,
                      known: VaeConfig) -> CausalVaeConfig:
    """The autoencoder of Wan 2.1 and Qwen-Image; what shapes do not tell is as in `known`.

    Raises CheckpointError where a number cannot be seen.
    """
    encoder, decoder = (re.escape(VAE) + half for half in (r"encoder\.", r"decoder\."))
    blocks = encoder + r"down_blocks\.(\d{1,4})\."
    last = count(where, "block of the autoencoder", shapes, blocks)
    ends = [place for place in range(last) if has(
        shapes, f"{VAE}encoder.down_blocks.{place}.resample.")]
    widths = tuple(
        most(where, "autoencoder's width",
             sizes(shapes, rf"{encoder}down_blocks\.{end - 1}\.conv2\.bias$", 0))
        for end in (*ends, last))
    return CausalVaeConfig(
        channels=most(where, "autoencoder's width", sizes(shapes, encoder + r"conv_in\.bias$", 0)),
        block_channels=widths,
        res_blocks=(last - len(ends)) // len(widths),
        z_channels=most(where, "latent channels",
                        sizes(shapes, decoder + r"conv_in\.weight$", 1)),
        image_channels=most(where, "image channels",
                            sizes(shapes, decoder + r"conv_out\.bias$", 0)),
        latents_mean=hints.latents_mean or known.latents_mean,
        latents_std=hints.latents_std or known.latents_std,
    )


def _causal_parts(config: CausalVaeConfig) -> dict[str, ModelPart]:
    return _coders(config, partial(causal_decoder_graph, config, 1),
                   partial(causal_encoder_graph, config, 1))


NESTED = ("decoder.upsamples.0.upsamples.0.", "decoder.up_blocks.0.upsampler.")
"""What occurs in names of the autoencoders of Wan 2.2 and Qwen-Image-2.1 only."""

CAUSAL = Autoencoder(
    "an autoencoder of Wan 2.1 or Qwen-Image",
    marks=("decoder.middle.0.residual.0.gamma", "decoder.mid_block.resnets.0.norm1.gamma"),
    without=NESTED, config=causal_vae_config, parts=_causal_parts, layout=causal_vae)
"""That of Wan 2.1 and Qwen-Image, of pictures."""


def residual_vae_config(where: object, shapes: Shapes, hints: Hints,
                        known: VaeConfig) -> ResidualVaeConfig:
    """The autoencoder of Qwen-Image-2.1; what shapes do not tell is as in `known`.

    Raises CheckpointError where a number cannot be seen, or for one of films, of Wan 2.2.
    """
    encoder, decoder = (re.escape(VAE) + half for half in (r"encoder\.", r"decoder\."))
    levels = count(where, "level of the autoencoder", shapes, encoder + r"down_blocks\.(\d{1,4})\.")

    def width(start: str, level: int) -> int:
        return most(where, "autoencoder's width", sizes(
            shapes, rf"{start}_blocks\.{level}\.resnets\.\d+\.conv2\.bias$", 0))

    widths = tuple(width(f"{encoder}down", level) for level in range(levels))
    decoding = tuple(width(f"{decoder}up", level) for level in reversed(range(levels)))
    colours = most(where, "image channels", sizes(shapes, decoder + r"conv_out\.bias$", 0))
    if colours != known.image_channels:
        raise CheckpointError(f"{where}: the autoencoder gives {colours} channels of pictures; "
                              f"expected {known.image_channels}; one of 12 is of Wan 2.2")
    return ResidualVaeConfig(
        channels=most(where, "autoencoder's width", sizes(shapes, encoder + r"conv_in\.bias$", 0)),
        block_channels=widths,
        res_blocks=count(where, "autoencoder block", shapes,
                         encoder + r"down_blocks\.\d+\.resnets\.(\d{1,4})\."),
        z_channels=most(where, "latent channels", sizes(shapes, decoder + r"conv_in\.weight$", 1)),
        latents_mean=hints.latents_mean or known.latents_mean,
        latents_std=hints.latents_std or known.latents_std,
        decoder_channels=() if decoding == widths else decoding,
    )


def _residual_parts(config: ResidualVaeConfig) -> dict[str, ModelPart]:
    return _coders(config, partial(residual_decoder_graph, config, 1),
                   partial(residual_encoder_graph, config, 1))


RESIDUAL = Autoencoder(
    "the autoencoder of Qwen-Image-2.1", marks=NESTED, config=residual_vae_config,
    parts=_residual_parts, layout=residual_vae)
"""That of Qwen-Image-2.1, of pictures with an opacity."""
