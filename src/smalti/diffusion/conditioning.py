"""From prompts to what steers the denoiser: a mapping of arrays, by the names of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.tokenizer import encode

SHOWN_MAX = 200  # characters of a text that is quoted in a warning


@dataclass(frozen=True)
class Prompts:
    """What each of several prompts became, and warnings about what of them was not read."""

    conditionings: tuple[Conditioning, ...]
    warnings: tuple[str, ...]


def conditioned(submodels: Submodels, prompts: Mapping[str, str], timings: Stopwatch,
                kept_bytes_max: int) -> Prompts:
    """One conditioning for each of `prompts`, which are texts by the words that warnings use.

    All prompts are one batch of the text encoder, which is then let go where memory is short.
    """
    (config,) = submodels.checkpoint.config.texts.values()
    read = {what: encode(text, config.positions) for what, text in prompts.items()}
    shape = (len(read),)
    with timings.of("prepare"):
        submodels.bound("text", shape)
    with timings.of("text"):
        ids = np.array([tokens.ids for tokens in read.values()], np.int32)
        (context,) = submodels.run("text", shape, tokens=ids).values()
    submodels.release("text", kept_bytes_max)
    warnings = tuple(
        f"{what} is longer than the {config.positions - 2} tokens that the model reads; not read: "
        f"{_shortened(tokens.cut)!r}"
        for what, tokens in read.items() if tokens.cut)
    return Prompts(tuple({"context": row[None]} for row in context), warnings)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
