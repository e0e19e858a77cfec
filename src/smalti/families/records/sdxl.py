"""SDXL and its refiner (Podell et al. 2023, arXiv:2307.01952)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from smalti.families import clip, unet
from smalti.families.autoencoder import KL
from smalti.families.distilled import DISTILLED
from smalti.families.joining import (
    SINUSOIDS,
    contexts_fit,
    guidance_told,
    side_by_side,
    sinusoids,
)
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Agreement,
    Circumstances,
    Defaults,
    Encoded,
    Floats,
    ModelFamily,
    Text,
    always,
)
from smalti.models.config import (
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SDXL_VAE,
    SSD1B_UNET,
    VEGA_UNET,
    ModelConfig,
    Prediction,
)
from smalti.models.denoiser_config import DenoiserConfig

ALIGNED = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)
"""Ten optimised noise levels: Sabour et al. 2024, "Align your steps" (arXiv:2404.14507)."""

TURBO = {**DISTILLED["turbo"], "width": 512, "height": 512}
"""SDXL Turbo itself, unlike models that were mixed with it, makes pictures of 512 pixels."""

PLAIN = Defaults(size=1024)
VELOCITY = replace(PLAIN, steps=28, guidance=5.0, sampler="euler", noise="sgm_uniform")
"""Of models that predict the velocity, mostly down from noise alone (zero terminal SNR): NoobAI-XL
names 28 to 35 steps of Euler's method, guidance 4 to 5; levels start at the highest."""

PLAYGROUND = replace(PLAIN, steps=50, guidance=3.0, sampler="dpm++_2m")
"""Of Playground 2.5, the only one that predicts as EDM does (Li et al. 2024, arXiv:2402.17245)."""

AESTHETIC_SCORES = (6.0, 2.5)
"""What the refiner is told of the quality of a picture: of the prompt's, of the other."""

SIZES, REFINER_SIZES = 6, 5
"""Numbers about a picture behind the pooled token."""


def _added(names: Names) -> int:
    """Width of what diffusers' UNets embed beside the time, or 0."""
    return names.size("add_embedding.linear_1.weight", 1)


def _shows(names: Names) -> bool:
    return names.unet and (names.has("conditioner.embedders.", "label_emb.0.") or _added(names) > 0)


def _refiner_shows(names: Names) -> bool:
    """Its vector is narrower; a folder of it has but a second text encoder."""
    vectors = (names.size("label_emb.0.0.weight", 1), _added(names))
    second = "text_encoder_2" in names.components and "text_encoder" not in names.components
    return _shows(names) and (SDXL_REFINER_UNET.vector_dim in vectors or second
                              or names.has("conditioner.embedders.0.model."))


def _defaults(denoiser: DenoiserConfig, prediction: Prediction) -> Defaults:
    return {"v_prediction": VELOCITY, "edm": PLAYGROUND}.get(prediction, PLAIN)


def _join(config: ModelConfig, encoded: Mapping[str, Encoded],
          told: Circumstances) -> dict[str, Floats]:
    """Both encoders side by side; the vector is the pooled token and the sizes of the picture.

    Sections 2.1 and 2.2 of the paper. Nothing is cropped, and a picture is as large as it was.
    """
    pooled = encoded["clip_g"].pooled
    sizes: list[float] = [told.height, told.width, 0, 0, told.height, told.width]
    return {"context": side_by_side(encoded.values()), **guidance_told(config, told, len(pooled)),
            "vector": np.concatenate([pooled, sinusoids([sizes] * len(pooled))], axis=1)}


def _refiner_join(config: ModelConfig, encoded: Mapping[str, Encoded],
                  told: Circumstances) -> dict[str, Floats]:
    """As SDXL, with one encoder, and a score of the quality instead of the target size."""
    pooled = encoded["clip_g"].pooled
    rows = [[told.height, told.width, 0, 0, AESTHETIC_SCORES[other]] for other in told.negative]
    return {"context": encoded["clip_g"].context,
            "vector": np.concatenate([pooled, sinusoids(rows)], axis=1)}


def _vector_fits(config: ModelConfig, sizes: int) -> Iterator[Agreement]:
    denoiser: Any = config.denoiser
    encoder: Any = config.texts["clip_g"]
    yield from contexts_fit(config)
    yield ("channels of the UNet's vector", denoiser.vector_dim,
           "of the pooled prompt and the sizes", encoder.projection + sizes * SINUSOIDS)


SDXL = ModelFamily(
    name="sdxl",
    title="SDXL",
    files=(FileKind("sdxl", "an SDXL base checkpoint", _shows),),
    before=("sd2", "sd1"),
    texts=(Text(clip.L, layer=2), Text(clip.G, layer=2, pooled=True, projected=True)),
    backbone=unet.BACKBONE,
    join=_join,
    agreements=lambda config: _vector_fits(config, SIZES),
    autoencoder=KL,
    vae_file="sdxl_vae.safetensors",
    vae=SDXL_VAE,
    defaults=_defaults,
    distilled={**DISTILLED, "sd xl turbo": TURBO, "sdxl turbo": TURBO},
    published=(SDXL_UNET, SSD1B_UNET, VEGA_UNET),
    aligned=ALIGNED,
)

REFINER = ModelFamily(
    name="sdxl-refiner",
    title="the SDXL refiner",
    files=(FileKind("sdxl-refiner", "an SDXL refiner checkpoint", _refiner_shows),),
    before=("sdxl",),
    texts=(Text(clip.G, layer=2, pooled=True, projected=True),),
    backbone=unet.BACKBONE,
    join=_refiner_join,
    agreements=lambda config: _vector_fits(config, REFINER_SIZES),
    autoencoder=KL,
    vae_file="sdxl_vae.safetensors",
    vae=SDXL_VAE,
    defaults=always(PLAIN),
    published=(SDXL_REFINER_UNET,),
    aligned=ALIGNED,
)
