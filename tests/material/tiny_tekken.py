"""A small vocabulary of Mistral's kind, as its own file has it and as Hugging Face's copy."""

from __future__ import annotations

import base64
from typing import Any

from smalti.diffusion.byte_pairs import byte_symbols
from smalti.diffusion.tekken import PATTERN

SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", *(f"<SPECIAL_{i}>" for i in range(5, 11)),
           "<pad>", *(f"<SPECIAL_{i}>" for i in range(12, 17)), "[SYSTEM_PROMPT]",
           "[/SYSTEM_PROMPT]", "<SPECIAL_19>"]
"""Tokens that stand for themselves come first."""
LONGER = ["th", "he", " t", " th", "the", " the", "ap", "pl", "app", "ple", "apple", " a", " app",
          " apple", "re", "red", " re", " red", "in", "ing", "é", "中", "文", "中文", "  ",
          "\n\n", "HE", "tion", "ti", "on", "'s", "Он", "О", "н"]
WORDS = [bytes([byte]) for byte in range(256)] + [text.encode() for text in LONGER]

TEKKEN: dict[str, Any] = {
    "config": {"pattern": PATTERN, "num_vocab_tokens": len(WORDS),
               "default_vocab_size": len(SPECIAL) + len(WORDS),
               "default_num_special_tokens": len(SPECIAL), "version": "v11"},
    "vocab": [{"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
              for rank, word in enumerate(WORDS)],
    "special_tokens": [{"rank": rank, "token_str": text, "is_control": True}
                       for rank, text in enumerate(SPECIAL)]}
"""tekken.json."""


def symbols(word: bytes) -> str:
    """The bytes of a word, a character each."""
    table = byte_symbols()
    return "".join(table[byte] for byte in word)


MERGES = [[symbols(word[:cut]), symbols(word[cut:])]
          for word in WORDS for cut in range(1, len(word))
          if word[:cut] in WORDS and word[cut:] in WORDS]
TREE: dict[str, Any] = {
    "normalizer": None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
         "use_regex": False}]},
    "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True,
                                        "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
              "ignore_merges": True,
              "vocab": {**{text: number for number, text in enumerate(SPECIAL)},
                        **{symbols(word): len(SPECIAL) + rank for rank, word in enumerate(WORDS)}},
              "merges": MERGES},
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": number, "content": text, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": True}
                     for number, text in enumerate(SPECIAL)]}
"""tokenizer.json."""
