"""What several families put together in the same way for their denoisers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from smalti.families.record import Agreement, Circumstances, Encoded, Floats
from smalti.models.config import ModelConfig

SINUSOIDS = 256
"""Sinusoids that stand for a number in the vector of SDXL."""

PERIOD_MAX = 10_000.0
"""Of these sinusoids, as of the positions of the paper that they are from."""


def only_context(config: ModelConfig, encoded: Mapping[str, Encoded],
                 told: Circumstances) -> dict[str, Floats]:
    """The states of the only text encoder, and guidance where the denoiser is told of it."""
    (only,) = encoded.values()
    return {"context": only.context, **guidance_told(config, told, len(only.context))}


def guidance_told(config: ModelConfig, told: Circumstances, rows: int) -> dict[str, Floats]:
    """The strength of guidance for each of so many rows, for denoisers that are told of it; a
    second model may be so where the first is not."""
    if not config.denoiser.guidance:
        return {}
    usual = config.default_distilled_guidance
    strength = usual if told.guidance is None else told.guidance
    return {"guidance": np.full(rows, strength, np.float32)}


def context_and_mask(config: ModelConfig, encoded: Mapping[str, Encoded],
                     told: Circumstances) -> dict[str, Floats]:
    """The states of the only text encoder, and which of them are those of the prompt."""
    (only,) = encoded.values()
    return {"context": only.context, "mask": only.mask}


def side_by_side(encoded: Iterable[Encoded]) -> Floats:
    """The states of all text encoders, channels behind channels."""
    return np.concatenate([each.context for each in encoded], axis=2)


def context_fits(config: ModelConfig, width: int) -> Agreement:
    """The denoiser reads prompts as wide as they come."""
    denoiser = config.denoiser
    return (f"channels of the {denoiser.title}'s context", denoiser.context_dim,
            "of the text encoders", width)


def contexts_fit(config: ModelConfig, taps: int = 1) -> Iterator[Agreement]:
    """The denoiser reads the states of all text encoders side by side, of each those behind so many
    layers."""
    yield context_fits(config, taps * sum(text.hidden_size for text in config.texts.values()))


def t5_fits(config: ModelConfig) -> Iterator[Agreement]:
    """The denoiser reads the states of T5."""
    yield context_fits(config, config.texts["t5xxl"].hidden_size)


def sinusoids(rows: list[list[float]]) -> Floats:
    """Numbers [n, k] as f32[n, k * SINUSOIDS]: of each the cosines, then the sines, at frequencies
    that fall from 1 to 1 / PERIOD_MAX; Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> sinusoids([[0.0, 1.0]]).shape
    (1, 512)
    """
    half = SINUSOIDS // 2
    frequencies = PERIOD_MAX ** (-np.arange(half) / half)
    angles = np.array(rows, np.float64)[:, :, None] * frequencies
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=2)
    return waves.reshape(len(rows), -1).astype(np.float32)
