"""T5's tokenizer: from a text to numbers of SentencePiece's unigram model.

A text is normalised (Unicode NFKC with a few rules for white space and control characters, as a
table that the vocabulary brings along), cut into words at white space, and each word into the
pieces whose probabilities have the largest product: Kudo 2018, arXiv:1804.10959; Kudo & Richardson
2018, arXiv:1808.06226. Words are cut on their own, and characters are looked up as transformers'
T5Tokenizer does it, so that numbers are those of the programs that prompts are shared from.

The vocabulary ships with Smalti; that of a model's own folder can be read as well.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from smalti.diffusion.protobuf import fields
from smalti.diffusion.tokenizer import Tokens
from smalti.errors import CheckpointError

VOCABULARY_PATH = Path(__file__).parents[1] / "assets" / "t5_tokenizer.json.gz"
VOCABULARY_BYTES_MAX = 1 << 26  # of a file, unpacked; the usual one has 2.4 million

PAD, END, UNKNOWN = 0, 1, 2
SENTINELS = 100
"""Tokens <extra_id_99> to <extra_id_0>, which end the vocabulary and stand for gaps in texts."""
UNKNOWN_PENALTY = 10.0
"""How much less likely than the least likely piece a character is that no piece holds."""
CLUSTER_BYTES_MAX = 5
"""Letters with their marks are looked up whole when they are short, else one by one."""
BLANK = "\u2581"

_ALONE = ("Cc", "Cf", "Zl", "Zp")
_MARKS = {*"\u200c\u200d\u0e33\u0eb3\uff9e\uff9f", *map(chr, range(0x1F3FB, 0x1F400))}
"""Marks, too, when text is broken into clusters (Unicode Standard Annex 29)."""
_WHITE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


class T5Tokenizer:
    """A vocabulary, and what it makes of texts.

    `pieces` are the pieces with the logarithms of their probabilities, in the order of their
    numbers; `characters` is SentencePiece's table of replacements.
    """

    ends = 1
    """Tokens that are put behind a text."""

    def __init__(self, pieces: list[tuple[str, float]], characters: bytes) -> None:
        self._pieces = {piece: (number, score) for number, (piece, score) in enumerate(pieces)
                        if number > UNKNOWN}
        self._longest = max(map(len, self._pieces), default=1)
        self._unknown = min((score for _, score in pieces), default=0.0) - UNKNOWN_PENALTY
        special = [piece for piece, _ in pieces[:UNKNOWN + 1]]
        special += [piece for piece, _ in pieces if re.fullmatch(r"<extra_id_\d+>", piece)]
        self._special = {piece: number for number, (piece, _) in enumerate(pieces)
                         if piece in special}
        self._split = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._replaced = _Replacements(characters)
        self._word_ids = lru_cache(maxsize=8192)(self._cut)

    def tokenize(self, text: str) -> list[int]:
        """Token numbers of a text of any length, without the end.

        >>> shipped().tokenize("A photo of a cat.")
        [71, 1202, 13, 3, 9, 1712, 5]
        """
        return [number for _, ids in self._words(text) for number in ids]

    def encode(self, text: str, length: int) -> Tokens:
        """`length` token numbers: those of the text as far as they fit, the end, and filling.

        >>> shipped().encode("a lovely cat", 8)
        Tokens(ids=(3, 9, 3061, 1712, 1, 0, 0, 0), count=4, cut='')
        >>> shipped().encode("a lovely cat", 4)
        Tokens(ids=(3, 9, 3061, 1), count=3, cut='cat')
        """
        ids: list[int] = []
        cut: list[str] = []
        for word, numbers in self._words(text):
            if cut or len(ids) + len(numbers) > length - 1:
                cut.append(word)
                ids.extend(numbers[:length - 1 - len(ids)])
            else:
                ids.extend(numbers)
        filled = (*ids, END, *[PAD] * (length - 1 - len(ids)))
        return Tokens(filled, len(ids), " ".join(cut))

    def _words(self, text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each word of the text, normalised, and its numbers."""
        start = 0
        for match in [*self._split.finditer(text), None]:
            part = text[start:match.start() if match else len(text)]
            for word in _WHITE.split(self._replaced(part)):
                if word:
                    yield word, self._word_ids(word)
            if match:
                start = match.end()
                yield match[0], (self._special[match[0]],)

    def _cut(self, word: str) -> tuple[int, ...]:
        """The numbers of one word; what follows a literal blank mark is one more."""
        marked = word if word.startswith(BLANK) else BLANK + word
        starts = [i for i, letter in enumerate(marked) if letter == BLANK]
        ends = [*starts[1:], len(marked)]
        return tuple(number for start, end in zip(starts, ends, strict=True)
                     for number in self._best(marked[start:end]))

    def _best(self, text: str) -> list[int]:
        """Numbers of the pieces whose scores have the largest sum; unknown ones in a row are one.

        `best[i]` is that of the first i characters: sum, where the last piece starts, its number;
        the sum is -inf as long as there is none.
        """
        count = len(text)
        best = [(0.0, 0, PAD), *[(-math.inf, 0, UNKNOWN)] * count]
        for start in range(count):
            reached = best[start][0]
            single = False
            for end in range(start + 1, min(start + self._longest, count) + 1):
                found = self._pieces.get(text[start:end])
                if found is not None:
                    number, score = found
                    if reached + score > best[end][0]:
                        best[end] = (reached + score, start, number)
                    single = single or end == start + 1
            if not single and reached + self._unknown > best[start + 1][0]:
                best[start + 1] = (reached + self._unknown, start, UNKNOWN)
        numbers: list[int] = []
        end = count
        while end:
            _, end, number = best[end]
            if number != UNKNOWN or not numbers or numbers[-1] != UNKNOWN:
                numbers.append(number)
        return numbers[::-1]


class _Replacements:
    """SentencePiece's table of replacements: a double-array trie (Aoe 1989) and the new texts.

    The trie is an array of 32-bit numbers; each has the byte that leads to it, and where its
    successors start.
    """

    def __init__(self, table: bytes) -> None:
        size = struct.unpack_from("<I", table)[0] if len(table) >= 4 else 0
        if size % 4 or 4 + size > len(table):
            raise CheckpointError("the tokenizer's table of characters is damaged")
        self._units = struct.unpack_from(f"<{size // 4}I", table, 4)
        self._texts = table[4 + size:]
        self._letter = lru_cache(maxsize=8192)(self._find)

    def __call__(self, text: str) -> str:
        if not self._units:
            return text
        return "".join(map(self._cluster, _clusters(text)))

    def _cluster(self, cluster: str) -> str:
        if len(cluster) > 1 and len(cluster.encode("utf-8", "replace")) <= CLUSTER_BYTES_MAX:
            whole = self._letter(cluster)
            if whole is not None:
                return whole
        found = ((letter, self._letter(letter)) for letter in cluster)
        return "".join(letter if new is None else new for letter, new in found)

    def _find(self, key: str) -> str | None:
        """What replaces the shortest beginning of `key` that the table knows, None without one."""
        units = self._units
        place = _successors(units[0])
        for byte in key.encode("utf-8", "replace"):
            place ^= byte
            if place >= len(units) or units[place] & 0x800000FF != byte:
                return None
            unit = units[place]
            place ^= _successors(unit)
            if unit >> 8 & 1 and place < len(units):  # a beginning ends here
                start = units[place] & 0x7FFFFFFF
                return self._texts[start:].partition(b"\0")[0].decode("utf-8", "replace")
        return None


def _successors(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _clusters(text: str) -> Iterator[str]:
    """The letters of the text, each with the marks that follow it; control characters have none."""
    if text.isascii():
        yield from text
        return
    start = 0
    kinds = ["M" if letter in _MARKS else unicodedata.category(letter) for letter in text]
    for i in range(1, len(text) + 1):
        if i == len(text) or kinds[i][0] != "M" or kinds[i - 1] in _ALONE:
            yield text[start:i]
            start = i


@cache
def shipped() -> T5Tokenizer:
    """The tokenizer of T5 and T5 v1.1, which SD 3, Flux and Chroma read."""
    return read_tokenizer(VOCABULARY_PATH)


def read_tokenizer(path: Path) -> T5Tokenizer:
    """The tokenizer of a file `tokenizer.json` (it may be packed, `.gz`) or `spiece.model`.

    Raises CheckpointError for a file that holds no unigram vocabulary of T5.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(VOCABULARY_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                data = file.read(VOCABULARY_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if len(data) > VOCABULARY_BYTES_MAX:
        raise CheckpointError(f"{path} is larger than a vocabulary can be")
    try:
        pieces, characters = _from_protobuf(data) if path.suffix == ".model" else _from_json(data)
    except (ValueError, LookupError, TypeError, AttributeError, struct.error,
            RecursionError) as error:
        raise CheckpointError(f"{path} holds no unigram vocabulary of T5: {error}") from error
    if [piece for piece, _ in pieces[:3]] != ["<pad>", "</s>", "<unk>"]:
        raise CheckpointError(f"{path} is no vocabulary of T5: it does not start with <pad>, "
                              f"</s>, <unk>")
    return T5Tokenizer(pieces, characters)


def _from_json(data: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """What a `tokenizer.json` of Hugging Face's tokenizers holds."""
    tree = json.loads(data)
    pieces = [(str(piece), float(score)) for piece, score in tree["model"]["vocab"]]
    normalizer = tree["normalizer"]
    steps = normalizer.get("normalizers", [normalizer])
    maps = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    return pieces, base64.b64decode(maps[0])


def _from_protobuf(data: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """What a `spiece.model` holds: SentencePiece's `ModelProto`, fields 1 and 3."""
    pieces, characters = [], b""
    for field, value in fields(data):
        if field == 1:
            parts = dict(fields(value))
            score, = struct.unpack("<f", parts.get(2, bytes(4)))
            pieces.append((parts[1].decode("utf-8"), score))
        elif field == 3:
            characters = dict(fields(value)).get(2, b"")
    if len(pieces) == 32000:  # transformers appends the sentinels
        pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(SENTINELS))]
    return pieces, characters
