"""The page reads weights of prompts as the engine does: thousands of texts, both ways."""

from __future__ import annotations

import random

import pytest
from visits import Visits

from smalti.diffusion.prompt import emphasised
from smalti.diffusion.schedule_text import scheduled

pytestmark = pytest.mark.browser

TEXTS = 4000
STEPS = 7
PIECES = [*"()[]:|\\ ", "a", "b", "cat", "0.5", ":1.3)", ":2", "BREAK", " BREAK ", "é", "😀", "x:y",
          ".5", "[a|b]", "[a:b:0.5]", "(c:0.7)", ",", "\n", "-1", "1."]
ASKED = """async (texts) => {
    const { changes, emphasised } = await import("/page/weights.js");
    return texts.map((text) => [emphasised(text).map((each) => [each.text, each.weight]),
        changes(text).length > 0]);
}"""
PAINTED = """async (text) => {
    const { painted } = await import("/page/weights.js");
    return painted(text).map((each) => [each.text, Number(each.weight.toFixed(3)), each.kind]);
}"""


def test_weights_and_changes_are_those_of_the_engine(visits: Visits) -> None:
    chance = random.Random(0)
    texts = ["".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 14)))
             for _ in range(TEXTS)]
    for text, (said, changes) in zip(texts, visits.open().evaluate(ASKED, texts), strict=True):
        expected = emphasised(text)
        assert [each for each, _ in said] == [each.text for each in expected], text
        assert [weight for _, weight in said] == pytest.approx(
            [each.weight for each in expected]), text
        assert changes == ([each.text for each in scheduled(text, STEPS)] != [text]), text


def test_a_prompt_is_painted_where_it_is_weighed(visits: Visits) -> None:
    page = visits.open()
    assert page.evaluate(PAINTED, "a (red:1.5) [x:y:0.5]<lora:f:1> [z] BREAK ((q))") == [
        ["a (", 1, ""], ["red", 1.5, ""], [":1.5) ", 1, ""], ["[", 1, "change"], ["x", 1, ""],
        [":", 1, "change"], ["y", 1, ""], [":0.5]", 1, "change"], ["<lora:f:1>", 1, "tag"],
        [" [", 1, ""], ["z", 0.909, ""], ["]", 1, ""], [" BREAK ", 1, "break"], ["((", 1, ""],
        ["q", 1.21, ""], ["))", 1, ""]]
