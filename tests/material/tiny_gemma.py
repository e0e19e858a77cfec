"""A small vocabulary of Gemma's kind: as SentencePiece's file has it, as Hugging Face's copy, and
as llama.cpp's entries."""

from __future__ import annotations

import struct
from typing import Any

from smalti.diffusion.sentence_bpe import BLANK
from smalti.diffusion.sentence_bpe import ScoredPiece as Piece

NORMAL, UNKNOWN, CONTROL, DEFINED, BYTE = 1, 2, 3, 4, 6
CONTROLS = ["<pad>", "<eos>", "<bos>"]
SYMBOLS = ["<mask>", "\n\n", "\n\n\n", BLANK * 2, BLANK * 3, "<table>", "</table>"]
"""Stand for themselves, the longest first."""
LONGER = ["th", "he", f"{BLANK}t", f"{BLANK}th", "the", f"{BLANK}the", "ap", "pl", "app", "ple",
          "apple", f"{BLANK}a", f"{BLANK}app", f"{BLANK}apple", "re", "red", f"{BLANK}re",
          f"{BLANK}red", "in", "ing", "中文", "ti", "on", "tion", "Он"]
LETTERS = [BLANK, *map(chr, range(0x21, 0x7F)), "\n", "é", "中", "文", "О", "н", "ß"]
PIECES = [*(Piece(text, 0.0, CONTROL) for text in CONTROLS), Piece("<unk>", 0.0, UNKNOWN),
          *(Piece(text, 0.0, DEFINED) for text in SYMBOLS),
          *(Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
          *(Piece(text, -float(rank), NORMAL) for rank, text in enumerate([*LONGER, *LETTERS]))]
NUMBERS = {piece.text: number for number, piece in enumerate(PIECES)}


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protocol buffer: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def spiece(pieces: list[Piece] = PIECES, **changed: int) -> bytes:
    """`spiece.model`; of how it was made `kind`, `bytes`, `prefix`, `single` may be others."""
    stated = {"kind": 2, "bytes": 1, "prefix": 0, "single": 0, "escaped": 1, **changed}
    rows = [field(1, piece.text.encode()) + b"\x15" + struct.pack("<f", piece.score)
            + field(3, piece.type) for piece in pieces]
    trained = field(3, stated["kind"]) + field(35, stated["bytes"])
    prepared = (field(1, b"identity") + field(3, stated["prefix"]) + field(4, stated["single"])
                + field(5, stated["escaped"]))
    return b"".join(field(1, row) for row in rows) + field(2, trained) + field(3, prepared)


SPIECE = spiece()
MERGES = [[text[:cut], text[cut:]] for text in LONGER for cut in range(1, len(text))
          if text[:cut] in NUMBERS and text[cut:] in NUMBERS]
TREE: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None,
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": BLANK},
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
                      "behavior": "MergedWithPrevious", "invert": False},
    "post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
              "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
              "byte_fallback": True, "ignore_merges": False, "vocab": NUMBERS, "merges": MERGES},
    "added_tokens": [{"id": NUMBERS[text], "content": text, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": text not in SYMBOLS}
                     for text in [*CONTROLS, "<unk>", *SYMBOLS]]}
"""tokenizer.json."""
ENTRIES: dict[str, Any] = {
    "general.architecture": "gemma2", "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": [piece.text for piece in PIECES],
    "tokenizer.ggml.scores": [int(piece.score) for piece in PIECES],
    "tokenizer.ggml.token_type": [piece.type for piece in PIECES],
    "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.padding_token_id": 0}
"""Of a GGUF file."""
