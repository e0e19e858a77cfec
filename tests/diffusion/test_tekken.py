"""Mistral's tokenizer: from its own file, from Hugging Face's copy, from a tensor, and the numbers
of the library that computes it elsewhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_tekken import SPECIAL, TEKKEN, TREE

from smalti.diffusion import tekken
from smalti.diffusion.byte_bpe import ByteBpe
from smalti.diffusion.plain_texts import TOKENIZERS, PlainTexts
from smalti.diffusion.vocabulary_file import brought_along
from smalti.errors import CheckpointError

OURS = tekken.vocabulary(TEKKEN)
TEXTS = ["the red apple", "THE Apple's", "中文 12 ½", "a\n\n\tb  c", "[INST]the[/INST]<s>",
         "e\u0301té", "Он \x01\x02", "ǅx ſ ªº ٣", "/\r\n//\n", ""]


def brought(folder: Path, kind: str) -> ByteBpe | None:
    encoder, tokenizer = folder / "text_encoder", folder / "tokenizer"
    encoder.mkdir()
    tokenizer.mkdir()
    path = encoder / "model.safetensors"
    stored = {"norm.weight": np.ones(4, np.float32)}
    if kind == "tensor":
        stored["tekken_model"] = np.frombuffer(json.dumps(TEKKEN).encode(), np.uint8)
    else:
        (tokenizer / kind).write_text(json.dumps(TREE if kind == "tokenizer.json" else TEKKEN))
    save_file(stored, path)
    return brought_along([path])


@pytest.mark.parametrize("kind", ["tokenizer.json", "tekken.json", "tensor"])
def test_a_model_brings_it_along(tmp_path: Path, kind: str) -> None:
    found = brought(tmp_path, kind)
    assert found is not None and found.vocabulary.padding == SPECIAL.index("<pad>") == 11
    for text in TEXTS:
        assert found.tokenize(text) == OURS.tokenize(text)


def test_words_are_cut_and_merged() -> None:
    first, apple = len(SPECIAL), OURS.tokenize("apple")
    assert len(apple) == 1 and OURS.tokenize("[INST]")[0] == 3
    assert OURS.tokenize("A") == [first + ord("A")]
    assert OURS.tokenize("the red apple") == [
        *OURS.tokenize("the"), *OURS.tokenize(" red"), *OURS.tokenize(" apple")]
    assert len(OURS.tokenize("12")) == 2  # each digit alone
    assert OURS.tokenize("é") != OURS.tokenize("e\u0301")  # nothing is composed


def test_a_text_is_filled_up_in_front() -> None:
    texts = PlainTexts.of(OURS, ["the", "the red apple"], 4)
    found = texts.numbers(4, filled_first=True)
    assert found[0].tolist() == [11, 11, 11, *OURS.tokenize("the")]
    assert found[1, 0] == 11 and texts.numbers(4)[1, -1] == 11


def test_another_way_of_cutting_is_refused(tmp_path: Path) -> None:
    other = {**TEKKEN, "config": {**TEKKEN["config"], "pattern": r"\w+"}}
    with pytest.raises(ValueError, match="not as Tekken does"):
        tekken.vocabulary(other)
    (tmp_path / "text_encoder").mkdir()
    (tmp_path / "tokenizer").mkdir()
    for damaged in (other, {"config": {}}, {**TEKKEN, "special_tokens": []}):
        (tmp_path / "tokenizer" / "tekken.json").write_text(json.dumps(damaged) + " " * len(
            str(damaged)[:7]))
        with pytest.raises(CheckpointError, match="no vocabulary that can be read"):
            brought_along([tmp_path / "text_encoder" / "model.safetensors"])


def test_without_one_it_is_said_where_it_is() -> None:
    with pytest.raises(CheckpointError, match="the tensor tekken_model"):
        TOKENIZERS["tekken"]()


@pytest.mark.peers
def test_numbers_are_those_of_tokenizers() -> None:
    from tokenizers import Tokenizer

    theirs, chance = Tokenizer.from_str(json.dumps(TREE)), random.Random(0)
    kinds = ["the red apple THE Apple's tion 0123 ", "\n\r\t  \u00a0\u2003\u0085\x1c\x01\x02/_'.",
             "éÉßſªºǅʰ\u0301\u0327中文字かなעבריתعربىไทย", "½٣Ⅷ😀👩\u200d🚀\ufe0f€",
             "[INST][/INST]<s><pad>"]
    for _ in range(10_000):
        letters = chance.choice(kinds) + chance.choice(kinds)
        text = "".join(chance.choices(letters, k=chance.randrange(24)))
        text += chr(chance.randrange(0x20, 0xd7ff))
        assert OURS.tokenize(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
