"""Tekken, the byte-level tokenizer of Mistral's models: how it cuts texts, and its own file.

The file has each token's bytes, by rank: neighbours whose bytes together are the token of the
lowest rank are merged first, and a word that is a token becomes it. Numbers of tokens that stand
for themselves come before all others. Source: mistralai/mistral-common, `tokens/tokenizers/
tekken.py`.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Mapping
from typing import Any

from smalti.diffusion.byte_bpe import ByteBpe, BytePairs
from smalti.diffusion.byte_pairs import KINDS, WHITE

PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
           r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""How Mistral's files say that texts are cut into words."""
LETTER, MARK = "\x01", "\x02"
"""In outlines: a letter that is of no case, a mark on one; both go with either case."""
WORDS = (r"[^\r\nA-Za-z0-9\x01]?[A-Z\x01\x02]*[a-z\x01\x02]+"
         r"|[^\r\nA-Za-z0-9\x01]?[A-Z\x01\x02]+[a-z\x01\x02]*"
         r"|[0-9]| ?[^\sA-Za-z0-9\x01]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""The same of outlines."""
CASES = {"Lu": "A", "Lt": "A", "Ll": "a", "Lm": LETTER, "Lo": LETTER}
PADDING = "<pad>"


def cased_outline(text: str) -> str:
    """The text with each letter outside ASCII as one of its case, number as 0, white space as a
    tab, all else there as ~.

    >>> cased_outline("\u00c9t\u00e9, \u0663 \u4e2d") == f"Ata, 0 {LETTER}"
    True
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate({ord(character): _outlined(character) for character in set(text)
                           if not character.isascii() or character in (LETTER, MARK)})


def _outlined(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("M"):
        return MARK
    kind = CASES.get(category) or KINDS.get(category[0])
    return kind or ("\t" if character in WHITE else "~")


def vocabulary(tree: Any) -> ByteBpe:
    """The tokenizer that Mistral's file describes. Raises ValueError for one that cuts texts
    otherwise, LookupError or TypeError for one that lacks what it must have."""
    stated = tree["config"]
    if stated["pattern"] != PATTERN:
        raise ValueError(f"texts are cut by {stated['pattern']!r:.200}, not as Tekken does")
    first = int(stated["default_num_special_tokens"])
    rows = sorted(tree["vocab"], key=lambda row: row["rank"])
    rows = rows[:int(stated["default_vocab_size"]) - first]
    words = {base64.b64decode(row["token_bytes"]): first + place for place, row in enumerate(rows)}
    special = {row["token_str"]: int(row["rank"]) for row in tree["special_tokens"]}
    ranks = {(words[word[:cut]], words[word[cut:]]): number - first
             for word, number in words.items() for cut in range(1, len(word))
             if word[:cut] in words and word[cut:] in words}
    numbers = [words[bytes([byte])] for byte in range(256)]
    return ByteBpe(_pairs(numbers, ranks, range(first, first + len(rows)), special, words))


def of_merges(numbers: list[int], ranks: Mapping[tuple[int, int], int], made: list[int],
              special: Mapping[str, int], words: Mapping[bytes, int]) -> ByteBpe:
    """The tokenizer of pairs in the order of merging, as other libraries write it down."""
    return ByteBpe(_pairs(numbers, ranks, made, special, words))


def _pairs(numbers: Any, ranks: Any, made: Any, special: Any, words: Any) -> BytePairs:
    return BytePairs(numbers, ranks, made, dict(special), special[PADDING], WORDS,
                     composed=False, outlined=cased_outline, whole=words)
