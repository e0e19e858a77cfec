"""Token numbers are those of CLIP's published tokenizer; long prompts are cut and say what."""

import gzip
import random
import time
import unicodedata
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.benchmark import peers
from smalti.diffusion import tokenizer
from smalti.diffusion.tokenizer import END, POSITIONS, START, encode, tokenize

KNOWN = {
    "a photo of a cat": [320, 1125, 539, 320, 2368],
    "don't 1234 café 日本": [847, 713, 272, 273, 274, 275, 15304, 39121, 19277, 361],
    "A lovely cat, masterpiece (best quality:1.2)": [
        *[320, 2165, 2368, 267, 12066, 263, 949, 3027, 281, 272, 269, 273, 264]
    ],
    "": [],
    "   \t\n ": [],
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_numbers(text):
    assert tokenize(text) == KNOWN[text]
    tokens = encode(text)
    count = len(KNOWN[text])
    assert tokens.ids == (START, *KNOWN[text], *[END] * (POSITIONS - 1 - count))
    assert (tokens.count, tokens.cut) == (count, "")


def test_case_blanks_and_composition_do_not_matter():
    assert tokenize("A  Photo\tof\u3000a\ncat") == KNOWN["a photo of a cat"]
    assert tokenize("cafe\u0301") == tokenize("café")


def test_html_stays_as_it_is():
    assert tokenize("a &amp; b") != tokenize("a & b")


def test_special_tokens_in_a_prompt():
    assert tokenize("a<|endoftext|>b") == [320, END, *tokenize("b")]


def test_75_tokens_fit_and_the_76th_is_cut():
    assert encode("cat " * 75).cut == "" and encode("cat " * 75).count == 75
    tokens = encode("cat " * 75 + "Dog, and more")
    assert tokens.cut == "dog, and more" and tokens.count == 75
    assert tokens.ids[-1] == END and tokens.ids[-2] == tokenize("cat")[0]


def test_a_word_may_be_cut_inside():
    long = "xq" * 200
    tokens = encode("cat " + long)
    assert tokens.count == 75 and tokens.cut == long
    assert list(tokens.ids[1:76]) == tokenize("cat " + long)[:75]


def test_merges_are_those_of_the_file():
    with gzip.open(tokenizer.MERGES_PATH, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[1 : tokenizer.MERGES + 1]
    assert list(tokenizer.merges().lines) == lines and len(lines) == 48894


def test_pairs_are_ranked_as_where_all_are_taken_apart():
    table = tokenizer.merges()
    known, ranks = dict(table.numbers), {}
    for rank, line in enumerate(table.lines):
        left, right = line.split(" ")
        known[left + right] = tokenizer.FIRST_MERGE + rank
        ranks[known[left], known[right]] = rank
    assert {pair: table.ranks.get(pair) for pair in ranks} == ranks and len(ranks) == 48894
    drawn = random.Random(0)
    for _ in range(10_000):
        pair = drawn.randrange(tokenizer.START), drawn.randrange(tokenizer.START)
        assert table.ranks.get(pair) == ranks.get(pair)
    for number in (0, tokenizer.START - 1, tokenizer.START, tokenizer.END):
        assert table.ranks.get((number, number)) == ranks.get((number, number))
    assert table.ranks.get((tokenizer.START, tokenizer.END)) is None


LONG = {
    "one word": "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=10_000)),
    "one letter": "a" * 10_000,
    "marks": "!" * 10_000,
    "emoji": "".join(map(chr, random.Random(0).choices(range(0x1F300, 0x1F600), k=10_000))),
    "words": "lovely cat " * 900,
}


@pytest.mark.parametrize("what", LONG)
def test_long_prompts_are_quick(what):
    encode("warm")
    seconds = []
    for _ in range(3):
        tokenizer._word_ids.cache_clear()
        start = time.thread_time()  # others may keep the cores busy
        assert encode(LONG[what]).count == 75
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.25  # 35 ms on a free core; a quadratic method takes seconds


@cache
def ranks():
    """The merges, each with its place among them."""
    return {line: rank for rank, line in enumerate(tokenizer.merges().lines)}


def simple_word(word):
    """Byte-pair encoding by the book: all pairs are looked at before every merge."""
    merges = tokenizer.merges()
    pieces = [merges.symbols[byte] for byte in word.encode()]
    pieces[-1] += "</w>"
    while len(pieces) > 1:
        ranked = [
            (ranks().get(f"{a} {b}"), i)
            for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False))
        ]
        ranked = [(rank, i) for rank, i in ranked if rank is not None]
        if not ranked:
            break
        _, place = min(ranked)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return pieces


def simple_numbers(word):
    merges = tokenizer.merges()
    numbers = dict(merges.numbers)
    for rank, pair in enumerate(merges.lines):
        numbers[pair.replace(" ", "")] = 512 + rank
    return numbers, simple_word(word)


def test_heap_agrees_with_the_book():
    numbers, _ = simple_numbers("a")
    rng = random.Random(1)
    for _ in range(500):
        word = "".join(rng.choices("aeinorstlhgaaeeé日", k=rng.randint(1, 24)))
        assert tokenizer._word_ids(word) == tuple(numbers[p] for p in simple_word(word))


@given(st.text())
def test_any_text_gives_77_numbers(text):
    ids = encode(text).ids
    assert len(ids) == POSITIONS and ids[0] == START and ids[-1] == END
    assert all(0 <= number <= END for number in ids)


RANGES = [(0x20, 0x7F)] * 6 + [(0x80, 0x250), (0x300, 0x600), (0x900, 0xA00), (0x2000, 0x2C00)]
RANGES += [(0x3000, 0x3200), (0x4E00, 0x9F00), (0xAC00, 0xD7A0), (0x1F300, 0x1F6FF), (1, 0x20)]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        low, high = rng.choice(RANGES)
        parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 6))))
        parts.append(rng.choice(["", " ", "'s", "'LL", "cat", "  ", "Σας", "İ", "½", "²"]))
    text = "".join(parts)
    return "".join(filter(known_to_both, text))


def known_to_both(character):
    """Unicode tables differ in age: Python's may lack the newest characters, and the peer's table
    of combining classes is years older, so that it leaves newer marks in another order."""
    if unicodedata.category(character) == "Cn":
        return False
    young = unicodedata.ucd_3_2_0.category(character) == "Cn"
    return not (young and unicodedata.combining(character))


@pytest.mark.peers
def test_agrees_with_transformers():
    peer = peers.clip_tokenizer()
    rng = random.Random(2)
    for _ in range(10_000):
        text = random_text(rng)
        assert tokenize(text) == peer(text, add_special_tokens=False).input_ids, repr(text)


@pytest.mark.peers
def test_truncation_agrees_with_transformers():
    peer = peers.clip_tokenizer()
    for text in ("cat " * 100, "xq" * 200, "a, " * 60, "short"):
        found = peer(text, padding="max_length", truncation=True, max_length=POSITIONS).input_ids
        assert list(encode(text).ids) == found
