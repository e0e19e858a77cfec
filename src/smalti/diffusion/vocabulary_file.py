"""Vocabularies as models bring them along: in a folder of a tokenizer, in a GGUF file.

A folder has `tokenizer.json`, or `vocab.json` with `merges.txt`, or Mistral's `tekken.json`, or
SentencePiece's `tokenizer.model`, the last two of which ComfyUI's files have in a tensor; llama.cpp
puts tokens and merges among the entries of a GGUF file. What cuts texts otherwise than the
tokenizers of Qwen, Mistral and Gemma is refused by name: its numbers would be others, and pictures
wrong without a word.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.gguf_file import tokenizer_entries
from smalti.checkpoint.json_file import read_json
from smalti.diffusion import sentence_bpe, tekken
from smalti.diffusion.byte_bpe import ByteBpe, BytePairs
from smalti.diffusion.byte_pairs import byte_symbols
from smalti.diffusion.sentence_bpe import ScoredPiece, SentenceBpe, in_order
from smalti.errors import CheckpointError

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""How Qwen's tokenizer.json cuts texts into words."""
PRETOKENIZERS = ("qwen2", "deepseek-r1-qwen")
"""What llama.cpp calls that."""
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
"""What llama.cpp calls a byte-level encoding, and one of SentencePiece's pairs."""
SPECIAL_TYPES = (3, 4)
"""Of tokens in GGUF: control, and defined by the user."""
PADDING = "<|endoftext|>"
"""Fills up where nothing is said."""
CONFIG = "tokenizer_config.json"
SOURCES = ("tokenizer.json", "vocab.json", "tekken.json", "tokenizer.model")
TEKKEN_TENSOR, SENTENCE_TENSOR = "tekken_model", "spiece_model"
"""Hold Mistral's file, and SentencePiece's, in files of text encoders."""
BYTES_AS = ("U8", "I16")
"""What bytes are stored as: GGUF has none without a sign."""
Vocabulary = ByteBpe | SentenceBpe
SAFETENSORS = ".safetensors"
GGUF = ".gguf"
COMPONENTS = ("text_encoder", "tokenizer")
"""What the names of folders begin with of text encoders, and of their tokenizers."""
BYTES_MAX = 1 << 26
"""Of a file of tokens; Qwen's have 11 million, Gemma's 34."""


def brought_along(files: Sequence[Path]) -> Vocabulary | None:
    """The tokenizer that comes with a text encoder in these files: in its own file, in its folder
    beside `config.json`, or in a model's folder beside that of the encoder; else None.

    Raises CheckpointError for one that is damaged, or of no kind that is read.
    """
    for file in files:
        folder = file.parent
        own = file.suffix.lower() in (GGUF, SAFETENSORS) and file.is_file()
        places = [file] if own else []
        places += [folder] if (folder / "config.json").is_file() else []
        places += [folder.with_name(folder.name.replace(*COMPONENTS))] * folder.name.startswith(
            COMPONENTS[0])
        for place in places:
            known = [place] if place == file else [*filter(Path.is_file, (
                place / name for name in SOURCES))]
            if known and (found := _read(place, known[0].stat().st_mtime_ns)):
                return found
    return None


@lru_cache(maxsize=4)
def _read(place: Path, changed: int) -> Vocabulary | None:
    """The tokenizer in a folder, or in a file, None where this has none; `changed` tells whether
    what was read before still holds."""
    try:
        if place.is_file():
            own = _of_gguf(place) if place.suffix.lower() == GGUF else None
            return own or _of_tensor(place)
        whole, lists, mistral, pieces = (place / name for name in SOURCES)
        if whole.is_file():
            return _of_json(whole)
        if lists.is_file():
            return _of_lists(place)
        return (tekken.vocabulary(read_json(mistral, BYTES_MAX)) if mistral.is_file()
                else sentence_bpe.of_protobuf(_bytes(pieces)))
    except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{place} holds no vocabulary that can be read "
                              f"({type(error).__name__}: {error}); take the tokenizer that the "
                              f"model was published with") from error


def _bytes(path: Path) -> bytes:
    """What is in a file that is not too large. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > BYTES_MAX:
        raise CheckpointError(f"{path} is larger than a vocabulary can be")
    return data


def _of_json(path: Path) -> Vocabulary:
    """Of Hugging Face's tokenizers."""
    tree: Any = read_json(path, BYTES_MAX)
    model, added = tree["model"], tree["added_tokens"]
    if model["type"] != "BPE":
        raise CheckpointError(f"{path} is a tokenizer of the kind {model['type']}; expected "
                              f"byte-level BPE, as of Qwen, or BPE with bytes, as of Gemma")
    loose = [token["content"] for token in added
             if token.get("lstrip") or token.get("rstrip") or token.get("single_word")]
    if loose:
        raise CheckpointError(f"{path}: {loose[0]!r} takes blanks beside it along; expected tokens "
                              f"that stand for themselves")
    if model.get("byte_fallback"):
        return sentence_bpe.of_tree(tree)
    mistral = _is_tekken(tree)
    if not mistral:
        _check_pipeline(path, tree)
    special = {token["content"]: token["id"] for token in added}
    if mistral:
        return _of_mistral(model["vocab"], model["merges"], special)
    return _built(path, model["vocab"], model["merges"], special, _stated_padding(path.parent))


def _is_tekken(tree: Any) -> bool:
    """Whether texts are cut into words as Mistral does it."""
    steps = (tree["pre_tokenizer"] or {}).get("pretokenizers", [])
    return tree["normalizer"] is None and [step.get("type") for step in steps] == [
        "Split", "ByteLevel"] and steps[0]["pattern"] == {"Regex": tekken.PATTERN} and not (
        steps[1].get("add_prefix_space") or steps[1].get("use_regex"))


def _of_mistral(vocabulary: Mapping[str, int], merges: Iterable[str | list[str]],
                special: Mapping[str, int]) -> ByteBpe:
    """Of Hugging Face's copy of Mistral's file."""
    bytes_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    words = {bytes(bytes_of[symbol] for symbol in token): number
             for token, number in vocabulary.items() if token not in special}
    numbers, ranks, made = _merging(vocabulary, merges)
    return tekken.of_merges(numbers, ranks, made, special, words)


def _of_tensor(path: Path) -> Vocabulary | None:
    """Of a file of weights that has Mistral's file in a tensor, or SentencePiece's; None for
    others."""
    file = open_tensors(path)
    name = next((each for each in file if each.endswith((TEKKEN_TENSOR, SENTENCE_TENSOR))), None)
    if name is None or file.dtype(name) not in BYTES_AS:
        return None
    data = file.raw(name).astype(np.uint8).tobytes()
    return (tekken.vocabulary(json.loads(data)) if name.endswith(TEKKEN_TENSOR)
            else sentence_bpe.of_protobuf(data))


def _check_pipeline(path: Path, tree: Any) -> None:
    """Raise CheckpointError unless texts are composed (NFC) and cut as Qwen's tokenizer does it."""
    if (tree["normalizer"] or {}).get("type") != "NFC":
        raise CheckpointError(f"{path} prepares texts by {tree['normalizer']!r:.200}; expected NFC")
    steps = tree["pre_tokenizer"].get("pretokenizers", [tree["pre_tokenizer"]])
    expected = [{"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated",
                 "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    stated = [{key: step.get(key) for key in known} for step, known in zip(
        steps, expected, strict=False)]
    if len(steps) != 2 or stated != expected:
        raise CheckpointError(f"{path} cuts texts by {steps!r:.300}; expected the expression of "
                              f"Qwen2's tokenizer, then bytes")


def _of_lists(folder: Path) -> ByteBpe:
    """Of transformers' older files."""
    vocabulary: Any = read_json(folder / SOURCES[1], BYTES_MAX)
    try:
        lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    except OSError as error:
        raise CheckpointError(f"{folder} holds vocab.json, but merges.txt cannot be read "
                              f"({error.strerror}); download the folder again") from error
    special: dict[str, int] = {}
    if (folder / "added_tokens.json").is_file():
        special |= read_json(folder / "added_tokens.json")  # type: ignore[arg-type]
    stated: Any = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    special |= {token["content"]: int(number)
                for number, token in stated.get("added_tokens_decoder", {}).items()}
    merges = [line for line in lines if line and not line.startswith("#version")]
    return _built(folder, vocabulary, merges, special, _stated_padding(folder))


def _stated_padding(folder: Path) -> str:
    stated: Any = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    token = stated.get("pad_token") or PADDING
    return token["content"] if isinstance(token, dict) else token


def _of_gguf(path: Path) -> Vocabulary | None:
    """Of llama.cpp; None in files of other programs, which leave it out."""
    entries = tokenizer_entries(path)
    if not entries:
        return None
    kind, cut = entries.get("model"), entries.get("pre")
    if kind == SENTENCE_PIECE:
        if entries.get("add_space_prefix"):
            raise ValueError("it puts a blank before texts, which Gemma's does not")
        return sentence_bpe.of_pieces([*map(ScoredPiece, *(
            entries[key] for key in ("tokens", "scores", "token_type")))])
    if kind != BYTE_LEVEL or cut not in PRETOKENIZERS:
        raise CheckpointError(f"{path} has a tokenizer of the kind {kind!r}, which cuts texts as "
                              f"{cut!r}; expected {BYTE_LEVEL!r} and one of "
                              f"{', '.join(PRETOKENIZERS)}, or {SENTENCE_PIECE!r}")
    tokens: list[str] = entries["tokens"]
    special = {token: number for number, (token, kind) in enumerate(
        zip(tokens, entries["token_type"], strict=True)) if kind in SPECIAL_TYPES}
    vocabulary = {token: number for number, token in enumerate(tokens) if token not in special}
    padding = tokens[int(entries.get("padding_token_id", special.get(PADDING, 0)))]
    return _built(path, vocabulary, entries["merges"], special, padding)


def _built(place: Path, vocabulary: Mapping[str, int], merges: Iterable[str | list[str]],
           special: Mapping[str, int], padding: str) -> ByteBpe:
    """The tokenizer of tokens by their symbols, and of pairs in the order of merging."""
    numbers, ranks, made = _merging(vocabulary, merges)
    if not special:
        raise CheckpointError(f"{place} says nothing of tokens that stand for themselves, such as "
                              f"{PADDING}; give the folder with {CONFIG}, too")
    if not all(isinstance(number, int) and number >= 0 for number in (*made, *special.values(),
                                                                      *numbers)):
        raise CheckpointError(f"{place} has tokens whose numbers are none")
    return ByteBpe(BytePairs(numbers, ranks, made, dict(special), special.get(padding, 0)))


def _merging(vocabulary: Mapping[str, int], merges: Iterable[str | list[str]]
             ) -> tuple[list[int], dict[tuple[int, int], int], list[int]]:
    """The numbers of the 256 bytes, which pairs are merged how late, and what each becomes."""
    ranks, made = in_order(vocabulary, merges)
    return [vocabulary[symbol] for symbol in byte_symbols()], ranks, made
