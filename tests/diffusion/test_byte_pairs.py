"""Byte pairs are merged as by the book, and outlines keep the places of what they stand for."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from smalti.diffusion.byte_pairs import byte_symbols, merged, outline


def by_the_book(numbers: list[int], ranks: dict[tuple[int, int], int],
                made: list[int]) -> list[int]:
    """All neighbours are looked at before every merge."""
    while True:
        found = [(ranks[pair], place) for place, pair in enumerate(zip(numbers, numbers[1:]))
                 if pair in ranks]
        if not found:
            return numbers
        rank, place = min(found)
        numbers = [*numbers[:place], made[rank], *numbers[place + 2:]]


def test_the_heap_agrees_with_the_book() -> None:
    rng = random.Random(0)
    for _ in range(300):
        pairs = {(rng.randrange(8), rng.randrange(8)): None for _ in range(rng.randrange(20))}
        ranks = {pair: rank for rank, pair in enumerate(pairs)}
        made = [rng.choice([rank + 3, rng.randrange(8)]) for rank in range(len(pairs))]
        numbers = [rng.randrange(3) for _ in range(rng.randrange(40))]
        assert merged(numbers, ranks, made) == tuple(by_the_book(numbers, ranks, made))


def test_each_byte_has_a_symbol_that_can_be_printed() -> None:
    assert len(set(byte_symbols())) == 256 and all(map(str.isprintable, byte_symbols()))


@given(st.text())
def test_an_outline_has_the_length_of_its_text(text: str) -> None:
    found = outline(text)
    assert len(found) == len(text) and found.isascii()
    assert [a for a in text if a.isascii()] == [b for a, b in zip(text, found) if a.isascii()]
