"""What a file may state about its model, since shapes do not tell it."""

from __future__ import annotations

from smalti.dataclass import dataclass
from smalti.models.config import Prediction


@dataclass(frozen=True)
class TextHints:
    """Values that a file states about a text encoder; None where it says nothing.

    `head_dim`, `rotary_base`, `gate` (the activation of gated MLPs), `softcap`, `query_size`,
    `window`, `stretched` and `stretched_from` are of language models; see `LanguageConfig`.
    `vision_heads`, and `vision_all`, the blocks whose patches see all others, are of what reads
    pictures in them.
    """

    heads: int | None = None
    activation: str | None = None
    eps: float | None = None
    head_dim: int | None = None
    rotary_base: float | None = None
    gate: str | None = None
    softcap: float | None = None
    query_size: int | None = None
    window: int | None = None
    stretched: float | None = None
    stretched_from: int | None = None
    vision_heads: int | None = None
    vision_all: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Hints:
    """Values that a file states about its model; None where it says nothing.

    `texts` are those about its text encoders, in their order. `unet_heads` are one number, or one a
    level. `reference` is whether another picture may be read as tokens, `clean` whether such
    tokens are modulated as at time 0. Sizes `width`, `height` are
    in pixels, `latent_size` in latent pixels (for both sides). `shift_low` at `tokens_low` and
    `shift_high` at `tokens_high` are the points of `ExponentialShift`; `flow_terminal` is the level
    of the last step of a schedule, 0 where the schedule tells it. `guidance_time` are two shares of
    training time, from which to which guidance counts.
    """

    texts: tuple[TextHints, ...] = ()
    unet_heads: tuple[int, ...] | None = None
    unet_head_dim: int | None = None
    unet_groups: int | None = None
    unet_eps: float | None = None
    vae_groups: int | None = None
    vae_eps: float | None = None
    scaling_factor: float | None = None
    shift_factor: float | None = None
    latents_mean: tuple[float, ...] | None = None
    latents_std: tuple[float, ...] | None = None
    statistics_eps: float | None = None
    flow_shift: float | None = None
    flow_shift_by_size: bool | None = None
    shift_low: float | None = None
    shift_high: float | None = None
    tokens_low: int | None = None
    tokens_high: int | None = None
    flow_terminal: float | None = None
    zero_terminal_snr: bool | None = None
    prediction: Prediction | None = None
    beta_schedule: str | None = None
    beta_start: float | None = None
    beta_end: float | None = None
    train_steps: int | None = None
    sigma_min: float | None = None
    sigma_max: float | None = None
    width: int | None = None
    height: int | None = None
    latent_size: int | None = None
    steps: int | None = None
    guidance: float | None = None
    guidance_time: tuple[float, ...] | None = None
    distilled_guidance: float | None = None
    reference: bool | None = None
    clean: bool | None = None
    sampler: str | None = None
    noise: str | None = None
