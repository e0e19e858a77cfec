"""From prompts to what steers the denoiser: a mapping of arrays, by the names of its inputs.

Each text encoder of the model reads all prompts as one batch, one encoder after the other; what
they give is put together as the family of the model wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.request import Request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.t5_tokenizer import shipped
from smalti.diffusion.tokenizer import END, POSITIONS, Tokens, encode
from smalti.models.config import ModelConfig
from smalti.models.parts import POOLED, TEXTS
from smalti.models.transformer_config import T5Config

SHOWN_MAX = 200  # characters of a text that is quoted in a warning
SINUSOIDS = 256
"""Sinusoids that stand for a number in the vector of SDXL."""
PERIOD_MAX = 10_000.0
AESTHETIC_SCORES = (6.0, 2.5)
"""What the refiner of SDXL is told of the quality of a picture: of the prompt's, of the other."""
PADDED_WITH_ZERO = ("clip_h", "clip_g")
"""Text encoders for which tokens behind the end are 0, for the others they are more ends."""
SKIP = {"sdxl": 2, "sdxl-refiner": 2, "sd3": 2}
"""Which of CLIP's states, from the end, a family reads: the last one where it is not named."""
T5_ROUND = 64
"""Chroma's prompts are filled up to a multiple of so many tokens, and the filling is masked."""
T5_LENGTHS = {"sd3": (77, 256), "flux": (256, 512), "chroma": (T5_ROUND, 512)}
"""The tokens that T5 reads of a prompt: at least, and at most."""


@dataclass(frozen=True)
class Prompts:
    """What each of several prompts became, and warnings about what of them was not read."""

    conditionings: tuple[Conditioning, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Encoded:
    """What a text encoder gives: context [prompts, tokens, width], pooled [prompts, width], and a
    mask [prompts, tokens] that is 1 where a token counts; the last two where the model has them."""

    context: np.ndarray
    pooled: np.ndarray | None = None
    mask: np.ndarray | None = None


def conditioned(submodels: Submodels, prompts: Mapping[str, str], asked: Request,
                timings: Stopwatch, kept_bytes_max: int) -> Prompts:
    """One conditioning for each of `prompts`, which are texts by the words that warnings use.

    Each text encoder is let go, where memory is short, before the next one is needed.
    """
    config = submodels.checkpoint.config
    encoded, warnings = {}, {}
    for part, (name, text) in zip(TEXTS, config.texts.items()):
        if isinstance(text, T5Config):
            read, shape, inputs, mask = _t5_inputs(config, prompts)
        else:
            read, shape, inputs, mask = _clip_inputs(config, name, text.positions, prompts, asked)
        with timings.of("prepare"):
            submodels.bound(part, shape)
        with timings.of("text"):
            found = submodels.run(part, shape, **inputs)
        submodels.release(part, kept_bytes_max)
        encoded[name] = Encoded(found["context"], found.get("pooled"), mask)
        for what, tokens in read.items():
            if tokens.cut:
                warnings[what] = (
                    f"{what} is longer than the {tokens.count} tokens that the model reads; not"
                    f" read: {_shortened(tokens.cut)!r}")
    rows = JOINED[config.family](config, encoded, asked)
    return Prompts(tuple({name: array[number:number + 1] for name, array in rows.items()}
                         for number in range(len(prompts))), tuple(warnings.values()))


def usual_text_shape(config: ModelConfig, number: int) -> tuple[int, int]:
    """What the text encoder of this number is compiled for, for a prompt and a negative one."""
    text = list(config.texts.values())[number]
    if isinstance(text, T5Config):
        return 2, _t5_lengths(config)[0]
    return 2, SKIP.get(config.family, 1)


def usual_tokens(config: ModelConfig) -> int:
    """The tokens that a denoiser reads of a short prompt."""
    if config.family not in T5_LENGTHS:
        return POSITIONS
    return _t5_lengths(config)[0] + (POSITIONS if config.family == "sd3" else 0)


# ---------------------------------------------------------------------- what text encoders read

Inputs = tuple[dict[str, Tokens], tuple[int, int], dict[str, np.ndarray], np.ndarray | None]


def _clip_inputs(config: ModelConfig, name: str, positions: int, prompts: Mapping[str, str],
                 asked: Request) -> Inputs:
    read = {what: encode(prompt, positions) for what, prompt in prompts.items()}
    ids = np.array([tokens.ids for tokens in read.values()], np.int32)
    ends = (ids == END).argmax(axis=1).astype(np.int32)
    if name in PADDED_WITH_ZERO:
        ids[np.arange(positions) > ends[:, None]] = 0
    inputs = {"tokens": ids}
    if (config.family, name) in POOLED:
        inputs["end"] = ends
    return read, (len(ids), asked.clip_skip or SKIP.get(config.family, 1)), inputs, None


def _t5_inputs(config: ModelConfig, prompts: Mapping[str, str]) -> Inputs:
    low, high = _t5_lengths(config)
    tokenizer = shipped()
    read = {what: tokenizer.encode(prompt, high) for what, prompt in prompts.items()}
    length = max(tokens.count + 1 for tokens in read.values())
    if config.family != "chroma":
        length = low if length <= low else high
        ids = np.array([tokens.ids[:length] for tokens in read.values()], np.int32)
        return read, ids.shape, {"tokens": ids}, None
    length = min(-(-(length + 1) // T5_ROUND) * T5_ROUND, high)
    ids = np.array([tokens.ids[:length] for tokens in read.values()], np.int32)
    places = np.arange(length)
    ends = np.array([[tokens.count] for tokens in read.values()])
    seen = (places <= ends).astype(np.float32)
    return read, ids.shape, {"tokens": ids, "mask": seen}, (places <= ends + 1).astype(np.float32)


def _t5_lengths(config: ModelConfig) -> tuple[int, int]:
    """The tokens of a prompt that T5 reads: at least, and at most. Flux dev has one length, schnell
    the other."""
    low, high = T5_LENGTHS[config.family]
    if config.family == "flux":
        low = high = high if config.denoiser.guidance else low
    return low, high


# ---------------------------------------------------------------------- what denoisers read

def _plain(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """The states of the only text encoder."""
    (only,) = encoded.values()
    return {"context": only.context}


def _sdxl(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """Both encoders side by side; the vector is the pooled token and the sizes of the picture.

    Podell et al. 2023, arXiv:2307.01952, sections 2.1 and 2.2. Nothing is cropped, and a picture is
    as large as it was.
    """
    pooled = encoded["clip_g"].pooled
    sizes = [asked.height, asked.width, 0, 0, asked.height, asked.width]
    return {"context": np.concatenate([each.context for each in encoded.values()], axis=2),
            "vector": np.concatenate([pooled, _sinusoids([sizes] * len(pooled))], axis=1)}


def _refiner(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """As SDXL, with one encoder, and a score of the quality instead of the target size."""
    pooled = encoded["clip_g"].pooled
    rows = [[asked.height, asked.width, 0, 0, score] for score in AESTHETIC_SCORES[:len(pooled)]]
    return {"context": encoded["clip_g"].context,
            "vector": np.concatenate([pooled, _sinusoids(rows)], axis=1)}


def _sd3(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """Both CLIPs side by side, filled up to the width of T5, and behind them T5's tokens.

    Esser et al. 2024, arXiv:2403.03206, section 4; without T5 its tokens are zeros.
    """
    clip = np.concatenate([encoded[name].context for name in ("clip_l", "clip_g")], axis=2)
    width = config.denoiser.context_dim
    clip = np.pad(clip, ((0, 0), (0, 0), (0, width - clip.shape[2])))
    t5 = (encoded["t5xxl"].context if "t5xxl" in encoded
          else np.zeros((len(clip), T5_LENGTHS["sd3"][0], width), np.float32))
    pooled = [encoded[name].pooled for name in ("clip_l", "clip_g")]
    return {"context": np.concatenate([clip, t5], axis=1),
            "pooled": np.concatenate(pooled, axis=1)}


def _flux(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """T5's tokens, CLIP's pooled one, and the strength of guidance where the model is told it."""
    pooled = encoded["clip_l"].pooled
    found = {"context": encoded["t5xxl"].context, "pooled": pooled}
    if config.denoiser.guidance:
        found["guidance"] = np.full(len(pooled), asked.distilled_guidance, np.float32)
    return found


def _chroma(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request) -> Conditioning:
    """T5's tokens, of which those of the prompt, its end and one filling token are seen."""
    t5 = encoded["t5xxl"]
    return {"context": t5.context, "mask": t5.mask}


JOINED: Mapping[str, Callable[[ModelConfig, Mapping[str, Encoded], Request], Conditioning]] = {
    "sd1": _plain, "sd2": _plain, "sdxl": _sdxl, "sdxl-refiner": _refiner, "sd3": _sd3,
    "flux": _flux, "chroma": _chroma,
}
"""Family -> what its denoiser reads, of all prompts, from what the text encoders give."""


def _sinusoids(rows: list[list[float]]) -> np.ndarray:
    """Numbers [n, k] as f32[n, k * SINUSOIDS]: of each the cosines, then the sines, at frequencies
    that fall from 1 to 1 / PERIOD_MAX; Vaswani et al. 2017, arXiv:1706.03762, section 3.5."""
    half = SINUSOIDS // 2
    frequencies = PERIOD_MAX ** (-np.arange(half) / half)
    angles = np.array(rows, np.float64)[:, :, None] * frequencies
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=2)
    return waves.reshape(len(rows), -1).astype(np.float32)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
