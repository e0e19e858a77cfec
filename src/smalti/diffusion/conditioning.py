"""From prompts to what steers the denoiser: a mapping of arrays, by the names of its inputs.

Each text encoder of the model reads all prompts as one batch, one encoder after the other; what
they give is put together as the family of the model wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smalti.diffusion.denoiser import BESIDE, Conditioning
from smalti.diffusion.emphasis import weighted
from smalti.diffusion.prompt import Chunk, Prompt, Span, Vector, filled, parse
from smalti.diffusion.request import Request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.t5_tokenizer import shipped
from smalti.diffusion.tokenizer import END, POSITIONS
from smalti.diffusion.words import rows_of, widths
from smalti.families.parts import MASKED, POOLED, TEXTS
from smalti.models.config import ModelConfig
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


TEXT_BATCH = 2
"""What text encoders read at once; a prompt and a negative prompt without more to them are that."""
CHUNKS_MAX = 32
"""Of 75 tokens; more of a prompt are not read."""

Tokens = tuple[int | Vector, ...]

Timeline = tuple[tuple[int, Conditioning], ...]
"""(The step, counted from 0, before which it holds; what steers until then), in order."""


@dataclass(frozen=True)
class Prompts:
    """What steers the steps: `parts` are the prompts that AND joins, with their weights. `warnings`
    say what was not done as written."""

    parts: tuple[tuple[Timeline, float], ...]
    negative: Timeline
    warnings: tuple[str, ...]

    def at(self, step: int) -> tuple[list[tuple[Conditioning, float]], Conditioning]:
        """What steers a step, counted from 0: towards these, away from that."""
        return ([(_at(timeline, step), weight) for timeline, weight in self.parts],
                _at(self.negative, step))

    def beside(self, channels: np.ndarray) -> Prompts:
        """The same with channels that the network reads behind those of the latents."""
        def read(timeline: Timeline) -> Timeline:
            return tuple((stop, {**each, BESIDE: channels}) for stop, each in timeline)

        return replace(self, parts=tuple((read(each), weight) for each, weight in self.parts),
                       negative=read(self.negative))


def _at(timeline: Timeline, step: int) -> Conditioning:
    return next(conditioning for stop, conditioning in timeline if step < stop)


@dataclass(frozen=True)
class Reading:
    """What is to be encoded for a stretch of steps."""

    chunks: tuple[Chunk, ...]
    text: str
    negative: bool

    @property
    def what(self) -> str:
        """Where it comes from, in words."""
        return "the negative prompt" if self.negative else "the prompt"


@dataclass(frozen=True)
class Encoded:
    """What a text encoder gives: context [readings, tokens, width], pooled [readings, width], and a
    mask [readings, tokens] that is 1 where a token counts; the last two where the model has them.
    """

    context: np.ndarray
    pooled: np.ndarray | None = None
    mask: np.ndarray | None = None


def conditioned(submodels: Submodels, asked: Request, steps: int, timings: Stopwatch) -> Prompts:
    """What prompt and negative prompt are to the denoiser, over a run of so many steps.

    Each text encoder is done with before the next one is needed.
    """
    config = submodels.checkpoint.config
    replace = asked.emphasis == "comfy"
    counts = {word.name: word.count for word in submodels.words}
    words = {word.name: word.fit(widths(config)) for word in submodels.words}
    prompt = parse(asked.prompt, steps, embeddings=counts, replace=replace)
    negative = parse(asked.negative_prompt, steps, embeddings=counts, composed=False,
                     replace=replace)
    readings = _readings(prompt, negative)
    warnings = {text: None for reading in readings for text in _too_long(reading)}
    warnings |= {f"{text} in the prompt is of no known kind and left out": None
                 for text in (*prompt.ignored, *negative.ignored)}
    encoded = {}
    for part, (name, text) in zip(TEXTS, config.texts.items()):
        encoder = Encoder(submodels, part, name, asked, words, timings)
        if isinstance(text, T5Config):
            encoded[name], cut = encoder.t5(readings)
            warnings |= dict.fromkeys(cut)
        else:
            encoded[name] = encoder.clip(readings)
        submodels.done(part)
    rows = JOINED[config.family](config, encoded, asked, [each.negative for each in readings])
    found = {reading: {name: array[number:number + 1] for name, array in rows.items()}
             for number, reading in enumerate(readings)}

    def timeline(spans: Sequence[Span], negative: bool) -> Timeline:
        return tuple((span.stop, found[_reading(span, negative)]) for span in spans)

    return Prompts(tuple((timeline(part.spans, False), part.weight) for part in prompt.parts),
                   timeline(negative.parts[0].spans, True), tuple(warnings))


def _readings(prompt: Prompt, negative: Prompt) -> list[Reading]:
    """Everything to be encoded, once each, the negative prompt last."""
    spans = [(span, False) for part in prompt.parts for span in part.spans]
    spans += [(span, True) for span in negative.parts[0].spans]
    return list(dict.fromkeys(_reading(*each) for each in spans))


def _reading(span: Span, negative: bool) -> Reading:
    return Reading(span.chunks, span.text, negative)


def _too_long(reading: Reading) -> Iterator[str]:
    """What is said where not all chunks are read."""
    if more := sum(len(chunk.tokens) for chunk in reading.chunks[CHUNKS_MAX:]):
        yield (f"{reading.what} is longer than the {CHUNKS_MAX} times 75 tokens that are read; "
               f"{more} tokens at its end are not")


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

@dataclass(frozen=True)
class Encoder:
    """A text encoder at work: `part` of the model, called `name` in its configuration."""

    submodels: Submodels
    part: str
    name: str
    asked: Request
    words: Mapping[str, Mapping[str, np.ndarray]]
    timings: Stopwatch

    def clip(self, readings: Sequence[Reading]) -> Encoded:
        """The chunks of each reading one after the other, weighted, and as many for all; the pooled
        token is that of the first chunk."""
        length = min(max(len(reading.chunks) for reading in readings), CHUNKS_MAX)
        chunks = [filled(reading.chunks[:length], length) for reading in readings]
        texts = list(dict.fromkeys(chunk.tokens for row in chunks for chunk in row))
        empty = any(weight != 1 for row in chunks for chunk in row for weight in chunk.weights)
        texts += [()] if empty and () not in texts else []
        states = self._states(texts)
        context = [np.concatenate(self._weighted(row, texts, states["context"]))
                   for row in chunks]
        firsts = [texts.index(row[0].tokens) for row in chunks]
        pooled = states["pooled"][firsts] if "pooled" in states else None
        return Encoded(np.stack(context), pooled)

    def _states(self, texts: Sequence[Tokens]) -> dict[str, np.ndarray]:
        """What the encoder gives for chunks without weights."""
        config = self.submodels.checkpoint.config
        pad = 0 if self.name in PADDED_WITH_ZERO else END
        chunks = [Chunk(tokens) for tokens in texts]
        ids = np.array([chunk.ids(pad) for chunk in chunks], np.int32)
        shape = (self.asked.clip_skip or SKIP.get(config.family, 1),)
        inputs = {"tokens": ids}
        if any(chunk.vectors for chunk in chunks):
            shape, inputs = (*shape, True), {"embeddings": self._rows(chunks, ids)}
        if (config.family, self.name) in POOLED:
            inputs["end"] = (ids == END).argmax(axis=1).astype(np.int32)
        return self._run(shape, inputs)

    def _rows(self, chunks: Sequence[Chunk], ids: np.ndarray) -> np.ndarray:
        """The rows [chunks, positions, width] of tokens, and the vectors that stand among them."""
        prefix = self.submodels.checkpoint.config.texts[self.name].prefix
        name = f"{prefix}.text_model.embeddings.token_embedding.weight"
        vectors = [{place: self.words[vector.name][self.name][vector.row]
                    for place, vector in chunk.vectors.items()} for chunk in chunks]
        return rows_of(ids, self.submodels.weights.floats(name), vectors)

    def _weighted(self, chunks: Sequence[Chunk], texts: Sequence[Tokens],
                  states: np.ndarray) -> np.ndarray:
        """States [chunks, positions, width] of chunks with weights."""
        found = states[[texts.index(chunk.tokens) for chunk in chunks]]
        weights = np.array([chunk.row_weights() for chunk in chunks], np.float32)
        if (weights == 1).all():
            return found
        return weighted(found, weights, states[[texts.index(())]], self.asked.emphasis)

    def t5(self, readings: Sequence[Reading]) -> tuple[Encoded, list[str]]:
        """The plain text of each reading, and warnings about what of it was not read."""
        config = self.submodels.checkpoint.config
        low, high = _t5_lengths(config)
        read = [shipped().encode(reading.text, high) for reading in readings]
        cut = [f"{reading.what} is longer than the {tokens.count} tokens that the model reads; not "
               f"read: {_shortened(tokens.cut)!r}"
               for reading, tokens in zip(readings, read, strict=True) if tokens.cut]
        length = max(tokens.count + 1 for tokens in read)
        masked = config.family in MASKED
        if masked:
            length = min(-(-(length + 1) // T5_ROUND) * T5_ROUND, high)
        else:
            length = low if length <= low else high
        inputs = {"tokens": np.array([tokens.ids[:length] for tokens in read], np.int32)}
        mask = None
        if masked:
            places, ends = np.arange(length), np.array([[tokens.count] for tokens in read])
            inputs["mask"] = (places <= ends).astype(np.float32)
            mask = (places <= ends + 1).astype(np.float32)
        return Encoded(self._run((length,), inputs)["context"], mask=mask), cut

    def _run(self, shape: tuple[int, ...], inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs for any number of rows. What this picture has not read yet is read, `TEXT_BATCH`
        rows at a time."""
        shape, known = (TEXT_BATCH, *shape), self.submodels.texts
        keys = [(self.part, shape, *(array[row].tobytes() for array in inputs.values()))
                for row in range(len(next(iter(inputs.values()))))]
        new = list({key: row for row, key in enumerate(keys) if key not in known}.values())
        if new:
            with self.timings.of("prepare"):
                self.submodels.bound(self.part, shape)
        with self.timings.of("text"):
            for start in range(0, len(new), TEXT_BATCH):
                rows = [new[number % len(new)] for number in range(start, start + TEXT_BATCH)]
                found = self.submodels.run(
                    self.part, shape, **{name: array[rows] for name, array in inputs.items()})
                known |= {keys[row]: {name: array[number] for name, array in found.items()}
                          for number, row in enumerate(rows)}
        return {name: np.stack([known[key][name] for key in keys]) for name in known[keys[0]]}


def _t5_lengths(config: ModelConfig) -> tuple[int, int]:
    """The tokens of a prompt that T5 reads: at least, and at most. Flux dev has one length, schnell
    the other."""
    low, high = T5_LENGTHS[config.family]
    if config.family == "flux":
        low = high = high if config.denoiser.guidance else low
    return low, high


# ---------------------------------------------------------------------- what denoisers read

def _plain(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
           negative: Sequence[bool]) -> Conditioning:
    """The states of the only text encoder."""
    (only,) = encoded.values()
    return {"context": only.context}


def _sdxl(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
          negative: Sequence[bool]) -> Conditioning:
    """Both encoders side by side; the vector is the pooled token and the sizes of the picture.

    Podell et al. 2023, arXiv:2307.01952, sections 2.1 and 2.2. Nothing is cropped, and a picture is
    as large as it was.
    """
    pooled = encoded["clip_g"].pooled
    sizes = [asked.height, asked.width, 0, 0, asked.height, asked.width]
    return {"context": np.concatenate([each.context for each in encoded.values()], axis=2),
            "vector": np.concatenate([pooled, _sinusoids([sizes] * len(pooled))], axis=1)}


def _refiner(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
             negative: Sequence[bool]) -> Conditioning:
    """As SDXL, with one encoder, and a score of the quality instead of the target size."""
    pooled = encoded["clip_g"].pooled
    rows = [[asked.height, asked.width, 0, 0, AESTHETIC_SCORES[other]] for other in negative]
    return {"context": encoded["clip_g"].context,
            "vector": np.concatenate([pooled, _sinusoids(rows)], axis=1)}


def _sd3(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
         negative: Sequence[bool]) -> Conditioning:
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


def _flux(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
          negative: Sequence[bool]) -> Conditioning:
    """T5's tokens, CLIP's pooled one, and the strength of guidance where the model is told it."""
    pooled = encoded["clip_l"].pooled
    found = {"context": encoded["t5xxl"].context, "pooled": pooled}
    if config.denoiser.guidance:
        found["guidance"] = np.full(len(pooled), asked.distilled_guidance, np.float32)
    return found


def _chroma(config: ModelConfig, encoded: Mapping[str, Encoded], asked: Request,
            negative: Sequence[bool]) -> Conditioning:
    """T5's tokens, of which those of the prompt, its end and one filling token are seen."""
    t5 = encoded["t5xxl"]
    return {"context": t5.context, "mask": t5.mask}


Join = Callable[[ModelConfig, Mapping[str, Encoded], Request, Sequence[bool]], Conditioning]

JOINED: Mapping[str, Join] = {
    "sd1": _plain, "sd2": _plain, "sdxl": _sdxl, "sdxl-refiner": _refiner, "sd3": _sd3,
    "flux": _flux, "chroma": _chroma,
}
"""Family -> what its denoiser reads, a row for each reading, from what the text encoders give, the
request, and which readings are of the negative prompt."""


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
