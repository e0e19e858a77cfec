"""The grammar of prompts: what A1111's documentation says, form by form; no text is an error."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.diffusion.prompt import CHUNK, Chunk, Vector, emphasised, filled, parse
from smalti.diffusion.schedule_text import scheduled
from smalti.diffusion.tokenizer import END, START, tokenize


def said(text, replace=False):
    """[(text, weight), ...] with BREAK as None."""
    return [(part.text, round(part.weight, 6)) for part in emphasised(text, replace)]


ATTENTION = {
    "normal text": [("normal text", 1)],
    "an (important) word": [("an ", 1), ("important", 1.1), (" word", 1)],
    "(unbalanced": [("unbalanced", 1.1)],
    r"\(literal\]": [("(literal]", 1)],
    "(unnecessary)(parens)": [("unnecessaryparens", 1.1)],
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).": [
        ("a ", 1), ("house", 1.573), (" ", 1.1), ("on", 1), (" a ", 1.1), ("hill", 0.55),
        (", sun, ", 1.1), ("sky", 1.4641), (".", 1.1)],
    "[a]": [("a", 0.909091)],
    "[[a]]": [("a", 0.826446)],
    "(a:-1)": [("a", -1)],
    "(a : 1.5 )": [("a ", 1.5)],
    "(a:.5)": [("a", 0.5)],
    "(a:1.2.3)": [("a:1.2.3", 1.1)],
    "(a:b)": [("a:b", 1.1)],
    "(a:)": [("a:", 1.1)],
    "a:1.3)": [("a:1.3)", 1)],
    "a) b] c": [("a) b] c", 1)],
    "(a [b) c]": [("a ", 1.1), ("b", 1), (" c", 0.909091)],
    "()": [],
    "(:1.3)": [],
    "\\": [],
    "a\\b": [("ab", 1)],
    r"\\(a)": [("\\", 1), ("a", 1.1)],
    "16:9": [("16:9", 1)],
    "a BREAK b": [("a", 1), (None, 1), ("b", 1)],
    "(a BREAK b:2)": [("a", 2), (None, 1), ("b", 2)],
    "BREAKS aBREAK": [("BREAKS aBREAK", 1)],
    "": [],
}


@pytest.mark.parametrize("text", ATTENTION)
def test_attention(text):
    assert said(text) == ATTENTION[text]


def test_an_inner_weight_takes_the_place_of_outer_ones_in_comfyui():
    assert said("((a:1.5) b:0.5)", replace=True) == [("a", 1.5), (" b", 0.5)]
    assert said("((a) b:0.5)", replace=True) == [("a", 0.55), (" b", 0.5)]
    assert said("((a:1.5) b:0.5)") == [("a", 0.75), (" b", 0.5)]


def texts(text, steps=10):
    return [(part.stop, part.text) for part in scheduled(text, steps)]


# the cases of A1111's own documentation of prompt editing, and what is none of it
SCHEDULES = {
    "test": [(10, "test")],
    "a [b:3]": [(3, "a "), (10, "a b")],
    "a [b: 3]": [(3, "a "), (10, "a b")],
    "a [[[b]]:2]": [(2, "a "), (10, "a [[b]]")],
    "[(a:2):3]": [(3, ""), (10, "(a:2)")],
    "a [b : c : 1] d": [(1, "a b  d"), (10, "a  c  d")],
    "a[b:[c:d:2]:1]e": [(1, "abe"), (2, "ace"), (10, "ade")],
    "a [unbalanced": [(10, "a [unbalanced")],
    "a [b:.5] c": [(5, "a  c"), (10, "a b c")],
    "a [{b|d{:.5] c": [(5, "a  c"), (10, "a {b|d{ c")],
    "((a][:b:c [d:3]": [(3, "((a][:b:c "), (10, "((a][:b:c d")],
    "[a|(b:1.1)]": [(stop + 1, ["a", "(b:1.1)"][stop % 2]) for stop in range(10)],
    "[fe|]male": [(stop + 1, ["female", "male"][stop % 2]) for stop in range(10)],
    "[a::0.3]": [(3, "a"), (10, "")],
    "[a:b:0]": [(10, "b")],
    "[a:b:25]": [(10, "a")],
    "[a:b:1.0]": [(10, "a")],
    "[a:b:-1]": [(10, "b")],
    "[a:b:c:0.5]": [(10, "[a:b:c:0.5]")],
    "[a:b:x]": [(10, "[a:b:x]")],
    r"\[a:b:0.5\]": [(10, r"\[a:b:0.5\]")],
    r"[a\:b:0.5]": [(5, ""), (10, r"a\:b")],
    "(a:1.3) [b]": [(10, "(a:1.3) [b]")],
    "": [(10, "")],
}


@pytest.mark.parametrize("text", SCHEDULES)
def test_schedules(text):
    assert texts(text) == SCHEDULES[text]


def chunks(text, **options):
    (part,) = parse(text, 10, **options).parts
    (span,) = part.spans
    return span.chunks


def lengths(text, **options):
    return [len(chunk.tokens) for chunk in chunks(text, **options)]


def test_a_short_prompt_is_one_chunk():
    (chunk,) = chunks("a (red:1.5) cat")
    assert chunk.tokens == tuple(tokenize("a red cat")) and chunk.weights == (1, 1.5, 1)
    assert chunk.ids() == (START, *tokenize("a red cat"), *[END] * 73)
    assert chunk.ids(pad=0) == (START, *tokenize("a red cat"), END, *[0] * 72)
    assert chunk.row_weights() == (1, 1, 1.5, 1, *[1] * 73)
    assert chunks("") == (Chunk(),) and Chunk().ids(0) == (START, END, *[0] * 75)


def test_weights_do_not_tear_words_apart():
    (chunk,) = chunks("a:cat")
    assert chunk.tokens == tuple(tokenize("a:cat"))


def test_long_prompts_become_chunks_of_75():
    assert lengths("cat " * 75) == [75]
    assert lengths("cat " * 76) == [75, 1]
    assert lengths("cat " * 160) == [75, 75, 10]
    tokens = [token for chunk in chunks("cat dog " * 80) for token in chunk.tokens]
    assert tokens == tokenize("cat dog " * 80)


@pytest.mark.parametrize(("before", "after", "expected"), [
    (70, 10, [71, 10]),   # what follows the comma goes on together
    (55, 25, [56, 25]),   # 20 tokens from the comma on: the last that do
    (54, 25, [75, 5]),    # further away: torn apart
    (74, 5, [75, 5]),     # the comma is the last of the chunk
    (75, 5, [75, 6]),     # and where it is the first of the next
])
def test_a_comma_near_the_end_of_a_chunk(before, after, expected):
    assert lengths("cat " * before + "," + " dog" * after) == expected


def test_break_begins_a_chunk():
    assert lengths("a cat BREAK a dog") == [2, 2]
    assert lengths("BREAK a dog BREAK") == [0, 2]
    assert lengths("a BREAK BREAK b") == [1, 0, 1]


def test_equal_numbers_of_chunks():
    assert filled(chunks("dog"), 2) == (*chunks("dog"), Chunk())


def test_plain_text_for_encoders_without_weights():
    (span,) = parse(r"a (((red:1.3)) \(cat\)) BREAK [b]<lora:x:1>", 5).parts[0].spans
    assert span.text == "a red (cat) b"


def test_and_joins_prompts_with_weights():
    prompt = parse("a cat AND a dog :1.2 AND snow:-.5", 10)
    assert [part.weight for part in prompt.parts] == [1, 1.2, -0.5]
    assert [part.at(0) for part in prompt.parts] == [chunks("a cat"), chunks("a dog"),
                                                     chunks("snow")]
    assert len(parse("SAND and ANDY", 10).parts) == 1
    (negative,) = parse("a AND b", 10, composed=False).parts
    assert negative.at(0) == chunks("a AND b", composed=False) != chunks("a b")
    assert parse("a 16:9", 10).parts[0].weight == 1


def test_what_is_said_when():
    (part,) = parse("a [red:blue:0.5] cat", 4).parts
    assert [(span.start, span.stop) for span in part.spans] == [(0, 2), (2, 4)]
    assert part.at(1) == chunks("a red cat") and part.at(2) == chunks("a blue cat")
    prompt = parse("[cow|horse]", 1000)
    assert len({span.chunks for span in prompt.parts[0].spans}) == 2
    assert len(prompt.parts[0].spans) == 1000


def test_adapters():
    prompt = parse("a<lora:one:0.8> b <lyco:two words><lora:three:1:.5> <lora:f:te=0.2:unet=3>", 5)
    assert [(use.name, use.weight, use.text_weight) for use in prompt.adapters] == [
        ("one", 0.8, 0.8), ("two words", 1, 1), ("three", 0.5, 1), ("f", 3, 0.2)]
    assert prompt.parts[0].at(0) == chunks("a b") and not prompt.ignored
    wrong = parse("<lora:a:much> <hypernet:b:1> <lora:> a < b > c", 5)
    assert wrong.ignored == ("<lora:a:much>", "<hypernet:b:1>")
    assert not wrong.adapters and wrong.parts[0].at(0) == chunks("<lora:> a < b > c")


EMBEDDINGS = {"EasyNegative": 3, "easy": 1, "big": 70, "huge": 200}


def test_embeddings_are_found_by_name():
    (chunk,) = chunks("bad, (easynegative:0.5), EASY", embeddings=EMBEDDINGS)
    bad, comma = tokenize("bad,")
    rows = tuple(Vector("EasyNegative", row) for row in range(3))
    assert chunk.tokens == (bad, comma, *rows, comma, Vector("easy", 0))
    assert chunk.weights == (1, 1, 0.5, 0.5, 0.5, 1, 1)
    assert chunk.vectors == {3: rows[0], 4: rows[1], 5: rows[2], 7: Vector("easy", 0)}
    assert chunk.ids()[:9] == (START, bad, comma, 0, 0, 0, comma, 0, END)
    (chunk,) = chunks("embedding:EasyNegative", embeddings=EMBEDDINGS)
    assert chunk.tokens == rows


def test_embeddings_are_never_torn_apart():
    assert lengths("cat " * 10 + "big dog", embeddings=EMBEDDINGS) == [10, 71]
    assert lengths("cat " * 5 + "big dog", embeddings=EMBEDDINGS) == [75, 1]
    assert lengths("cat , " + "dog " * 73 + "big", embeddings=EMBEDDINGS) == [75, 70]
    assert lengths("cat " * 70 + ", dog dog dog dog big", embeddings=EMBEDDINGS) == [71, 74]
    assert lengths("cat " * 60 + "," + " dog" * 14 + " big", embeddings=EMBEDDINGS) == [61, 14, 70]
    assert lengths("huge", embeddings=EMBEDDINGS) == [75]


MARKS = st.text(st.sampled_from("()[]:|\\ ,a1.<>-") | st.characters(), max_size=60)
WORDS = st.lists(st.sampled_from(["(", ")", "[", "]", ":", "|", "\\", "0.5", "1.3)", " AND ",
                                  " BREAK ", "<lora:a:1>", "cat", "easy", ",", " ", "é"]))


@settings(deadline=None)
@given(text=MARKS | WORDS.map("".join), steps=st.integers(1, 12), replace=st.booleans())
def test_any_text_is_a_prompt(text, steps, replace):
    prompt = parse(text, steps, embeddings=EMBEDDINGS, replace=replace)
    for part in prompt.parts:
        assert part.spans[0].start == 0 and part.spans[-1].stop == steps
        for before, after in zip(part.spans, part.spans[1:], strict=False):
            assert before.stop == after.start
        for step in range(steps):
            for chunk in part.at(step):
                assert len(chunk.tokens) == len(chunk.weights) <= CHUNK
                assert len(chunk.ids()) == len(chunk.row_weights()) == 77
                assert chunk.ids()[0] == START and END in chunk.ids()


HOSTILE = {
    "open": "(" * 100_000, "closed": "((" * 20_000 + "a" + "))" * 20_000,
    "square": "[" * 50_000 + "a:b:0.5" + "]" * 50_000, "overlapping": "([" * 3_000 + ")]" * 3_000,
    "colons": ":" * 100_000, "backslashes": "\\" * 100_000, "adapters": "<lora:" * 20_000,
    "bars": "[" + "|" * 20_000 + "]", "commas": "," * 20_000,
    "words": " ".join(random.Random(0).choices(["cat", "(dog", "bird:1.2)"], k=10_000)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_prompts_are_read_quickly(what):
    start = time.perf_counter()
    parse(HOSTILE[what], 20)
    assert time.perf_counter() - start < 10  # half a second on a free core; n^2 takes minutes
