"""The configuration of a whole model: what its tensors show, what it states, what its family does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from smalti.checkpoint.hints import Hints, TextHints
from smalti.checkpoint.hyperparameters import (
    HEAD_DIM,
    UNET,
    clip_config,
    divisions,
    unet_config,
    vae_config,
)
from smalti.checkpoint.layout import DENOISER, INSIDE
from smalti.checkpoint.transformer_hyperparameters import (
    chroma_config,
    flux_config,
    mmdit_config,
    t5_config,
)
from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, has
from smalti.models.config import (
    FLUX_VAE,
    SD3_VAE,
    SD15,
    SD_VAE,
    SDXL_VAE,
    DenoiserConfig,
    ModelConfig,
    TextConfig,
    VaeConfig,
)

LATENT_STATISTICS = "edm_mean"
SIGMA_MAX = 1e6
BETA_MIN = 1e-12  # the square of the lowest noise level
KEPT_MIN = 1e-20  # one over the square of the highest one
VELOCITY_NORM = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
VELOCITY_DEVIATION_MIN = 0.09
"""Of the values of that norm, in Stable Diffusion 2.x trained to predict the velocity."""

SD2_VELOCITY_SIZE = 768
"""Side of the pictures of Stable Diffusion 2.x that predicts the velocity."""
LATENT_CHANNELS = 4
"""Of the UNets; more go into those that paint into a picture or change one."""

Read = Callable[[str], np.ndarray]
Place = Callable[[str], int]
"""Name of a text encoder -> which of the sections about text encoders is its own."""


@dataclass(frozen=True)
class FamilyRules:
    """What all models of a family have, and their tensors do not show.

    `texts` are the names of the text encoders, `optional` those among them that may be missing,
    `projected` those whose pooled token is projected. `head_dim` is that of the UNet, None for 8
    heads. `size` is the side of a picture in pixels.
    """

    texts: tuple[str, ...]
    vae: VaeConfig = SD_VAE
    optional: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    head_dim: int | None = HEAD_DIM
    prediction: str = "epsilon"
    flow_shift: float | None = 1.0
    size: int = 512
    steps: int = 20
    guidance: float = 7.0
    sampler: str = "euler_a"
    noise: str = "karras"


FAMILIES: Mapping[str, FamilyRules] = {
    "sd1": FamilyRules(("clip_l",), head_dim=None),
    "sd2": FamilyRules(("clip_h",)),
    "sdxl": FamilyRules(("clip_l", "clip_g"), vae=SDXL_VAE, projected=("clip_g",), size=1024),
    "sdxl-refiner": FamilyRules(("clip_g",), vae=SDXL_VAE, projected=("clip_g",), size=1024),
    "sd3": FamilyRules(("clip_l", "clip_g", "t5xxl"), vae=SD3_VAE, optional=("t5xxl",),
                       projected=("clip_l", "clip_g"), prediction="flow", flow_shift=3.0,
                       size=1024, steps=28, guidance=4.5, sampler="euler", noise="simple"),
    "flux": FamilyRules(("clip_l", "t5xxl"), vae=FLUX_VAE, prediction="flow", size=1024,
                        steps=4, guidance=1.0, sampler="euler", noise="trailing"),
    "chroma": FamilyRules(("t5xxl",), vae=FLUX_VAE, prediction="flow", size=1024, steps=26,
                          guidance=4.0, sampler="euler", noise="trailing"),
}
FLUX_DEV = replace(FAMILIES["flux"], flow_shift=None, steps=20)
"""Of FLUX.1 models that are told the strength of guidance; others are distilled to few steps."""
TRANSFORMERS = {"sd3": mmdit_config, "flux": flux_config, "chroma": chroma_config}
"""Family -> its denoiser's configuration from shapes; the others have a UNet."""


def derive_config(where: object, family: str, shapes: Shapes, hints: Hints, place: Place,
                  read: Read) -> ModelConfig:
    """Configuration of the model of `family` whose parameters have these shapes.

    `where` names the file in messages, `read` gives the values of a parameter. Raises
    `CheckpointError` where a number cannot be seen, or where heads or groups do not divide a width.
    """
    if LATENT_STATISTICS in shapes:
        raise CheckpointError(f"{where} is a Playground 2.5 checkpoint: its latents have means and "
                              f"deviations of their own ({LATENT_STATISTICS}), which Smalti does "
                              f"not read; use another model")
    rules = FAMILIES[family]
    if family == "flux" and has(shapes, f"{INSIDE[DENOISER]}guidance_in."):
        rules = FLUX_DEV
    config = ModelConfig(
        family=family,
        texts={name: _text(where, name, shapes, _at(hints.texts, place(name)),
                           name in rules.projected)
               for name in rules.texts if name not in rules.optional or _holds(shapes, name)},
        denoiser=_denoiser(where, family, shapes, hints, rules),
        vae=vae_config(where, shapes, hints, rules.vae),
        prediction=hints.prediction or _prediction(family, shapes, read, rules),
        beta_start=hints.beta_start or SD15.beta_start,
        beta_end=hints.beta_end or SD15.beta_end,
        train_steps=hints.train_steps or SD15.train_steps,
        zero_terminal_snr=bool(hints.zero_terminal_snr) or "ztsnr" in shapes,
        flow_shift=None if hints.flow_shift_by_size else hints.flow_shift or rules.flow_shift,
        **_edm_levels(shapes, read),
        default_steps=hints.steps or rules.steps,
        default_guidance=hints.guidance or rules.guidance,
        default_sampler=hints.sampler or rules.sampler,
        default_noise=hints.noise or rules.noise,
    )
    config = replace(config, **_default_size(config, hints, rules))
    _check_schedule(where, config)
    _check_divisions(where, config)
    return config


def _at(texts: tuple[TextHints, ...], place: int) -> TextHints:
    return texts[place] if place < len(texts) else TextHints()


def _holds(shapes: Shapes, name: str) -> bool:
    return has(shapes, INSIDE[name])


def _text(where: object, name: str, shapes: Shapes, hints: TextHints,
          projected: bool) -> TextConfig:
    if name == "t5xxl":
        return t5_config(where, shapes)
    return clip_config(where, name, shapes, hints, projected)


def _denoiser(where: object, family: str, shapes: Shapes, hints: Hints,
              rules: FamilyRules) -> DenoiserConfig:
    if family in TRANSFORMERS:
        return TRANSFORMERS[family](where, shapes)
    return unet_config(where, shapes, hints, rules.head_dim)


def _prediction(family: str, shapes: Shapes, read: Read, rules: FamilyRules) -> str:
    """What the denoiser predicts, where nothing states it.

    A tensor `v_pred` is how some files mark velocities. Stable Diffusion 2.x is told by the values
    of one norm, which differ between its two ways of training (as ComfyUI does); its inpainting
    models all predict the noise.
    """
    if "v_pred" in shapes:
        return "v_prediction"
    if "edm_vpred.sigma_max" in shapes:
        return "edm_v"
    text_to_image = shapes.get(f"{UNET}input_blocks.0.0.weight", (0, 0))[1] == LATENT_CHANNELS
    if family == "sd2" and text_to_image and VELOCITY_NORM in shapes:
        spread = float(read(VELOCITY_NORM).std())
        return "v_prediction" if spread > VELOCITY_DEVIATION_MIN else "epsilon"
    return rules.prediction


def _edm_levels(shapes: Shapes, read: Read) -> dict[str, float]:
    """The noise levels that some files hold as tensors of one number."""
    names = {f"sigma_{end}": f"edm_vpred.sigma_{end}" for end in ("min", "max")}
    return {ours: float(read(stored).reshape(-1)[0]) for ours, stored in names.items()
            if math.prod(shapes.get(stored, (0,))) == 1}


def _default_size(config: ModelConfig, hints: Hints, rules: FamilyRules) -> dict[str, int]:
    side = rules.size
    if config.family == "sd2" and config.prediction == "v_prediction":
        side = SD2_VELOCITY_SIZE
    if hints.latent_size:
        side = hints.latent_size * config.vae.downscale
    return {"default_width": hints.width or side, "default_height": hints.height or side}


def _check_schedule(where: object, config: ModelConfig) -> None:
    if not 0 < config.sigma_min < config.sigma_max < SIGMA_MAX:
        raise CheckpointError(f"{where}: noise levels from {config.sigma_min} to "
                              f"{config.sigma_max}; expected 0 < sigma_min < sigma_max < "
                              f"{SIGMA_MAX:g}")
    if not 0 < config.beta_start < config.beta_end < 1:
        raise CheckpointError(
            f"{where}: betas from {config.beta_start} to {config.beta_end};"
            " expected 0 < beta_start < beta_end < 1"
        )
    roots = np.linspace(config.beta_start**0.5, config.beta_end**0.5, config.train_steps)
    kept = math.exp(np.log1p(-(roots**2)).sum())  # of the signal, after the last training step
    if config.beta_start < BETA_MIN or kept < KEPT_MIN:
        raise CheckpointError(
            f"{where}: betas from {config.beta_start} to {config.beta_end} over"
            f" {config.train_steps} training steps; expected noise levels between 1e-6 and 1e10;"
            " state the right ones in the metadata `arch_config` or the folder's scheduler"
        )


def _check_divisions(where: object, config: ModelConfig) -> None:
    """Heads and groups must divide the widths they split."""
    all_divisions = [row for part in (*config.texts.values(), config.denoiser, config.vae)
                     for row in divisions(part)]
    wrong = [row for row in all_divisions if row[1] == 0 or row[1] % row[3]]
    if wrong:
        part, width, what, number = wrong[0]
        raise CheckpointError(
            f"{where}: the {part}'s width {width} cannot be split into {number} {what};"
            " state the right number in the metadata `arch_config` or the folder's config.json"
        )
