"""Byte-level byte-pair encoding, as language models read texts: Qwen's tokenizer, and its kin.

A text is cut at special tokens, what is between them composed (Unicode NFC) and cut into words,
which keep the blank before them; the bytes of a word are merged in the order of the vocabulary
(Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019, GPT-2). Nothing is put in
front of a text or behind it. Numbers are those of transformers' Qwen2Tokenizer.

Qwen's vocabulary ships with Smalti, as the pairs that are merged: all else follows from them.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.byte_pairs import Ranks, byte_symbols, merged, outline
from smalti.diffusion.tokenizer import Tokens

QWEN_PATH = Path(__file__).parents[1] / "assets" / "qwen_merges.bin.gz"
QWEN_MERGES = 151_643 - 256
"""Pairs that Qwen merges, each a token more; 256 are those of single bytes."""
NUMBER_BYTES = 3
"""Of a number in the shipped table: the lowest bytes of all first elements, then the next ones."""

QWEN_WORDS = (r"'(?i:[stmd]|re|ve|ll)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]"
              r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""What a word is, of an outline: an ending as of "don't", letters with one other sign before them,
one digit, other signs, line breaks, white space without its last one where a word follows."""
LONG_S = {"\u017f": "s"}
"""Letters that are one of ASCII in another case, where case does not matter."""

QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of Qwen3 that stand for themselves, behind all others; those of Qwen2.5 end with
<|file_sep|>."""
QWEN2_SPECIAL = QWEN_SPECIAL[:22]


Word = bytes
"""A word as it is written in UTF-8."""


@dataclass(frozen=True)
class BytePairs:
    """A byte-level vocabulary.

    `bytes` are the numbers of the 256 bytes; `ranks` says which neighbours are merged and how late,
    and `made` which number each merge makes. `special` are the tokens that stand for themselves in
    a text, `padding` is the one that fills up, and `words` the expression that cuts outlines, which
    are `outlined`; texts are `composed` (NFC) before. Words that are `whole` become these numbers,
    whatever merges would make of them.
    """

    bytes: Sequence[int]
    ranks: Ranks
    made: Sequence[int]
    special: Mapping[str, int]
    padding: int
    words: str = QWEN_WORDS
    composed: bool = True
    outlined: Callable[[str], str] = partial(outline, same=LONG_S)
    whole: Mapping[Word, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """All numbers that a text may become are below this one."""
        return 1 + max(*self.bytes, *self.made, *self.special.values())


class ByteBpe:
    """A vocabulary, and what it makes of texts."""

    ends = 0
    """Tokens that are put behind a text."""

    def __init__(self, vocabulary: BytePairs) -> None:
        self.vocabulary = vocabulary
        longest = sorted(vocabulary.special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._words = re.compile(vocabulary.words, re.ASCII)
        self._word_ids = lru_cache(maxsize=8192)(self._merged)

    def tokenize(self, text: str) -> list[int]:
        """Token numbers of a text of any length.

        >>> qwen3().tokenize("You are a helpful assistant.<|im_end|>")
        [2610, 525, 264, 10950, 17847, 13, 151645]
        """
        return [number for _, ids in self._cut(text) for number in ids]

    def encode(self, text: str, length: int) -> Tokens:
        """`length` token numbers: those of the text as far as they fit, and filling.

        >>> qwen3().encode("a lovely cat", 5)
        Tokens(ids=(64, 16690, 8251, 151643, 151643), count=3, cut='')
        >>> qwen3().encode("a lovely cat", 2)
        Tokens(ids=(64, 16690), count=2, cut=' cat')
        """
        ids: list[int] = []
        cut: list[str] = []
        for word, numbers in self._cut(text):
            if cut or len(ids) + len(numbers) > length:
                cut.append(word)
            ids.extend(numbers[:max(0, length - len(ids))])
        filled = (*ids, *[self.vocabulary.padding] * (length - len(ids)))
        return Tokens(filled, len(ids), "".join(cut))

    def _cut(self, text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each word of the text, and its numbers."""
        start = 0
        for match in [*self._split.finditer(text), None]:
            part = text[start:match.start() if match else None]
            if self.vocabulary.composed:
                part = unicodedata.normalize("NFC", part)
            for word in self._words.finditer(self.vocabulary.outlined(part)):
                found = part[word.start():word.end()]
                yield found, self._word_ids(found)
            if match:
                start = match.end()
                yield match[0], (self.vocabulary.special[match[0]],)

    def _merged(self, word: str) -> tuple[int, ...]:
        """The numbers of one word."""
        of, written = self.vocabulary, word.encode("utf-8", "replace")
        if written in of.whole:
            return (of.whole[written],)
        return merged([of.bytes[byte] for byte in written], of.ranks, of.made)


@cache
def _qwen_ranks() -> Ranks:
    """The shipped pairs, in the order in which they are merged."""
    size = 2 * NUMBER_BYTES * QWEN_MERGES
    data = zlib.decompressobj(wbits=31).decompress(QWEN_PATH.read_bytes(), size)
    planes = np.frombuffer(data, np.uint8).reshape(2, NUMBER_BYTES, QWEN_MERGES).astype(np.int32)
    left, right = (planes << 8 * np.arange(NUMBER_BYTES)[:, None]).sum(axis=1).tolist()
    return {pair: rank for rank, pair in enumerate(zip(left, right, strict=True))}


@cache
def _qwen(special: tuple[str, ...]) -> ByteBpe:
    """Qwen's tokenizer; the bytes come in the order of their symbols."""
    symbols, first = byte_symbols(), 256 + QWEN_MERGES
    places = {symbol: number for number, symbol in enumerate(sorted(symbols))}
    return ByteBpe(BytePairs(
        [places[symbol] for symbol in symbols], _qwen_ranks(), range(256, first),
        {text: first + number for number, text in enumerate(special)}, padding=first))


qwen3 = partial(_qwen, QWEN_SPECIAL)
"""The tokenizer of Qwen3, which Z-Image and FLUX.2 klein read."""
qwen2 = partial(_qwen, QWEN2_SPECIAL)
"""The tokenizer of Qwen2 and Qwen2.5, which Qwen-Image reads."""
