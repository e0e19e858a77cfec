"""CLIP's byte-pair tokenizer: from a prompt to 77 numbers.

Merges and vocabulary are those of Radford et al. 2021 (arXiv:2103.00020), the algorithm is
byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909). Text is prepared as
transformers' CLIPTokenizer of today does it: Unicode NFC, white space to one blank, lower case.
HTML entities stay as they are and nothing is repaired (OpenAI's own tokenizer did both), because
that is how the programs that prompts are shared from read them.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from smalti.dataclass import dataclass
from smalti.diffusion.byte_pairs import byte_symbols, merged, outline

MERGES_PATH = Path(__file__).parents[1] / "assets" / "bpe_simple_vocab_16e6.txt.gz"
MERGES = 49152 - 256 - 2  # the file holds more; the vocabulary uses these
FIRST_MERGE = 2 * 256  # number of the token that the first pair makes, behind those of bytes
MERGES_BYTES_MAX = 1_000_000  # unpacked, this many bytes hold them all

VOCABULARY = 49408  # of CLIP: 49152 and 256 byte pairs, with the two marks of start and end
START = VOCABULARY - 2
END = VOCABULARY - 1  # also fills the rest of the 77 positions
POSITIONS = 77  # that CLIP's text encoders have learned
SPECIAL = {"<|startoftext|>": START, "<|endoftext|>": END}

# Unicode's White_Space; Python's own \s also holds the separators U+001C to U+001F
_BLANK = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# over ASCII only: `outline` has replaced all other letters by z and numbers by 0
_WORD = re.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^ a-z0-9]+"
)


@dataclass(frozen=True)
class Tokens:
    """An encoded prompt.

    `ids` are the 77 token numbers: start, the prompt, end, and end again up to the last position.
    `count` is how many of them belong to the prompt (at most 75). `cut` is the text that did not
    fit, from the first word that is not wholly in; "" where all of it did.
    """

    ids: tuple[int, ...]
    count: int
    cut: str = ""


def encode(prompt: str, positions: int = POSITIONS) -> Tokens:
    """Token numbers of a prompt, cut or filled to `positions`.

    >>> encode("a photo of a cat").ids[:8]
    (49406, 320, 1125, 539, 320, 2368, 49407, 49407)
    >>> encode("word " * 74 + "tokenizer fits not").cut
    'tokenizer fits not'
    """
    room = positions - 2
    text = _normalise(prompt)
    ids: list[int] = []
    cut = ""
    for start, word_ids in _words(text):
        if len(ids) + len(word_ids) > room:
            cut = text[start:].strip()
            ids.extend(word_ids[: room - len(ids)])
            break
        ids.extend(word_ids)
    filled = (START, *ids, *[END] * (positions - 1 - len(ids)))
    return Tokens(filled, len(ids), cut)


def tokenize(text: str) -> list[int]:
    """Token numbers of a text of any length, without start and end.

    >>> tokenize("a cat's")
    [320, 2368, 568]
    """
    return [number for _, ids in _words(_normalise(text)) for number in ids]


def _normalise(text: str) -> str:
    text = _BLANK.sub(" ", unicodedata.normalize("NFC", text))
    if text.isascii():
        return text.lower()
    # letter by letter, so that a sigma at the end of a word is not special; special tokens stay
    return "".join(map(str.lower, text))


def _words(text: str):
    """(position, token numbers) of each word of a normalised text, one after the other."""
    for match in _WORD.finditer(outline(text)):
        word = text[match.start() : match.end()]
        yield match.start(), (SPECIAL[word],) if word in SPECIAL else _word_ids(word)


class MergeRanks:
    """The rank of each pair of numbers that is merged.

    Pairs are looked up by their texts, so that the 48,894 lines of the table are only split from
    each other when it is read, and not taken apart.
    """

    def __init__(self, lines: Sequence[str], singles: Sequence[str]) -> None:
        self._lines, self._singles = lines, singles
        self._ranks = dict(zip(lines, range(len(lines)), strict=True))

    def _text(self, number: int) -> str:
        """The symbols that a number stands for."""
        if number < FIRST_MERGE:
            return self._singles[number]
        if number >= FIRST_MERGE + len(self._lines):  # a mark, which is merged with nothing
            return ""
        return self._lines[number - FIRST_MERGE].replace(" ", "")

    def get(self, pair: tuple[int, int], /) -> int | None:
        """The rank of a pair, or None where it is not merged."""
        return self._ranks.get(f"{self._text(pair[0])} {self._text(pair[1])}")


@dataclass(frozen=True)
class Merges:
    """The pairs of the table as "left right", their ranks by the numbers of both, and symbol and
    number of each byte."""

    lines: tuple[str, ...]
    ranks: MergeRanks
    symbols: tuple[str, ...]
    numbers: dict[str, int]


@cache
def merges() -> Merges:
    """The table of pairs, which is read once."""
    packed = MERGES_PATH.read_bytes()
    text = zlib.decompressobj(wbits=31).decompress(packed, MERGES_BYTES_MAX).decode("utf-8")
    lines = tuple(text.split("\n", MERGES + 1)[1 : MERGES + 1])
    symbols = byte_symbols()
    order = sorted(symbols)
    singles = [*order, *(symbol + "</w>" for symbol in order)]
    numbers = {symbol: number for number, symbol in enumerate(singles)}
    return Merges(lines, MergeRanks(lines, singles), symbols, numbers)


@lru_cache(maxsize=8192)
def _word_ids(word: str) -> tuple[int, ...]:
    """Byte-pair encoding of one word, the last symbol of which is marked as such."""
    table = merges()
    pieces = [table.symbols[byte] for byte in word.encode("utf-8", "replace")]
    pieces[-1] += "</w>"
    return merged([table.numbers[piece] for piece in pieces], table.ranks,
                  range(FIRST_MERGE, FIRST_MERGE + MERGES))
