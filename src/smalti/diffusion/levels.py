"""The noise levels that a model was trained at, from its configuration."""

from __future__ import annotations

from smalti.diffusion.noise import ALIGNED_SD1, FlowLevels, NoiseLevels
from smalti.families import family_of
from smalti.families.flow_shift import TOKEN_PIXELS, ExponentialShift
from smalti.models.config import ModelConfig


def noise_levels(config: ModelConfig, width: int, height: int,
                 steps: int | None = None) -> NoiseLevels:
    """The levels for a picture of this size in pixels, which matters to some flow models, in so
    many steps from noise to picture, which matters to FLUX.2; None for the model's own number.

    >>> from smalti.models.config import SD15
    >>> round(noise_levels(SD15, 512, 512).highest, 4)
    14.6146
    """
    if config.prediction == "flow":
        shift = config.flow_shift
        if shift is None:
            token = config.vae.downscale * config.denoiser.patch  # shifts are stated for 16
            sides = [round(TOKEN_PIXELS / token * side) for side in (width, height)]
            by_size = (ExponentialShift(*config.flow_shift_points) if config.flow_shift_points
                       else family_of(config).shift_by_size)
            shift = by_size(sides[0], sides[1], config.default_steps if steps is None else steps)
        return FlowLevels.shifted(shift, config.train_steps, config.flow_terminal)
    if config.prediction in ("edm", "edm_v"):
        return NoiseLevels.log_spaced(config.sigma_min, config.sigma_max, config.train_steps)
    aligned = family_of(config).aligned or ALIGNED_SD1
    return NoiseLevels.scaled_linear(
        config.beta_start, config.beta_end, config.train_steps,
        zero_terminal_snr=config.zero_terminal_snr, aligned=aligned)
