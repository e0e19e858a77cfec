"""Whether the parts of a model fit together, and whether the tokenizers fit its text encoders."""

from __future__ import annotations

from collections.abc import Iterator

from smalti.checkpoint import Checkpoint
from smalti.diffusion.conditioning import SINUSOIDS
from smalti.diffusion.tokenizer import POSITIONS, VOCABULARY
from smalti.errors import CheckpointError
from smalti.models.config import ModelConfig, UNetConfig
from smalti.models.transformer_config import T5Config

Pair = tuple[str, int, str, int]

T5_VOCABULARY = 32100
"""Tokens that texts become with T5's vocabulary; models have rows for some more."""

SIZES = {"sdxl": 6, "sdxl-refiner": 5}
"""Numbers about a picture in the vector of a family."""


def check_parts(opened: Checkpoint) -> None:
    """Raise CheckpointError when the parts of a model do not fit together, or the tokenizers."""
    config, path = opened.config, opened.report.path
    for what, found, other, expected in (*_texts(config), *_denoiser(config)):
        if found != expected:
            raise CheckpointError(f"{path}: {found} {what}, but {expected} {other}; text to image "
                                  f"needs a model in which they agree")


def check_refiner(base: Checkpoint, refiner: Checkpoint) -> None:
    """Raise CheckpointError for a refiner that does not read the latents of the model."""
    ours, theirs = ((config.vae.z_channels, config.vae.downscale, config.vae.scaling_factor,
                     config.vae.shift_factor, config.prediction == "flow",
                     config.denoiser.in_channels)
                    for config in (base.config, refiner.config))
    if ours != theirs:
        raise CheckpointError(f"{refiner.report.path} cannot refine the pictures of "
                              f"{base.report.path}: its latents are others; give a model of the "
                              f"same kind, such as the SDXL refiner for an SDXL model")


def _texts(config: ModelConfig) -> Iterator[Pair]:
    for text in config.texts.values():
        if isinstance(text, T5Config):
            yield "tokens of the text encoder", text.vocab_size, "at least of T5's", max(
                text.vocab_size, T5_VOCABULARY)
            continue
        yield ("tokens of the text encoder", text.vocab_size, "of CLIP's vocabulary", VOCABULARY)
        yield ("positions of the text encoder", text.positions, "of CLIP's prompts", POSITIONS)


def _denoiser(config: ModelConfig) -> Iterator[Pair]:
    part, texts = config.denoiser, config.texts
    widths = {name: text.hidden_size for name, text in texts.items()}
    context = widths.get("t5xxl", part.context_dim if config.family == "sd3"
                         else sum(widths.values()))
    title = "UNet" if isinstance(part, UNetConfig) else "transformer"
    yield (f"channels of the {title}'s context", part.context_dim, "of the text encoders", context)
    yield (f"channels out of the {title}", part.out_channels, "of the autoencoder's latents",
           config.vae.z_channels)
    if config.family in SIZES:
        pooled = texts["clip_g"].projection
        yield ("channels of the UNet's vector", part.vector_dim, "of the pooled prompt and the "
               "sizes", pooled + SIZES[config.family] * SINUSOIDS)
    if config.family == "sd3":
        pooled = sum(texts[name].projection for name in ("clip_l", "clip_g"))
        yield "channels of the pooled prompt", part.pooled_dim, "of the text encoders", pooled
    if config.family == "flux":
        yield ("channels of the pooled prompt", part.pooled_dim, "of the text encoder",
               widths["clip_l"])
