"""CLIP's byte-pair tokenizer: from a prompt to 77 numbers.

Merges and vocabulary are those of Radford et al. 2021 (arXiv:2103.00020), the algorithm is
byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909). Text is prepared as
transformers' CLIPTokenizer of today does it: Unicode NFC, white space to one blank, lower case.
HTML entities stay as they are and nothing is repaired (OpenAI's own tokenizer did both), because
that is how the programs that prompts are shared from read them.
"""

from __future__ import annotations

import heapq
import re
import unicodedata
import zlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

MERGES_PATH = Path(__file__).parents[1] / "assets" / "bpe_simple_vocab_16e6.txt.gz"
MERGES = 49152 - 256 - 2  # the file holds more; the vocabulary uses these
MERGES_BYTES_MAX = 1_000_000  # unpacked, this many bytes hold them all

VOCABULARY = 49408  # of CLIP: 49152 and 256 byte pairs, with the two marks of start and end
START = VOCABULARY - 2
END = VOCABULARY - 1  # also fills the rest of the 77 positions
POSITIONS = 77  # that CLIP's text encoders have learned
SPECIAL = {"<|startoftext|>": START, "<|endoftext|>": END}

# Unicode's White_Space; Python's own \s also holds the separators U+001C to U+001F
_BLANK = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# over ASCII only: `_outline` has replaced all other letters by z and numbers by 0
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
    for match in _WORD.finditer(_outline(text)):
        word = text[match.start() : match.end()]
        yield match.start(), (SPECIAL[word],) if word in SPECIAL else _word_ids(word)


def _outline(text: str) -> str:
    """The text with each letter outside ASCII as z, each number as 0, all else there as ~."""
    if text.isascii():
        return text
    table = {}
    for character in set(text):
        if not character.isascii():
            table[ord(character)] = {"L": "z", "N": "0"}.get(
                unicodedata.category(character)[0], "~"
            )
    return text.translate(table)


@dataclass(frozen=True)
class _Merges:
    """Rank of each mergeable pair, as "left right"; and symbol and number of each byte."""

    ranks: dict[str, int]
    symbols: tuple[str, ...]
    numbers: dict[str, int]


@cache
def _merges() -> _Merges:
    packed = MERGES_PATH.read_bytes()
    text = zlib.decompressobj(wbits=31).decompress(packed, MERGES_BYTES_MAX).decode("utf-8")
    lines = text.split("\n", MERGES + 1)[1 : MERGES + 1]
    symbols = _byte_symbols()
    order = sorted(symbols)
    ends = [symbol + "</w>" for symbol in order]
    numbers = {symbol: number for number, symbol in enumerate([*order, *ends])}
    return _Merges(dict(zip(lines, range(MERGES), strict=True)), symbols, numbers)


def _byte_symbols() -> tuple[str, ...]:
    """A printable character for each byte: itself where it is one, else one from U+0100 on."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in kept else next(others)) for byte in range(256))


@lru_cache(maxsize=8192)
def _word_ids(word: str) -> tuple[int, ...]:
    """Byte-pair encoding of one word: the pair of lowest rank is merged until none is left.

    Candidate pairs wait in a heap and symbols form a linked list, so that a word of n bytes takes
    n log n steps. The symbol at a place dies when it is merged into the one before it.
    """
    merges = _merges()
    ranks = merges.ranks
    pieces = [merges.symbols[byte] for byte in word.encode("utf-8", "replace")]
    pieces[-1] += "</w>"
    numbers = [merges.numbers[piece] for piece in pieces]
    count = len(pieces)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap = []
    for place in range(count - 1):
        rank = ranks.get(f"{pieces[place]} {pieces[place + 1]}")
        if rank is not None:
            heap.append((rank, place, pieces[place], pieces[place + 1]))
    heapq.heapify(heap)
    while heap:
        rank, left, first, second = heapq.heappop(heap)
        right = after[left]
        if pieces[left] != first or right == count or pieces[right] != second:
            continue  # one of the two has been merged since
        pieces[left], pieces[right] = first + second, ""
        numbers[left] = 2 * 256 + rank
        after[left] = right = after[right]
        if right < count:
            before[right] = left
        for a, b in ((before[left], left), (left, right)):
            if a >= 0 and b < count:
                rank = ranks.get(f"{pieces[a]} {pieces[b]}")
                if rank is not None:
                    heapq.heappush(heap, (rank, a, pieces[a], pieces[b]))
    return tuple(number for piece, number in zip(pieces, numbers, strict=True) if piece)
