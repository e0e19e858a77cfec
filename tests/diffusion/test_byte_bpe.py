"""Qwen's tokenizer: known numbers, cuts, and transformers' tokenizer on random texts."""

from __future__ import annotations

import hashlib
import unicodedata
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_texts import texts

from smalti.diffusion.byte_bpe import QWEN_SPECIAL, ByteBpe, qwen2, qwen3
from smalti.diffusion.byte_pairs import byte_symbols
from smalti.families.language import CHATML

TEXTS = 10_000
DIGEST = "e7d4f2a4b580e2e4b344d50511af27d409b2d4f6e42708faa7365f8af19cd482"
"""Of the tokens of qwen.tiktoken in dashscope 2.0.2, in hexadecimal digits, a line each."""


@cache
def tokens() -> dict[int, bytes]:
    """The bytes of each token that does not stand for itself."""
    of = qwen3().vocabulary
    found = {number: bytes([byte]) for byte, number in enumerate(of.bytes)}
    for (left, right), rank in of.ranks.items():
        found[of.made[rank]] = found[left] + found[right]
    return found


@pytest.mark.parametrize("text, ids", [
    ("", []),
    ("You are a helpful assistant.", [2610, 525, 264, 10950, 17847, 13]),
    ("Hello, world!", [9707, 11, 1879, 0]),
    ("don't 1234 caf\u00e9 \u65e5\u672c",
     [15007, 944, 220, 16, 17, 18, 19, 51950, 75402, 21894]),
    (CHATML.format("Hello"),
     [151644, 872, 198, 9707, 151645, 198, 151644, 77091, 198]),
])
def test_known_numbers(text: str, ids: list[int]) -> None:
    assert qwen3().tokenize(text) == ids


def test_the_table_is_the_published_one() -> None:
    """The bytes of all tokens in a row, as of the list of them that it was made of."""
    found = tokens()
    assert sorted(found) == list(range(151_643)) and len(set(found.values())) == 151_643
    digest = hashlib.sha256(b"\n".join(found[number].hex().encode() for number in sorted(found)))
    assert digest.hexdigest() == DIGEST


def test_tokens_that_stand_for_themselves() -> None:
    assert qwen3().tokenize("a<think>") == [64, 151667]
    assert qwen2().tokenize("a<|file_sep|>") == [64, 151664]
    assert len(qwen2().tokenize("<think>")) > 1
    assert qwen3().tokenize("<|im_end |>") != [151645]


def test_composed_letters_are_the_same() -> None:
    assert qwen3().tokenize("cafe\u0301") == qwen3().tokenize("caf\u00e9")


def test_texts_are_cut_and_filled() -> None:
    tokenizer = qwen3()
    cat = tokenizer.tokenize("a lovely cat")
    assert tokenizer.encode("a lovely cat", 5).ids == (*cat, 151643, 151643)
    found = tokenizer.encode("a lovely cat, in red", 2)
    assert (found.ids, found.count, found.cut) == (tuple(cat[:2]), 2, " cat, in red")
    assert tokenizer.encode("a", 0).ids == ()


@given(st.text().filter(lambda text: not any(token in text for token in QWEN_SPECIAL)))
def test_any_text_has_numbers_that_give_it_back(text: str) -> None:
    assert b"".join(map(tokens().__getitem__, qwen3().tokenize(text))) == unicodedata.normalize(
        "NFC", text).encode("utf-8", "replace")


def peer(tokenizer: ByteBpe) -> object:
    """transformers' tokenizer of the same vocabulary."""
    from transformers import AddedToken, Qwen2Tokenizer

    of = tokenizer.vocabulary
    names = {number: byte_symbols()[byte] for byte, number in enumerate(of.bytes)}
    merges = []
    for (left, right), rank in of.ranks.items():
        merges.append((names[left], names[right]))
        names[of.made[rank]] = names[left] + names[right]
    found = Qwen2Tokenizer(vocab={name: number for number, name in names.items()}, merges=merges)
    found.add_tokens([AddedToken(text, special=True) for text in of.special])
    return found


@pytest.mark.peers
def test_as_transformers_on_random_texts() -> None:
    other = peer(qwen3())
    different = [text for text in texts(TEXTS)
                 if qwen3().tokenize(text) != other(text)["input_ids"]]
    assert not different


@pytest.mark.peers
def test_the_template_is_that_of_qwen() -> None:
    """As transformers writes a message of a user by the template that Qwen3 is published with."""
    source = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
              "message.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
              "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
    found = peer(qwen3()).apply_chat_template(
        [{"role": "user", "content": " a cat\n "}], chat_template=source, tokenize=False,
        add_generation_prompt=True)
    assert found == CHATML.format(" a cat\n ")
