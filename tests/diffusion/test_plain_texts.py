"""Plain texts as rows of token numbers: how long they are, what is cut off, what ends them."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.diffusion import byte_bpe
from smalti.diffusion.plain_texts import PlainTexts
from smalti.diffusion.t5_tokenizer import shipped

ENDING = "<|im_end|>\n<|im_start|>assistant\n"


def test_rows_tell_their_own_tokens() -> None:
    found = PlainTexts.of(shipped(), ["a lovely cat", ""], 512)
    assert found.longest == 5
    np.testing.assert_array_equal(found.numbers(6), [[3, 9, 3061, 1712, 1, 0], [1, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(found.own(6), [[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]])
    assert found.not_read(["the prompt", "the negative prompt"]) == []


@pytest.mark.parametrize("text", ["a lovely cat", "a lovely cat, " * 9, ""])
def test_an_ending_is_read_whole(text: str) -> None:
    """Where all of a text is read, it is as if the ending were written behind it."""
    tokenizer, most = byte_bpe.qwen3(), 16
    found = PlainTexts.of(tokenizer, [text], most, ENDING)
    end = tokenizer.tokenize(ENDING)
    whole = tokenizer.tokenize(text + ENDING)
    ids = found.numbers(most)[0].tolist()
    assert len(ids) == most and ids[found.longest - len(end):found.longest] == end
    if len(whole) <= most:
        assert ids[:len(whole)] == whole and not found.not_read(["the prompt"])
    else:
        assert ids[:most - len(end)] == whole[:most - len(end)]
        assert found.not_read(["it"])[0].startswith("it is longer than the 16 tokens that the")
