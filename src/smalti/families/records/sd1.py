"""Stable Diffusion 1.x (Rombach et al. 2022, arXiv:2112.10752)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from smalti.families import clip, unet
from smalti.families.autoencoder import KL
from smalti.families.joining import contexts_fit, only_context
from smalti.families.names import FileKind
from smalti.families.record import ModelFamily, Text
from smalti.models.config import SD1_UNET

SD1 = ModelFamily(
    name="sd1",
    title="Stable Diffusion 1.x",
    files=(
        FileKind("sd1-inpaint", "a Stable Diffusion 1.x inpainting checkpoint (9 input channels)",
                 lambda names: names.unet and names.input_channels == 9),
        FileKind("sd1-pix2pix", "an InstructPix2Pix checkpoint (8 input channels)",
                 lambda names: names.unet and names.input_channels == 8),
        FileKind("sd1", "a Stable Diffusion 1.x checkpoint",
                 lambda names: names.unet and (names.autoencoder or names.text)),
        FileKind("unet", "a UNet of Stable Diffusion 1.x alone, without text encoder and "
                 "autoencoder", lambda names: names.unet),
    ),
    texts=(Text(clip.L, final_norm=True),),
    backbone=replace(unet.BACKBONE, config=partial(unet.unet_config, head_dim=None)),
    join=only_context,
    agreements=contexts_fit,
    autoencoder=KL,
    vae_file="vae-ft-mse-840000-ema-pruned.safetensors",
    published=(SD1_UNET,),
)
"""With 9 input channels for inpainting, with 8 InstructPix2Pix."""
