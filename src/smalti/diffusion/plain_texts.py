"""Plain texts as rows of token numbers, as text encoders other than CLIP read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion import byte_bpe, sentence_bpe, t5_tokenizer
from smalti.diffusion.tokenizer import Tokens
from smalti.errors import CheckpointError

Tokenizer = t5_tokenizer.T5Tokenizer | byte_bpe.ByteBpe | sentence_bpe.SentenceBpe


def _tekken() -> Tokenizer:
    """Its 131,072 tokens come with the model."""
    raise CheckpointError("the text encoder, of Mistral, comes without its tokenizer, which is in "
                          "ComfyUI's file of it (the tensor tekken_model), and in folders "
                          "(tokenizer/tokenizer.json, or tekken.json): give one of these")


def _gemma() -> Tokenizer:
    """Its 256,000 tokens come with the model."""
    raise CheckpointError("the text encoder Gemma 2 comes without its tokenizer, which is in "
                          "ComfyUI's file of it (gemma_2_2b_fp16.safetensors, the tensor "
                          "spiece_model), in GGUF files, and in folders (tokenizer/tokenizer.json, "
                          "or tokenizer.model): give one of these")


TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = {
    "t5": t5_tokenizer.shipped, "qwen3": byte_bpe.qwen3, "qwen2": byte_bpe.qwen2,
    "tekken": _tekken, "gemma": _gemma}
"""Name of a tokenizer of plain texts -> what makes it; see `TextEncoder.tokenizer`."""
BROUGHT: Mapping[str, type[byte_bpe.ByteBpe | sentence_bpe.SentenceBpe]] = {
    **dict.fromkeys(("qwen3", "qwen2", "tekken"), byte_bpe.ByteBpe),
    "gemma": sentence_bpe.SentenceBpe}
"""Those that a model may bring a vocabulary of its own for -> the kind that it must be of."""
SHOWN_MAX = 200  # characters of a text that is quoted in a warning


@dataclass(frozen=True)
class PlainTexts:
    """Several texts, each read alone; `ends` i32[texts] are their tokens with those at the end."""

    read: Sequence[Tokens]
    ends: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str | Sequence[str]], most: int,
           ending: str = "") -> PlainTexts:
        """Texts of which at most so many tokens are read, those of the `ending` of all included;
        one may be in pieces, each of which becomes tokens for itself."""
        end = tuple(tokenizer.tokenize(ending))
        read = [_ended(tokenizer.encode(text, most - len(end)) if isinstance(text, str) else
                       _joined(tokenizer, text, most - len(end)), end) for text in texts]
        return cls(read, np.array([tokens.count + tokenizer.ends for tokens in read]))

    @property
    def longest(self) -> int:
        """Tokens of the longest, with its end."""
        return int(self.ends.max())

    def numbers(self, length: int, filled_first: bool = False) -> np.ndarray:
        """Token numbers i32[texts, length], filled up behind a text, or in front of it."""
        rows = [tokens.ids[:length] for tokens in self.read]
        if filled_first:
            rows = [(*ids[end:], *ids[:end]) for ids, end in zip(rows, self.ends, strict=True)]
        return np.array(rows, np.int32)

    def own(self, length: int) -> np.ndarray:
        """f32[texts, length], 1 for tokens of a text and its end, 0 behind."""
        return (np.arange(length) < self.ends[:, None]).astype(np.float32)

    def windows(self, multiple: int, low: int, high: int) -> np.ndarray:
        """i32[texts], of each the tokens with those that fill it up (see `rounded`)."""
        return np.array([rounded(int(end), multiple, low, high) for end in self.ends], np.int32)

    def not_read(self, whose: Sequence[str], behind: str = "") -> list[str]:
        """Lines about what was cut off the texts, beside what a template has `behind` them."""
        return [f"{what} is longer than the {tokens.count} tokens that the model reads; not read: "
                f"{_shortened(tokens.cut.removesuffix(behind))!r}"
                for what, tokens in zip(whose, self.read, strict=True)
                if len(tokens.cut) > len(behind)]


def rounded(length: int, multiple: int, low: int, high: int) -> int:
    """A multiple of so many tokens that has place for `length`, at least `low`, at most `high`.

    >>> rounded(33, 32, 32, 512), rounded(0, 32, 32, 512), rounded(501, 32, 32, 510)
    (64, 32, 510)
    """
    return min(max(-(-length // multiple) * multiple, low), high)


def without(text: str, part: str) -> str:
    """A text from which a part is taken out, also where it comes about by that.

    >>> without("a <<pad>pad>b", "<pad>"), without("a", "")
    ('a b', 'a')
    """
    while part and part in text:
        text = text.replace(part, "")
    return text


def _joined(tokenizer: Tokenizer, pieces: Sequence[str], length: int) -> Tokens:
    """`length` token numbers, of pieces one behind the other as far as they fit, and filling."""
    ids: tuple[int, ...] = ()
    cut = ""
    for piece in pieces:
        read = tokenizer.encode(piece, length - len(ids))
        ids += read.ids[:read.count]
        cut += read.cut
    filling = tokenizer.encode("", length - len(ids)).ids
    return Tokens((*ids, *filling), len(ids), cut)


def _ended(tokens: Tokens, end: tuple[int, ...]) -> Tokens:
    """The tokens with others behind those of the text."""
    ids = (*tokens.ids[:tokens.count], *end, *tokens.ids[tokens.count:])
    return Tokens(ids, tokens.count + len(end), tokens.cut)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
