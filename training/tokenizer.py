"""CLIP's byte-pair tokenizer with its standard 49,408 entries."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from presets import CONTEXT, END_TOKEN, START_TOKEN

MERGES = 49152 - 256 - 2
NEVER = 1 << 30
PATTERN = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+", re.I)


def byte_letters() -> dict[int, str]:
    """A printable letter for every byte."""
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in order}
    for number, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = chr(256 + number)
    return letters


class Tokenizer:
    """Text to token numbers, as SD 1 wants them: start, words, end, padded to 77 with end."""

    def __init__(self, path: Path):
        lines = gzip.open(path).read().decode().split("\n")[1:MERGES + 1]
        merges = [tuple(line.split()) for line in lines]
        self.letters = byte_letters()
        single = list(self.letters.values())
        words = [*single, *(letter + "</w>" for letter in single),
                 *("".join(pair) for pair in merges), "<|startoftext|>", "<|endoftext|>"]
        self.number = {word: index for index, word in enumerate(words)}
        self.rank = {pair: index for index, pair in enumerate(merges)}
        self.known: dict[str, list[int]] = {}

    def word(self, text: str) -> list[int]:
        """The tokens of one word: its letters, joined in the order of the merges."""
        if text in self.known:
            return self.known[text]
        parts = [self.letters[byte] for byte in text.encode()]
        parts[-1] += "</w>"
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:], strict=False))
            best = min(pairs, key=lambda pair: self.rank.get(pair, NEVER))
            if best not in self.rank:
                break
            joined, index = [], 0
            while index < len(parts):
                if tuple(parts[index:index + 2]) == best:
                    joined.append("".join(best))
                    index += 2
                else:
                    joined.append(parts[index])
                    index += 1
            parts = joined
        self.known[text] = [self.number[part] for part in parts]
        return self.known[text]

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, without start and end."""
        plain = re.sub(r"\s+", " ", text).strip().lower()
        return [token for word in PATTERN.findall(plain) for token in self.word(word)]

    def __call__(self, text: str) -> list[int]:
        tokens = [START_TOKEN, *self.ids(text)[:CONTEXT - 2], END_TOKEN]
        return tokens + [END_TOKEN] * (CONTEXT - len(tokens))
