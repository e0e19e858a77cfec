"""Gemma's tokenizer: from SentencePiece's file, from a tensor, from Hugging Face's copy, from GGUF;
and the numbers of the libraries that compute it elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tiny_gemma import ENTRIES, NUMBERS, PIECES, SPIECE, SYMBOLS, TREE, spiece
from token_texts import texts

from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.diffusion.plain_texts import TOKENIZERS, PlainTexts
from smalti.diffusion.sentence_bpe import BLANK, BYTE, ByScore, of_protobuf, of_tree
from smalti.diffusion.vocabulary_file import brought_along
from smalti.errors import CheckpointError

OURS = of_protobuf(SPIECE)
LAST = "\u0700"
"""Behind the letters that a vocabulary is learned of."""
TEXTS = ["the red apple", " the  red   apple ", "中文 12 ½ é", "a\n\n\n\tb", "Он tion </table>", "",
         f"{BLANK}a {BLANK}{BLANK}", "\u0301 👩\u200d🚀", "ingthe"]


def folder(path: Path, kind: str) -> Path:
    """A text encoder with its tokenizer, in itself or beside it."""
    encoder, tokenizer = path / "text_encoder", path / "tokenizer"
    encoder.mkdir()
    tokenizer.mkdir()
    if kind == "gguf":
        with (path / "model.gguf").open("wb") as file:
            write_gguf(file, ENTRIES, [])
        return path / "model.gguf"
    if kind == "converted":  # from a file with the tensor
        values = np.frombuffer(SPIECE, np.uint8).astype(np.int16)
        with (path / "model.gguf").open("wb") as file:
            write_gguf(file, {"general.architecture": "lumina2"}, [
                GgufTensor("text_encoders.spiece_model", values.shape, "i16", lambda: values)])
        return path / "model.gguf"
    stored = {"norm.weight": np.ones(4, np.float32)}
    if kind == "tensor":
        stored["spiece_model"] = np.frombuffer(SPIECE, np.uint8)
    elif kind == "tokenizer.model":
        (tokenizer / kind).write_bytes(SPIECE)
    else:
        (tokenizer / kind).write_text(json.dumps(TREE))
    save_file(stored, encoder / "model.safetensors")
    return encoder / "model.safetensors"


@pytest.mark.parametrize("kind", ["tokenizer.json", "tokenizer.model", "tensor", "gguf",
                                  "converted"])
def test_a_model_brings_it_along(tmp_path: Path, kind: str) -> None:
    found = brought_along([folder(tmp_path, kind)])
    assert found is not None and found.vocabulary.count == len(PIECES)
    for text in ("the red apple", "中文 é½", "a\n\n\nb <table>"):
        assert found.tokenize(text) == OURS.tokenize(text)
    assert found.encode("the", 4).ids == (2, NUMBERS["the"], 0, 0)


def test_neighbours_are_merged_over_the_whole_text() -> None:
    assert OURS.tokenize("the red apple") == [
        NUMBERS[text] for text in ("the", f"{BLANK}red", f"{BLANK}apple")]
    assert OURS.tokenize("½") == [NUMBERS["<0xC2>"], NUMBERS["<0xBD>"]]
    assert OURS.tokenize("a    b") == [  # the longest that stands for itself, then what is left
        NUMBERS[text] for text in ("a", BLANK * 3, BLANK, "b")]
    assert OURS.tokenize("\ud800") == [NUMBERS["?"]]


def test_hugging_faces_copy_looks_for_blanks_in_the_text_as_it_is() -> None:
    theirs = of_tree(TREE)
    assert theirs.tokenize("<bos>the") == [2, NUMBERS["the"]] != OURS.tokenize("<bos>the")
    assert theirs.tokenize("a  the")[1:] == [NUMBERS[BLANK], NUMBERS[f"{BLANK}the"]]
    assert OURS.tokenize("a  the")[1:] == [NUMBERS[BLANK * 2], NUMBERS["the"]]
    prepared = {**TREE, "added_tokens": [
        {**token, "normalized": token["content"] in SYMBOLS} for token in TREE["added_tokens"]]}
    assert of_tree(prepared).tokenize("a  the")[1:] == [NUMBERS[BLANK * 2], NUMBERS["the"]]


def test_a_text_that_is_too_long_is_cut_and_said() -> None:
    read = PlainTexts.of(OURS, ["the red ½", "the"], 3)
    assert [tokens.ids for tokens in read.read] == [
        (2, NUMBERS["the"], NUMBERS[f"{BLANK}red"]), (2, NUMBERS["the"], 0)]
    assert read.ends.tolist() == [3, 2] and read.own(3).tolist() == [[1, 1, 1], [1, 1, 0]]
    (line,) = read.not_read(["the prompt", "the negative prompt"])
    assert line.endswith("not read: ' ½'")


@given(st.text(st.sampled_from("theapplred in中文½é\n<>tab/ \u2581"), max_size=24))
def test_tokens_stand_for_the_text(text: str) -> None:
    written = b""
    for number in OURS.tokenize(text):
        piece = OURS.vocabulary.texts[number]
        byte = BYTE.fullmatch(piece)
        written += bytes([int(byte[1], 16)]) if byte else piece.encode()
    assert written.decode() == text.replace(" ", BLANK)


def test_pairs_are_those_that_make_a_piece() -> None:
    ranks = OURS.vocabulary.ranks
    assert isinstance(ranks, ByScore) and len(ranks) == len([*ranks])
    pair = NUMBERS["ap"], NUMBERS["ple"]
    assert pair in set(ranks) and ranks[pair] == ranks.get(pair)
    assert ranks.get((NUMBERS["é"], NUMBERS["é"])) is None


def changed(**parts: Any) -> bytes:
    return json.dumps({**TREE, **parts}).encode()


def with_model(**parts: Any) -> bytes:
    return changed(model={**TREE["model"], **parts})


@pytest.mark.parametrize("name, data, words", [
    ("tokenizer.model", spiece(kind=1), "no byte-pair encoding with bytes"),
    ("tokenizer.model", spiece(bytes=0), "no byte-pair encoding with bytes"),
    ("tokenizer.model", spiece(prefix=1), "changes texts before"),
    ("tokenizer.model", spiece(single=1), "changes texts before"),
    ("tokenizer.model", spiece(PIECES[3:]), "KeyError: '<bos>'"),
    ("tokenizer.model", spiece([*PIECES[:300], PIECES[0]._replace(type=9)]), "unknown type 9"),
    ("tokenizer.model", spiece([each for each in PIECES if each.text != "<0x81>"]), "KeyError"),
    ("tokenizer.model", SPIECE[:-3], "IndexError|beyond the end"),
    ("tokenizer.model", b"", "no vocabulary that can be read"),
    ("tokenizer.json", changed(normalizer={"type": "NFC"}), "not as Gemma's are"),
    ("tokenizer.json", changed(pre_tokenizer={"type": "ByteLevel"}), "not as Gemma's are"),
    ("tokenizer.json", with_model(ignore_merges=True), "otherwise"),
    ("tokenizer.json", with_model(vocab={**NUMBERS, "x y": 10**12}), "the number of 'x y' is none"),
    ("tokenizer.json", with_model(merges=[["a", "zz"]]), "KeyError"),
    ("tokenizer.json", changed(added_tokens=[{"content": "<x>", "id": 3, "lstrip": True}]),
     "takes blanks")])
def test_what_reads_texts_otherwise_is_refused(tmp_path: Path, name: str, data: bytes,
                                               words: str) -> None:
    weights = folder(tmp_path, "tokenizer.json")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    (tmp_path / "tokenizer" / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        brought_along([weights])


def test_without_one_it_is_said_where_it_is() -> None:
    with pytest.raises(CheckpointError, match="the tensor spiece_model"):
        TOKENIZERS["gemma"]()


@pytest.mark.peers
def test_numbers_are_those_of_tokenizers() -> None:
    """With a vocabulary by hand, and with one that was learned, on 10,000 texts each."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

    learned = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    learned.normalizer = normalizers.Replace(" ", BLANK)
    learned.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    learned.train_from_iterator(texts(1000), trainers.BpeTrainer(
        vocab_size=3000, max_token_length=12, show_progress=False, limit_alphabet=600,
        special_tokens=[piece.text for piece in PIECES if piece.type not in (1, 4)]))
    learned.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("e a", normalized=True)])
    for theirs in (Tokenizer.from_str(json.dumps(TREE)), learned):
        ours = of_tree(json.loads(theirs.to_str()))
        different = [text for text in texts(10_000)
                     if ours.tokenize(text) != theirs.encode(text, add_special_tokens=False).ids]
        assert not different, different[:3]


@pytest.mark.peers
def test_numbers_are_those_of_sentencepiece() -> None:
    """With a vocabulary that it learned as Gemma's was, of some alphabets, on 10,000 texts."""
    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in texts(5000) if "" < max(text, default="") < LAST]),
        model_writer=file,
        vocab_size=2500, model_type="bpe", byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
        bos_piece="<bos>", user_defined_symbols=[each.replace(BLANK, " ") for each in SYMBOLS],
        minloglevel=2)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    ours = of_protobuf(file.getvalue())
    different = [text for text in [*TEXTS, *texts(10_000)]
                 if ours.tokenize(text) != theirs.encode(text)]
    assert not different, different[:3]
