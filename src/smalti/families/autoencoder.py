"""The KL autoencoder of latent diffusion: its hyperparameters, its parts, the names of its layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from smalti.families.evidence import Shapes, count, has, most, sizes
from smalti.families.hints import Hints
from smalti.families.keys.renaming import vae_renaming
from smalti.families.prefixes import VAE
from smalti.families.record import Autoencoder, Layout, ModelPart
from smalti.graph import Graph
from smalti.models.config import SD_VAE, VaeConfig
from smalti.models.tileable import tileable
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph


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
    latent = [*sizes(shapes, decoder + r"conv_in\.weight$", 1),
              *sizes(shapes, re.escape(VAE) + r"post_quant_conv\.\w+$", 0)]
    return VaeConfig(
        channels=most(where, "autoencoder's width", sizes(shapes, encoder + r"conv_in\.\w+$", 0)),
        block_channels=widths,
        res_blocks=count(where, "autoencoder block", shapes, down + r"\d+\.block\.(\d{1,4})\."),
        z_channels=most(where, "latent channels", latent),
        norm_groups=hints.vae_groups or SD_VAE.norm_groups,
        eps=hints.vae_eps or SD_VAE.eps,
        image_channels=most(where, "image channels", sizes(shapes, decoder + r"conv_out\.\w+$", 0)),
        scaling_factor=hints.scaling_factor or known.scaling_factor,
        quant_conv=has(shapes, f"{VAE}quant_conv.", f"{VAE}post_quant_conv."),
        shift_factor=known.shift_factor if hints.shift_factor is None else hints.shift_factor,
        latents_mean=hints.latents_mean or (),
        latents_std=hints.latents_std or (),
    )


def _parts(config: VaeConfig) -> dict[str, ModelPart]:
    side = config.downscale
    return {"vae": ModelPart("the image decoder", partial(_decoder_graph, config), (1, 1)),
            "vae_encoder": ModelPart("the image encoder", partial(vae_encoder_graph, config, 1),
                                (side, side))}


def _decoder_graph(config: VaeConfig, height: int, width: int, directions: str = "") -> Graph:
    graph = vae_decoder_graph(config, 1, height, width)
    return tileable(graph, directions) if directions else graph


def _layout(names: Iterable[str]) -> Layout:
    """Names of diffusers become those of latent diffusion, which are used inside."""
    rename = vae_renaming(names)
    return lambda name: rename(name).removeprefix(VAE)


KL = Autoencoder(marks=("decoder.conv_in.weight", "decoder.mid"), config=vae_config, parts=_parts,
                 layout=_layout)
