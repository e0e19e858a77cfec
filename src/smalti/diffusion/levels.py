"""The noise levels that a model was trained at, from its configuration."""

from __future__ import annotations

from smalti.diffusion.noise import ALIGNED_SD1, FlowLevels, NoiseLevels
from smalti.families import family_of
from smalti.models.config import ModelConfig

PUBLISHED_DOWNSCALE = 8
"""Pixels a pixel of the latent, for which the shift is stated; it follows from the latent."""


def noise_levels(config: ModelConfig, width: int, height: int) -> NoiseLevels:
    """The levels for a picture of this size in pixels, which matters to some flow models.

    >>> from smalti.models.config import SD15
    >>> round(noise_levels(SD15, 512, 512).highest, 4)
    14.6146
    """
    if config.prediction == "flow":
        shift = config.flow_shift
        if shift is None:
            scale = PUBLISHED_DOWNSCALE / config.vae.downscale
            shift = family_of(config).shift_by_size(round(scale * width), round(scale * height))
        return FlowLevels.shifted(shift, config.train_steps)
    if config.prediction in ("edm", "edm_v"):
        return NoiseLevels.log_spaced(config.sigma_min, config.sigma_max, config.train_steps)
    aligned = family_of(config).aligned or ALIGNED_SD1
    return NoiseLevels.scaled_linear(
        config.beta_start, config.beta_end, config.train_steps,
        zero_terminal_snr=config.zero_terminal_snr, aligned=aligned)
