"""The configuration of a whole model: what its tensors show, what it states, what its family does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from smalti.errors import CheckpointError
from smalti.families import ModelFamily
from smalti.families.evidence import Shapes, has
from smalti.families.flow_shift import ExponentialShift
from smalti.families.hints import Hints, TextHints
from smalti.families.record import Read
from smalti.models.config import SD15, WHOLE_WAY, ModelConfig, Prediction, VaeConfig

LATENTS_MEAN, LATENTS_STD = "edm_mean", "edm_std"
"""Tensors of Playground 2.5, whose latents have means and deviations of their own."""
PLAYGROUND_SCALING = 0.5
"""The deviation of its latents behind that, which no single file states."""
SIGMA_MAX = 1e6
"""No model was trained at such a noise level; a file that states one is damaged."""
BETA_MIN = 1e-12
"""The square of the lowest noise level that is taken for one."""
KEPT_MIN = 1e-20
"""One over the square of the highest one."""

Place = Callable[[str], int]
"""Name of a text encoder -> which of the sections about text encoders is its own."""


def derive_config(where: object, family: ModelFamily, shapes: Shapes, hints: Hints, place: Place,
                  read: Read) -> ModelConfig:
    """Configuration of the model of `family` whose parameters have these shapes.

    `where` names the file in messages, `read` gives the values of a parameter. Raises
    `CheckpointError` where a number cannot be seen, or where heads or groups do not divide a width.
    """
    denoiser = family.backbone.config(where, shapes, hints)
    prediction = hints.prediction or _prediction(family, shapes, read)
    defaults = family.defaults(denoiser, prediction)
    vae = _with_statistics(where, shapes, read, family.autoencoder.config(
        where, shapes, hints, family.vae))
    side = hints.latent_size * vae.downscale if hints.latent_size else defaults.size
    config = ModelConfig(
        family=family.name,
        texts={text.encoder.name: text.encoder.config(
                   where, shapes, _at(hints.texts, place(text.encoder.name)), text)
               for text in family.texts if not text.optional or has(shapes, text.encoder.inside)},
        denoiser=denoiser,
        vae=vae,
        prediction=prediction,
        beta_start=hints.beta_start or SD15.beta_start,
        beta_end=hints.beta_end or SD15.beta_end,
        train_steps=hints.train_steps or SD15.train_steps,
        zero_terminal_snr="ztsnr" in shapes if hints.zero_terminal_snr is None
        else hints.zero_terminal_snr,
        flow_shift=None if hints.flow_shift_by_size else hints.flow_shift or defaults.flow_shift,
        flow_shift_points=_shift_points(family, hints),
        flow_terminal=(defaults.flow_terminal if hints.flow_terminal is None
                       else hints.flow_terminal),
        **_edm_levels(hints, shapes, read),
        default_width=hints.width or side,
        default_height=hints.height or side,
        default_steps=hints.steps or defaults.steps,
        default_guidance=defaults.guidance if hints.guidance is None else hints.guidance,
        default_guidance_time=cast("tuple[float, float]",
                                   hints.guidance_time or WHOLE_WAY),
        default_sampler=hints.sampler or defaults.sampler,
        default_noise=hints.noise or defaults.noise,
        default_distilled_guidance=(defaults.distilled_guidance if hints.distilled_guidance is None
                                    else hints.distilled_guidance),
    )
    _check_schedule(where, config)
    _check_divisions(where, config)
    return config


def _at(texts: tuple[TextHints, ...], place: int) -> TextHints:
    return texts[place] if place < len(texts) else TextHints()


def _shift_points(family: ModelFamily,
                  hints: Hints) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """The points between which the shift follows the size, where others are stated than those of
    the family, whose shift is of this kind.

    Raises CheckpointError where both have the same number of tokens.
    """
    own = family.shift_by_size
    if not hints.flow_shift_by_size or not isinstance(own, ExponentialShift):
        return None
    least = hints.tokens_low or own.least[0], hints.shift_low or own.least[1]
    most = hints.tokens_high or own.most[0], hints.shift_high or own.most[1]
    if least[0] == most[0]:
        raise CheckpointError(f"the scheduler states the shift twice for {least[0]} tokens "
                              f"(base_image_seq_len, max_image_seq_len); expected two numbers")
    return None if (least, most) == (own.least, own.most) else (least, most)


def _prediction(family: ModelFamily, shapes: Shapes, read: Read) -> Prediction:
    """What the denoiser predicts, where nothing states it: a tensor `v_pred` is how some files mark
    velocities; else it is as the family sees it in the weights, or as usual for the family."""
    if "v_pred" in shapes:
        return "v_prediction"
    if "edm_vpred.sigma_max" in shapes:
        return "edm_v"
    if LATENTS_MEAN in shapes:
        return "edm"
    seen = family.predicts(shapes, read) if family.predicts is not None else None
    return seen or family.prediction


def _edm_levels(hints: Hints, shapes: Shapes, read: Read) -> dict[str, Any]:
    """The noise levels that are stated, or that some files hold as tensors of one number."""
    names = {f"sigma_{end}": f"edm_vpred.sigma_{end}" for end in ("min", "max")}
    held = {ours: float(read(stored).reshape(-1)[0]) for ours, stored in names.items()
            if math.prod(shapes.get(stored, (0,))) == 1}
    return held | {name: getattr(hints, name) for name in names
                   if getattr(hints, name) is not None}


def _with_statistics(where: object, shapes: Shapes, read: Read, vae: VaeConfig) -> VaeConfig:
    """The autoencoder with the means and deviations of its latents that a file holds as tensors.

    Raises CheckpointError for others than one of each for every channel.
    """
    if LATENTS_MEAN in shapes and not vae.latents_mean:
        mean, std = (tuple(read(name).astype(np.float64).reshape(-1).tolist())
                     if name in shapes else () for name in (LATENTS_MEAN, LATENTS_STD))
        vae = replace(vae, latents_mean=mean, latents_std=std, scaling_factor=PLAYGROUND_SCALING)
    fine = (all(map(math.isfinite, vae.latents_mean))
            and all(0 < each < math.inf for each in vae.latents_std))
    if not fine or {len(vae.latents_mean), len(vae.latents_std)} not in ({0}, {vae.z_channels}):
        raise CheckpointError(f"{where}: means and deviations of latents are {vae.latents_mean} "
                              f"and {vae.latents_std}; expected {vae.z_channels} numbers each, "
                              f"the deviations above 0")
    return vae


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
    divisions = [row for part in (*config.texts.values(), config.denoiser, config.vae)
                 for row in part.divisions()]
    wrong = [row for row in divisions if row[1] == 0 or row[1] % row[3]]
    if wrong:
        part, width, what, number = wrong[0]
        raise CheckpointError(
            f"{where}: the {part}'s width {width} cannot be split into {number} {what};"
            " state the right number in the metadata `arch_config` or the folder's config.json"
        )
