"""T5's tokenizer: known numbers, cuts, files, and transformers' tokenizer on random texts."""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
import unicodedata
from pathlib import Path

import pytest

from smalti.diffusion.t5_tokenizer import VOCABULARY_PATH, read_tokenizer, shipped
from smalti.errors import CheckpointError


def shipped_json() -> dict:
    return json.loads(gzip.decompress(VOCABULARY_PATH.read_bytes()))


def character_map(tree: dict) -> str:
    return tree["normalizer"]["normalizers"][0]["precompiled_charsmap"]


@pytest.mark.parametrize("text, ids", [
    ("A photo of a cat.", [71, 1202, 13, 3, 9, 1712, 5]),
    ("a lovely cat holding a sign says 'chroma.cpp'",
     [3, 9, 3061, 1712, 3609, 3, 9, 1320, 845, 3, 31, 10363, 51, 9, 5, 75, 1572, 31]),
    ("", []),
    (" \t\n ", []),
    ("  two  spaces ", [192, 4856]),
    ("x<extra_id_3>y </s> z", [3, 226, 32096, 3, 63, 1, 3, 172]),
    ("\u65e5\u672c x \u65e5", [3, 2, 3, 226, 3, 2]),
])
def test_known_numbers(text: str, ids: list[int]) -> None:
    assert shipped().tokenize(text) == ids


@pytest.mark.parametrize("text, same", [
    ("\ufb01sh \uff21", "fish A"), ("cafe\u0301", "caf\u00e9"),
    ("a\u200bb", "a b"), ("\u2122", "TM"), ("a\u00adb\x07", "a\u00adb")])
def test_characters_are_normalised(text: str, same: str) -> None:
    assert shipped().tokenize(text) == shipped().tokenize(same)


def test_texts_are_cut_and_filled() -> None:
    whole = shipped().encode("a lovely cat", 10)
    assert whole.ids == (3, 9, 3061, 1712, 1, 0, 0, 0, 0, 0)
    assert (whole.count, whole.cut) == (4, "")
    assert shipped().encode("a lovely cat", 5).cut == ""
    cut = shipped().encode("a lovely chroma.cpp of  a cat", 5)
    assert cut.ids[:4] == tuple(shipped().tokenize("a lovely chroma.cpp of a cat")[:4])
    assert (cut.ids[4], cut.count, cut.cut) == (1, 4, "chroma.cpp of a cat")
    assert shipped().encode("", 3).ids == (1, 0, 0)


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def as_protobuf(tree: dict) -> bytes:
    """SentencePiece's file of the same vocabulary; it has no sentinels."""
    pieces = b"".join(
        field(1, field(1, piece.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
              + varint(3 << 3) + varint(1))
        for piece, score in tree["model"]["vocab"][:32000])
    return pieces + field(3, field(1, b"nmt_nfkc") + field(
        2, base64.b64decode(character_map(tree))))


def test_the_models_own_files_are_read(tmp_path: Path) -> None:
    tree, text = shipped_json(), "A caf\u00e9 \ufb01sh<extra_id_7>\u65e5 painting, 4k"
    expected = shipped().tokenize(text)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    (tmp_path / "spiece.model").write_bytes(as_protobuf(tree))
    for name in ("tokenizer.json", "spiece.model"):
        assert read_tokenizer(tmp_path / name).tokenize(text) == expected


@pytest.mark.parametrize("name, data, words", [
    ("tokenizer.json", b"{}", "no unigram vocabulary"),
    ("tokenizer.json", b"[" * 100_000, "no unigram vocabulary"),
    ("tokenizer.json", b'{"model": {"vocab": 3}}', "no unigram vocabulary"),
    ("tokenizer.json", b'{"model": {"vocab": []}, "normalizer": null}', "no unigram vocabulary"),
    ("tokenizer.json", json.dumps({"model": {"vocab": [["a", 0]]}, "normalizer": {
        "type": "Precompiled", "precompiled_charsmap": ""}}).encode(), "no vocabulary of T5"),
    ("tokenizer.json", json.dumps({
        "model": {"vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0]]}, "normalizer": {
            "type": "Precompiled", "precompiled_charsmap": "/////w=="}}).encode(), "is damaged"),
    ("spiece.model", b"", "no vocabulary of T5"),
    ("spiece.model", b"\x0a\xff\xff\xff\xff\x0f", "no unigram vocabulary"),
    ("spiece.model", b"\xff" * 20, "no unigram vocabulary"),
    ("spiece.model", b"\x0b", "no unigram vocabulary"),
    ("tokenizer.json.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"garbage", "cannot be read"),
])
def test_damaged_files_are_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read_tokenizer(tmp_path / name)


def test_a_lying_table_of_characters_does_no_harm(tmp_path: Path) -> None:
    tree, rng = shipped_json(), random.Random(0)
    table = bytearray(base64.b64decode(character_map(tree)))
    for _ in range(20_000):
        table[rng.randrange(4, len(table))] = rng.randrange(256)
    tree["normalizer"]["normalizers"][0]["precompiled_charsmap"] = base64.b64encode(table).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    found = read_tokenizer(tmp_path / "tokenizer.json").tokenize("".join(map(chr, range(1, 6000))))
    assert found and all(0 <= number < 32100 for number in found)


def texts(count: int) -> list[str]:
    """Random texts: of all characters, of Latin and Greek ones, of pieces, of a mixture."""
    rng = random.Random(1)
    pieces = [piece.replace("\u2581", " ") for piece, _ in shipped_json()["model"]["vocab"]]
    every = [letter for letter in map(chr, range(0x110000))
             if unicodedata.category(letter) not in ("Cn", "Cs", "Co")]
    latin = list(map(chr, range(0x20, 0x500)))
    white = list(" \n\t\r\u3000\xa0\u2028")
    alphabets = [[every], [latin], [pieces], [pieces, white],
                 [list(map(chr, range(0x20, 0x7F))), latin, every, white, white]]
    return ["".join(rng.choice(rng.choice(alphabet)) for _ in range(rng.randrange(40)))
            for alphabet in rng.choices(alphabets, k=count)]


@pytest.mark.peers
def test_as_transformers_on_random_texts() -> None:
    from transformers import T5Tokenizer

    tree = shipped_json()
    peer = T5Tokenizer(vocab=[tuple(entry) for entry in tree["model"]["vocab"]],
                       _spm_precompiled_charsmap=base64.b64decode(character_map(tree)))
    different = [text for text in texts(10_000)
                 if [*shipped().tokenize(text), 1] != peer(text)["input_ids"]]
    assert not different
