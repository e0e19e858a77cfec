"""Vocabularies that models bring along give the numbers of the libraries that wrote them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from smalti.checkpoint.gguf import write_gguf
from smalti.diffusion.byte_pairs import byte_symbols
from smalti.diffusion.vocabulary_file import WORDS, brought_along
from smalti.errors import CheckpointError

SPECIAL = {"<|endoftext|>": 300, "<|im_end|>": 301}
MERGES = ["a b", "ab c", "\u0120 ab", "1 2", "\u00c3 \u00a9"]
TOKENS = [*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES)]
TREE: dict[str, Any] = {
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
         "use_regex": False}]},
    "model": {"type": "BPE", "vocab": {token: number for number, token in enumerate(TOKENS)},
              "merges": MERGES},
    "added_tokens": [{"content": token, "id": number, "special": True}
                     for token, number in SPECIAL.items()]}
KNOWN = {"abc ab12": [257, 258, 49, 50], "<|im_end|>ab": [301, 256], "e\u0301": [260]}


def written(folder: Path, kind: str) -> Path:
    """A file of weights in a folder that has a tokenizer in it, or beside it."""
    encoder, tokenizer = folder / "text_encoder", folder / "tokenizer"
    encoder.mkdir()
    tokenizer.mkdir()
    if kind == "gguf":
        path = folder / "model.gguf"
        tokens = [*TOKENS, *(f"[{i}]" for i in range(len(TOKENS), 300)), *SPECIAL]
        with path.open("wb") as file:
            write_gguf(file, {"general.architecture": "qwen3", "tokenizer.ggml.model": "gpt2",
                              "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
                              "tokenizer.ggml.token_type": [
                                  3 if token in SPECIAL else 1 for token in tokens],
                              "tokenizer.ggml.merges": MERGES,
                              "tokenizer.ggml.padding_token_id": 300}, [])
        return path
    if kind == "lists":
        (tokenizer / "vocab.json").write_text(json.dumps(TREE["model"]["vocab"]))
        (tokenizer / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", "utf-8")
        (tokenizer / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {
            str(number): {"content": token} for token, number in SPECIAL.items()}}))
    else:
        place = encoder if kind == "inside" else tokenizer
        (place / "tokenizer.json").write_text(json.dumps(TREE))
        (encoder / "config.json").write_text("{}")
    return encoder / "model.safetensors"


@pytest.mark.parametrize("kind", ["gguf", "lists", "inside", "beside"])
def test_every_form_is_read(tmp_path: Path, kind: str) -> None:
    found = brought_along([written(tmp_path, kind)])
    assert found is not None
    for text, ids in KNOWN.items():
        assert found.tokenize(text) == ids
    assert found.encode("ab", 3).ids == (256, 300, 300)
    assert found.vocabulary.count == 302


def test_what_has_none_is_left_to_the_shipped_one(tmp_path: Path) -> None:
    assert brought_along([tmp_path / "text_encoder" / "model.safetensors"]) is None
    (tmp_path / "tokenizer.json").write_text("{")  # of something else in a folder of downloads
    assert brought_along([tmp_path / "qwen_3_4b.safetensors"]) is None
    with (tmp_path / "model.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": "qwen3"}, [])
    assert brought_along([tmp_path / "model.gguf"]) is None


def changed(**parts: Any) -> str:
    return json.dumps({**TREE, **parts})


@pytest.mark.parametrize("text, words", [
    ("{", "is no JSON"), ("{}", "no vocabulary that can be read"),
    (changed(model={**TREE["model"], "type": "Unigram"}), "of the kind Unigram"),
    (changed(normalizer={"type": "NFKC"}), "expected NFC"),
    (changed(pre_tokenizer={"type": "ByteLevel"}), "expected the expression"),
    (changed(added_tokens=[]), "tokens that stand for themselves"),
    (changed(added_tokens=[{"content": "<x>", "id": 3, "lstrip": True}]), "takes blanks"),
    (changed(added_tokens=[{"content": "<x>", "id": -3}]), "whose numbers are none"),
    (changed(model={**TREE["model"], "merges": ["a zz"]}), "KeyError"),
    (changed(model={**TREE["model"], "merges": [["a"]]}), "no vocabulary that can be read"),
    (changed(model={**TREE["model"], "vocab": 3}), "no vocabulary that can be read")])
def test_others_are_refused_by_what_they_are(tmp_path: Path, text: str, words: str) -> None:
    weights = written(tmp_path, "beside")
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=words):
        brought_along([weights])


def test_a_gguf_of_another_kind_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "model.gguf").open("wb") as file:
        write_gguf(file, {"tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "default"}, [])
    with pytest.raises(CheckpointError, match="'bert', which cuts texts as 'default'"):
        brought_along([tmp_path / "model.gguf"])


def test_a_gguf_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "gguf")
    data = path.read_bytes()
    rng = random.Random(0)
    for end in rng.sample(range(30, len(data) - 60), 20):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError):
            brought_along([path])


@pytest.mark.peers
def test_as_tokenizers_with_a_vocabulary_that_it_learned(tmp_path: Path) -> None:
    from token_texts import texts
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
    from tokenizers import pre_tokenizers as cuts

    peer = Tokenizer(models.BPE())
    peer.normalizer, peer.decoder = normalizers.NFC(), decoders.ByteLevel()
    peer.pre_tokenizer = cuts.Sequence([
        cuts.Split(Regex(WORDS), "isolated"),
        cuts.ByteLevel(add_prefix_space=False, use_regex=False)])
    peer.train_from_iterator(texts(2000), trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=cuts.ByteLevel.alphabet(), show_progress=False))
    peer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    (tmp_path / "config.json").write_text("{}")
    peer.save(str(tmp_path / "tokenizer.json"))
    ours = brought_along([tmp_path / "model.safetensors"])
    assert ours is not None
    different = [text for text in texts(10_000)
                 if ours.tokenize(text) != peer.encode(text, add_special_tokens=False).ids]
    assert not different
