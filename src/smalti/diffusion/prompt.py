"""Prompts as AUTOMATIC1111 reads them: what is said, how strongly, and when.

    (word)  [word]  (word:1.3)    attention times 1.1, divided by 1.1, times 1.3; nests
    \\(  \\)  \\[  \\]  \\\\            these signs themselves
    [before:after:0.5]            the prompt changes after half of the steps ([a:b:8]: after step 8)
    [word:0.5]  [word::0.5]       comes, goes
    [one|other]                   step by step in turns
    BREAK                         the rest begins a new chunk of 75 tokens
    one AND other:0.5             two prompts, whose effects add up with weights
    <lora:name:0.8>               an adapter; `lyco` is the same

Nothing is an error: what is not of these forms is text. Source: the documentation and behaviour of
AUTOMATIC1111/stable-diffusion-webui, "Features". Long prompts become several chunks, each read by
the text encoder for itself, and the results follow one another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import groupby
from typing import NamedTuple

from smalti.dataclass import dataclass
from smalti.diffusion.schedule_text import Scheduled, scheduled
from smalti.diffusion.tokenizer import END, POSITIONS, START, tokenize

CHUNK = POSITIONS - 2
BACKTRACK_MAX = 20  # tokens after a comma that go to the next chunk rather than being torn apart
STEP_UP = 1.1  # of a pair of round brackets; square ones divide by it

_ADAPTER = re.compile(r"<(\w+):([^<>]+)>")
_AND = re.compile(r"\bAND\b")
_BREAK = re.compile(r"\s*\bBREAK\b\s*")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_WEIGHT_OF_PART = re.compile(rf"(.*?)\s*:\s*({_NUMBER})\s*", re.DOTALL)
_PIECE = re.compile(rf"\\[()\[\]\\]|[()\[\]]|:\s*({_NUMBER})\s*\)|[^\\()\[\]:]+|[\\:]")


class Vector(NamedTuple):
    """One vector of a textual inversion, where a token number would be."""

    name: str
    row: int


@dataclass(frozen=True)
class Chunk:
    """Up to 75 tokens of a prompt, each a number or a `Vector`, and the weight of each."""

    tokens: tuple[int | Vector, ...] = ()
    weights: tuple[float, ...] = ()

    def ids(self, pad: int = END, positions: int = POSITIONS) -> tuple[int, ...]:
        """Token numbers for the text encoder: start, these, end, and `pad` to the last position.

        Vectors stand as 0, and `vectors` says where.
        """
        numbers = [0 if isinstance(token, Vector) else token for token in self.tokens]
        return (START, *numbers, END, *[pad] * (positions - 2 - len(numbers)))

    @property
    def vectors(self) -> Mapping[int, Vector]:
        """Position among the 77 -> the vector that belongs there."""
        return {place: token for place, token in enumerate(self.tokens, 1)
                if isinstance(token, Vector)}

    def row_weights(self, positions: int = POSITIONS) -> tuple[float, ...]:
        """The weight of each position; 1 for start, end and what fills the rest."""
        return (1.0, *self.weights, *[1.0] * (positions - 1 - len(self.weights)))


@dataclass(frozen=True)
class Span:
    """What is said from step `start` (from 0) to before step `stop`: one chunk or several, and as
    plain text, for text encoders that have neither chunks nor weights."""

    start: int
    stop: int
    chunks: tuple[Chunk, ...]
    text: str


@dataclass(frozen=True)
class Subprompt:
    """One of the prompts that AND joins, with its weight; its spans cover all steps."""

    weight: float
    spans: tuple[Span, ...]

    def at(self, step: int) -> tuple[Chunk, ...]:
        """The chunks at a step, counted from 0."""
        return next(span.chunks for span in self.spans if span.start <= step < span.stop)


@dataclass(frozen=True)
class AdapterUse:
    """An adapter that a prompt asks for, with its weights for denoiser and text encoders."""

    name: str
    weight: float
    text_weight: float


@dataclass(frozen=True)
class Prompt:
    """A prompt that has been read.

    `adapters` stand in the order in which they were written. `ignored` are the <...> of other
    kinds, or without a number where one belongs.
    """

    parts: tuple[Subprompt, ...]
    adapters: tuple[AdapterUse, ...] = ()
    ignored: tuple[str, ...] = ()


def filled(chunks: tuple[Chunk, ...], length: int) -> tuple[Chunk, ...]:
    """Chunks, and empty ones after them up to a number: prompt and negative prompt are of the same
    length."""
    return (*chunks, *[Chunk()] * (length - len(chunks)))


def parse(text: str, steps: int, *, embeddings: Mapping[str, int] | None = None,
          composed: bool = True, replace: bool = False) -> Prompt:
    """Read a prompt for a run of so many steps.

    `embeddings` are the known textual inversions: name -> number of vectors. They are found by name
    in any spelling of capitals, alone or as `embedding:name`, and never torn apart. Without
    `composed` the word AND is text (negative prompts are one). With `replace` an explicit weight
    takes the place of those around it, as in ComfyUI, instead of multiplying with them.

    >>> prompt = parse("a (red:1.5) cat<lora:fur:0.5>", steps=20)
    >>> (part,), (adapter,) = prompt.parts, prompt.adapters
    >>> (chunk,) = part.at(0)
    >>> chunk.tokens, chunk.weights, adapter.name, adapter.weight
    ((320, 736, 2368), (1.0, 1.5, 1.0), 'fur', 0.5)
    >>> [span.stop for span in parse("[dog:cat:0.25] AND snow :0.3", steps=20).parts[0].spans]
    [5, 20]
    """
    text, adapters, ignored = _adapters(text)
    known = _Names.of(embeddings or {})
    written = _AND.split(text) if composed else [text]
    parts = []
    for part in written:
        weight = 1.0
        match = _WEIGHT_OF_PART.fullmatch(part) if len(written) > 1 else None
        if match:
            part, weight = match[1], float(match[2])
        said = scheduled(part, steps)
        parts.append(Subprompt(weight, tuple(_spans(said, known, replace))))
    return Prompt(tuple(parts), tuple(adapters), tuple(ignored))


def _spans(said: Sequence[Scheduled], known: _Names, replace: bool) -> list[Span]:
    """The same text is read once."""
    read = {text: _read(text, known, replace) for _, _, text in said}
    return [Span(start, stop, *read[text]) for start, stop, text in said]


def _read(text: str, known: _Names, replace: bool) -> tuple[tuple[Chunk, ...], str]:
    """The chunks of a text, and the text without brackets and weights."""
    heard = emphasised(text, replace)
    plain = "".join(" " if part.text is None else part.text for part in heard)
    return _chunks(heard, known), plain


def _adapters(text: str) -> tuple[str, list[AdapterUse], list[str]]:
    """The text without <...>, and what was asked for in these.

    <lora:name:0.8>, or with two numbers <lora:name:text:denoiser>, or `te=` and `unet=`.
    """
    uses, ignored = [], []
    for match in _ADAPTER.finditer(text):
        kind, (name, *others) = match[1], match[2].split(":")
        named = dict(item.split("=", 1) for item in others if "=" in item)
        numbers = [item for item in others if "=" not in item]
        weights = [named.get("te", (numbers or ["1"])[0])]
        weights.append(named.get("unet", numbers[1] if len(numbers) > 1 else weights[0]))
        if kind not in ("lora", "lyco") or not all(map(_is_number, weights)):
            ignored.append(match[0])
            continue
        text_weight, weight = map(float, weights)
        uses.append(AdapterUse(name, weight, text_weight))
    return _ADAPTER.sub("", text), uses, ignored


def _is_number(text: str) -> bool:
    return re.fullmatch(_NUMBER, text.strip()) is not None


# -------------------------------------------------------------------------------- attention

@dataclass(frozen=True)
class Emphasised:
    """A stretch of text with one weight, or the end of a chunk where `text` is None."""

    text: str | None
    weight: float = 1.0


@dataclass
class _Weights:
    """The weight inside of the brackets that are open, each known by its place."""

    replace: bool
    current: float = 1.0
    open: dict[int, tuple[bool, float, float]] = field(default_factory=dict)  # and weight before

    def enter(self, place: int, explicit: bool, factor: float) -> None:
        self.open[place] = explicit, factor, self.current
        self.current = factor if explicit and self.replace else self.current * factor

    def leave(self, place: int) -> None:
        """Brackets of the two kinds may overlap, so any may be the one that closes."""
        inner = []
        while place in self.open:
            last, (explicit, factor, self.current) = self.open.popitem()
            if last != place:
                inner.append((last, explicit, factor))
        for other in reversed(inner):
            self.enter(*other)


def emphasised(text: str, replace: bool = False) -> list[Emphasised]:
    """Stretches of a prompt with their weights, and the BREAKs between them.

    >>> [(part.text, part.weight) for part in emphasised("a (b:1.5) BREAK \\\\(c\\\\)")]
    [('a ', 1.0), ('b', 1.5), (None, 1.0), ('(c)', 1.0)]
    """
    pieces = list(_PIECE.finditer(text))
    factors, ends = _brackets(pieces)
    weights = _Weights(replace)
    said: list[Emphasised] = []
    for place, piece in enumerate(pieces):
        if place in factors:
            weights.enter(place, *factors[place])
        elif place in ends:
            weights.leave(ends[place])
        elif piece[0].startswith("\\"):
            said.append(Emphasised(piece[0][1:], weights.current))
        else:
            first, *others = _BREAK.split(piece[0])
            said.append(Emphasised(first, weights.current))
            for other in others:
                said += [Emphasised(None), Emphasised(other, weights.current)]
    return _joined(said)


def _joined(said: Sequence[Emphasised]) -> list[Emphasised]:
    """Neighbours of the same weight as one, so that words are not torn apart."""
    result: list[Emphasised] = []
    heard = [part for part in said if part.text != ""]
    for (is_break, weight), group in groupby(heard, lambda part: (part.text is None, part.weight)):
        if is_break:
            result += group
        else:
            result.append(Emphasised("".join(part.text or "" for part in group), weight))
    return result


def _brackets(pieces: Sequence[re.Match[str]],
              ) -> tuple[dict[int, tuple[bool, float]], dict[int, int]]:
    """Place of an opening bracket -> (whether its weight is explicit, the weight); place of a
    closing one -> that of its opening one. Those never closed last to the end; those never opened
    are text."""
    factors: dict[int, tuple[bool, float]] = {}
    ends: dict[int, int] = {}
    waiting: dict[str, list[int]] = {"(": [], "[": []}
    for place, piece in enumerate(pieces):
        sign, number = piece[0], piece[1]
        if sign in waiting:
            waiting[sign].append(place)
            factors[place] = (False, STEP_UP if sign == "(" else 1 / STEP_UP)
        elif (sign == ")" or number) and waiting["("]:
            ends[place] = waiting["("].pop()
            if number:
                factors[ends[place]] = (True, float(number))
        elif sign == "]" and waiting["["]:
            ends[place] = waiting["["].pop()
    return factors, ends


# ----------------------------------------------------------------------------------- chunks


@dataclass(frozen=True)
class _Names:
    """Textual inversions by the first token of their names, the longest names first."""

    starting: Mapping[int, Sequence[tuple[Sequence[int], str, int]]]

    @classmethod
    def of(cls, embeddings: Mapping[str, int]) -> _Names:
        starting: dict[int, list[tuple[Sequence[int], str, int]]] = {}
        for name, count in embeddings.items():
            for spelling in (name, f"embedding:{name}"):
                ids = tokenize(spelling)
                if ids:
                    starting.setdefault(ids[0], []).append((ids, name, count))
        for names in starting.values():
            names.sort(key=lambda item: -len(item[0]))
        return cls(starting)

    def at(self, ids: Sequence[int], place: int) -> tuple[int, Sequence[Vector]] | None:
        """How many tokens a name takes at a place, and its vectors."""
        for spelling, name, count in self.starting.get(ids[place], ()):
            if ids[place:place + len(spelling)] == spelling:
                return len(spelling), [Vector(name, row) for row in range(min(count, CHUNK))]
        return None


@cache
def _comma() -> int:
    """The token of a comma: asked for when there is a prompt, for the table of words takes a tenth
    of a second to read."""
    return tokenize(",")[0]


@dataclass
class _Filling:
    """Chunks that are done, and the one that is being filled."""

    done: list[Chunk] = field(default_factory=list)
    tokens: list[int | Vector] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    comma: int | None = None  # place of the last one in this chunk

    def end(self, at: int | None = None) -> None:
        """End the chunk, before a place in it; the rest begins the next one."""
        at = len(self.tokens) if at is None else at
        self.done.append(Chunk(tuple(self.tokens[:at]), tuple(self.weights[:at])))
        self.tokens, self.weights, self.comma = self.tokens[at:], self.weights[at:], None

    def add(self, tokens: Sequence[int | Vector], weight: float) -> None:
        """Add tokens that belong together, in the next chunk if they do not fit in this one."""
        full = len(self.tokens) == CHUNK
        is_comma = tokens[0] == _comma()
        if full and not is_comma and self.comma is not None and (
                CHUNK - self.comma <= BACKTRACK_MAX):
            self.end(self.comma + 1)
        elif len(self.tokens) + len(tokens) > CHUNK:
            self.end()
        if len(self.tokens) + len(tokens) > CHUNK:
            self.end()  # even after what a comma sent on
        if is_comma:
            self.comma = len(self.tokens)
        self.tokens.extend(tokens)
        self.weights.extend([weight] * len(tokens))


def _chunks(said: Sequence[Emphasised], known: _Names) -> tuple[Chunk, ...]:
    filling = _Filling()
    for part in said:
        if part.text is None:
            filling.end()
            continue
        ids, place = tokenize(part.text), 0
        while place < len(ids):
            width, tokens = known.at(ids, place) or (1, ids[place:place + 1])
            if tokens:
                filling.add(tokens, part.weight)
            place += width
    if filling.tokens or not filling.done:
        filling.end()
    return tuple(filling.done)
