"""Whether the parts of a model fit together, and whether the tokenizers fit its text encoders."""

from __future__ import annotations

from collections.abc import Iterator

from smalti.checkpoint import Checkpoint
from smalti.diffusion.tokenizer import POSITIONS, VOCABULARY
from smalti.errors import CheckpointError
from smalti.families import family_of
from smalti.families.record import Agreement
from smalti.models.config import ModelConfig

T5_VOCABULARY = 32100
"""Tokens that texts become with T5's vocabulary; models have rows for some more."""


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


def _texts(config: ModelConfig) -> Iterator[Agreement]:
    """What the tokenizers ask of the text encoders."""
    for name, text in config.texts.items():
        if family_of(config).text(name).encoder.chunked:
            yield "tokens of the text encoder", text.vocab_size, "of CLIP's vocabulary", VOCABULARY
            yield "positions of the text encoder", text.positions, "of CLIP's prompts", POSITIONS
        else:
            yield "tokens of the text encoder", text.vocab_size, "at least of T5's", max(
                text.vocab_size, T5_VOCABULARY)


def _denoiser(config: ModelConfig) -> Iterator[Agreement]:
    """What the denoiser asks of the text encoders and of the autoencoder."""
    denoiser = config.denoiser
    yield from family_of(config).agreements(config)
    yield (f"channels out of the {denoiser.title}", denoiser.out_channels,
           "of the autoencoder's latents", config.vae.z_channels)
