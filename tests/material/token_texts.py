"""Random texts to compare byte-level tokenizers with others on."""

from __future__ import annotations

import random
import unicodedata

from smalti.diffusion.byte_bpe import QWEN_SPECIAL


def texts(count: int) -> list[str]:
    """Random texts: of all characters, of words of many scripts, of white space, special tokens.

    Of marks only those that Unicode has long had: the peer's tables, by which marks are put in
    order, are older than Python's.
    """
    rng = random.Random(1)
    every = [letter for letter in map(chr, range(0x110000))
             if unicodedata.category(letter) not in ("Cn", "Cs", "Co") and (
                 not unicodedata.combining(letter) or unicodedata.ucd_3_2_0.combining(letter))]
    ranges = {"latin": (0x20, 0x250), "greek": (0x370, 0x530), "right to left": (0x590, 0x700),
              "indic": (0x900, 0xD80), "cjk": (0x4E00, 0x9FFF), "kana": (0x3040, 0x30FF),
              "hangul": (0xAC00, 0xD7A3), "emoji": (0x1F300, 0x1F6FF), "signs": (0x2000, 0x2BFF)}
    alphabets = [[letter for letter in every if low <= ord(letter) < high]
                 for low, high in ranges.values()]
    words = ["cat", " lovely", "'s", "'LL", "'\u017f", "don't", " 12", "\n", "\r\n", "  ", "\t",
             "\u3000", " \n ", "!?", " ...", "\u200d", "\ufe0f", "e\u0301", "\x1c", "\x85",
             *QWEN_SPECIAL[:3], "<think>"]
    kinds = [[every], [words], *([alphabet, words] for alphabet in alphabets), [*alphabets, words]]
    return ["".join(rng.choice(rng.choice(kind)) for _ in range(rng.randrange(40)))
            for kind in rng.choices(kinds, k=count)]
