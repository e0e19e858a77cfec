"""SentencePiece's byte-pair encoding with bytes for what no piece holds, as Gemma reads texts.

Blanks become marks, and neighbours are merged in the order of the vocabulary all over the text,
which is not cut into words (Kudo & Richardson 2018, arXiv:1808.06226, section 3). A character that
is no piece becomes the tokens of its bytes. A text begins with a token of its own.

Vocabularies come with models: as a `spiece.model`, in a folder, or in a tensor of a file; among the
entries of a GGUF file; or as a `tokenizer.json`. The libraries that read the first and the last
differ in small things (which tokens stand for themselves in a text, which of two merges comes
first), and each is followed in its own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from smalti.dataclass import dataclass
from smalti.diffusion.byte_pairs import Ranks, merged
from smalti.diffusion.protobuf import fields, number
from smalti.diffusion.tokenizer import Tokens

BLANK = "\u2581"
"""Stands for a blank in pieces."""
BEGIN, PADDING = "<bos>", "<pad>"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
PIECES_MAX = 1 << 20
"""Of a vocabulary; the largest published ones have a quarter of it."""

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTES = range(1, 7)
"""Types of pieces; llama.cpp numbers them as SentencePiece does."""
PAIRS = 2
"""What SentencePiece calls byte-pair encoding."""
MODEL, FALLBACK, SUFFIXED = 3, 35, 24
"""Fields of how a vocabulary was trained: its kind, whether it has bytes, whether marks stand
behind words."""
CHARACTERS, PREFIXED, SINGLE, ESCAPED = 2, 3, 4, 5
"""Fields of how texts are prepared: what replaces characters, whether a mark is put in front,
whether blanks in a row become one, whether blanks become marks."""


class ScoredPiece(NamedTuple):
    """A piece of a vocabulary."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class Pieces:
    """A vocabulary.

    `texts` are all pieces by their numbers; `single` has the numbers of those of one character, and
    `bytes` those of the 256 bytes. `ranks` says which neighbours are merged and how late, `made`
    which number each merge makes. Tokens that stand for themselves are `special` where they are
    looked for in the text as it is given, and `defined` where blanks are marks already.
    """

    texts: Sequence[str]
    single: Mapping[str, int]
    bytes: Sequence[int]
    ranks: Ranks
    made: Sequence[int]
    special: Mapping[str, int]
    defined: Mapping[str, int]
    begin: int
    padding: int

    @property
    def count(self) -> int:
        """All numbers that a text may become are below this one."""
        return len(self.texts)


class SentenceBpe:
    """A vocabulary, and what it makes of texts."""

    ends = 0
    """Tokens that are put behind a text."""

    def __init__(self, vocabulary: Pieces) -> None:
        self.vocabulary = vocabulary
        self._special = _any_of(vocabulary.special)
        self._defined = _any_of(vocabulary.defined)

    def tokenize(self, text: str) -> list[int]:
        """Token numbers of a text of any length, without the one that it begins with."""
        of = self.vocabulary
        text = text.encode("utf-8", "replace").decode("utf-8")
        found: list[int] = []
        for part, token in _cut(text, self._special, of.special):
            for stretch, inner in _cut(part.replace(" ", BLANK), self._defined, of.defined):
                found += merged(self._characters(stretch), of.ranks, of.made)
                found += [] if inner is None else [inner]
            found += [] if token is None else [token]
        return found

    def encode(self, text: str, length: int) -> Tokens:
        """`length` token numbers: the beginning, those of the text as far as they fit, and filling;
        the beginning counts as one of the text."""
        ids = [self.vocabulary.begin, *self.tokenize(text)]
        filled = (*ids[:length], *[self.vocabulary.padding] * (length - len(ids)))
        return Tokens(filled, min(len(ids), length), self._text(ids[length:]))

    def _characters(self, text: str) -> list[int]:
        """The numbers of the characters, of bytes where they are no pieces."""
        of, found = self.vocabulary, []
        for character in text:
            known = of.single.get(character)
            found += [of.bytes[byte] for byte in character.encode()] if known is None else [known]
        return found

    def _text(self, ids: Iterable[int]) -> str:
        """What tokens stand for."""
        written = b""
        for token in ids:
            text = self.vocabulary.texts[token]
            byte = BYTE.fullmatch(text)
            written += bytes([int(byte[1], 16)]) if byte else text.replace(BLANK, " ").encode()
        return written.decode("utf-8", "replace")


def _any_of(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """Finds any of them, the longest where several begin at one place."""
    longest = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or "(?!)")


def _cut(text: str, found: re.Pattern[str],
         tokens: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """What stands before each token in a text, with the token; what is behind the last, with None.
    """
    start = 0
    for match in found.finditer(text):
        yield text[start:match.start()], tokens[match[0]]
        start = match.end()
    yield text[start:], None


class ByScore(Mapping[tuple[int, int], int]):
    """Which two pieces are merged how late: those that make a piece, by its score."""

    def __init__(self, texts: Sequence[str], ranks: Mapping[str, int]) -> None:
        self._texts, self._ranks = texts, ranks

    def get(self, pair: tuple[int, int], default: Any = None) -> Any:
        return self._ranks.get(self._texts[pair[0]] + self._texts[pair[1]], default)

    def __getitem__(self, pair: tuple[int, int]) -> int:
        return self._ranks[self._texts[pair[0]] + self._texts[pair[1]]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = {text: place for place, text in enumerate(self._texts)}
        return ((numbers[text[:cut]], numbers[text[cut:]]) for text in self._ranks
                for cut in range(1, len(text)) if {text[:cut], text[cut:]} <= numbers.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def of_protobuf(data: bytes) -> SentenceBpe:
    """What a `spiece.model` holds: SentencePiece's `ModelProto`.

    Raises ValueError for a vocabulary that reads texts otherwise, LookupError or struct.error for
    one that is damaged.
    """
    pieces, trained, prepared = [], {}, {}
    for field, value in fields(data):
        if field == 1:
            parts = dict(fields(value))
            score, = struct.unpack("<f", parts.get(2, bytes(4)))
            pieces.append(ScoredPiece(parts[1].decode("utf-8"), score,
                                      number(parts[3]) if 3 in parts else NORMAL))
        elif field == 2:
            trained = dict(fields(value))
        elif field == 3:
            prepared = dict(fields(value))

    def stated(table: Mapping[int, bytes], field: int, usual: int) -> int:
        return number(table[field]) if field in table else usual

    if stated(trained, MODEL, 1) != PAIRS or not stated(trained, FALLBACK, 0):
        raise ValueError("it is no byte-pair encoding with bytes, as Gemma's is")
    if (stated(prepared, PREFIXED, 1) or stated(prepared, SINGLE, 1)
            or not stated(prepared, ESCAPED, 1) or prepared.get(CHARACTERS)
            or stated(trained, SUFFIXED, 0)):
        raise ValueError("it changes texts before they are cut, which Gemma's does not")
    return of_pieces(pieces)


def of_pieces(pieces: Sequence[ScoredPiece]) -> SentenceBpe:
    """The tokenizer of pieces with scores, as SentencePiece computes it. Raises ValueError for
    types that are not known, LookupError where pieces are missing that all such have."""
    texts = [piece.text for piece in pieces]
    wrong = next((piece for piece in pieces if piece.type not in range(NORMAL, BYTES + 1)), None)
    if wrong is not None:
        raise ValueError(f"the piece {wrong.text!r:.60} is of the unknown type {wrong.type}")
    numbers = {piece.text: place for place, piece in enumerate(pieces)
               if piece.type in (NORMAL, DEFINED)}
    order = sorted(numbers.values(), key=lambda place: -pieces[place].score)
    named = {text: place for place, text in enumerate(texts)}
    ranks = {texts[place]: rank for rank, place in enumerate(order)}
    return SentenceBpe(Pieces(
        texts, _single(numbers), _byte_numbers(named), ByScore(texts, ranks), order, {},
        {piece.text: place for place, piece in enumerate(pieces) if piece.type == DEFINED},
        named[BEGIN], named[PADDING]))


def of_tree(tree: Any) -> SentenceBpe:
    """What a `tokenizer.json` of Hugging Face's tokenizers holds, as that library computes it.

    Raises ValueError for one that reads texts otherwise, LookupError or TypeError for one that
    lacks what it must have.
    """
    model = tree["model"]
    normalizer = tree["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    if [{key: step.get(key) for key in ("type", "pattern", "content")} for step in steps] != [
            {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]:
        raise ValueError(f"texts are prepared by {normalizer!r:.200}, not as Gemma's are")
    words = tree["pre_tokenizer"]  # cuts at blanks, of which none are left
    if words is not None and (words.get("type"), words.get("pattern")) != (
            "Split", {"String": " "}):
        raise ValueError(f"texts are cut by {words!r:.200}, not as Gemma's are")
    if model.get("ignore_merges") or model.get("dropout"):
        raise ValueError("pieces are merged otherwise than Gemma's are")
    vocabulary: Mapping[str, int] = model["vocab"]
    added = tree["added_tokens"]
    named = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    texts = [""] * (1 + min(max(named.values()), PIECES_MAX))
    for text, place in named.items():
        if type(place) is not int or not 0 <= place < PIECES_MAX:
            raise ValueError(f"the number of {text!r:.60} is none")
        texts[place] = text
    ranks, made = in_order(vocabulary, model["merges"])
    return SentenceBpe(Pieces(
        texts, _single(vocabulary), _byte_numbers(vocabulary), ranks, made,
        {token["content"]: token["id"] for token in added if not token.get("normalized")},
        {token["content"].replace(" ", BLANK): token["id"] for token in added
         if token.get("normalized")},
        named[BEGIN], named[PADDING]))


def in_order(vocabulary: Mapping[str, int],
             merges: Iterable[str | list[str]]) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Which pairs are merged how late, and what each becomes; both parts of one may be a text."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    ranks = {(vocabulary[left], vocabulary[right]): rank
             for rank, (left, right) in enumerate(pairs)}
    return ranks, [vocabulary[left + right] for left, right in pairs]


def _single(numbers: Mapping[str, int]) -> dict[str, int]:
    return {text: place for text, place in numbers.items() if len(text) == 1}


def _byte_numbers(named: Mapping[str, int]) -> list[int]:
    """The numbers of the bytes; some files have a character itself for its byte."""
    return [named[text] if (text := f"<0x{byte:02X}>") in named else named[chr(byte)]
            for byte in range(256)]
