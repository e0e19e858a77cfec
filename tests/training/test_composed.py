"""Scenes to learn from, and what one calls them, of plain shapes."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def composer(tmp_path: Path, prompts: str = "") -> object:
    from composed import Composer
    from plain_shapes import Shapes, listed
    from shortlist import read_list

    kept = tmp_path / "prompts.txt"
    kept.write_text(prompts, encoding="utf-8")
    return Composer(Shapes(), read_list(listed(tmp_path)), kept)


@pytest.mark.parametrize(("one", "several"), [
    ("cat", "cats"), ("box", "boxes"), ("cactus", "cactuses"), ("strawberry", "strawberries"),
    ("key", "keys"), ("fish", "fish"), ("grapes", "grapes"), ("tomato", "tomatoes"),
    ("slice of pizza", "slices of pizza"), ("smiling face with sunglasses",
                                            "smiling faces with sunglasses"),
    ("mouse face", "mouse faces"), ("mouse", "mice"), ("soccer ball", "soccer balls")])
def test_several_things_have_a_name_of_their_own(one: str, several: str) -> None:
    from composed import plural

    assert plural(one) == several


def test_scenes_are_of_every_kind_and_captions_tell_what_they_show(tmp_path: Path) -> None:
    from composed import CAPTIONS

    made, rng, seen = composer(tmp_path), random.Random(0), Counter()
    for _ in range(600):
        item = made.item(rng)
        scene, texts = item.scene, item.captions
        assert len(texts) == CAPTIONS and not any("{" in text or "  " in text for text in texts)
        labels = {thing.label for thing in scene.things}
        seen[len(scene.things), len(labels), scene.style] += 1
        seen["ground"] += scene.ground != "white"
        seen["view"] += scene.view is not None
        if scene.ground != "white":
            assert all(scene.ground in text for text in texts)
        if len(scene.things) == 4:
            assert all("four" in text for text in texts)
        for thing in scene.things:
            if thing.hue:
                assert all(thing.hue in text for text in texts)
    assert {1, 2, 3, 4} <= {key[0] for key in seen if isinstance(key, tuple)}
    assert {"3d", "flat", "outline", "pixel"} <= {
        key[2] for key in seen if isinstance(key, tuple)}
    assert seen["ground"] > 60 and seen["view"] > 15


def test_the_first_thing_that_is_named_is_where_the_caption_says(tmp_path: Path) -> None:
    made, rng, asked = composer(tmp_path), random.Random(1), 0
    for _ in range(200):
        things, say = made._relation(rng, "3d")
        for text in (say(rng) for _ in range(4)):
            names = {word: thing for thing in things for name in made.names[thing.label]
                     for word in name.split()}
            first = next(names[word] for word in text.replace(",", "").split() if word in names)
            other = things[1 - things.index(first)]
            if " left" in text and "right" not in text:
                assert first.x < other.x
            elif " right of" in text or "the right of" in text:
                assert first.x > other.x
            elif any(word in text for word in (" above", " over", "on top")):
                assert first.y < other.y
            elif any(word in text for word in (" under", " below")):
                assert first.y > other.y
            asked += 1
    assert asked == 800


def test_two_and_three_things_at_regular_places_differ_between_scenes(tmp_path: Path) -> None:
    made, rng = composer(tmp_path), random.Random(4)
    made.regular = made.moved = 1.0
    for count, wanted in ((2, {((0.25, 0.375), (0.75, 0.375)), ((0.25, 0.625), (0.75, 0.625))}),
                          (3, {((0.25, 0.25), (0.75, 0.25), (0.5, 0.75)),
                               ((0.25, 0.75), (0.75, 0.75), (0.5, 0.25))})):
        drawn = [tuple((x, y) for x, y, _ in made._places(rng, count)) for _ in range(40)]
        assert {*drawn} == wanted and 10 < drawn.count(drawn[0]) < 30
    places = {tuple((thing.x, thing.y) for thing in made._relation(rng, "3d")[0])
              for _ in range(60)}
    assert {((0.25, 0.375), (0.75, 0.375)), ((0.625, 0.25), (0.625, 0.75))} <= places
    assert len(places) == 6
    made.moved = 0.0
    assert {made._places(rng, 2)[0][:2] for _ in range(9)} == {(0.25, 0.5)}


def test_what_the_judge_asks_for_is_never_drawn(tmp_path: Path) -> None:
    kept = ("count | two discs | 2 x disc\ncolour | a blue square | blue: square\n"
            "relation | a bar left of a disc | bar left of disc\n"
            "background | a bar on black | bar; ground black\n"
            "style | outline of a disc | disc; style outline\nknown object | a disc | disc\n"
            "style | a disc, 3d | disc; style 3d\n")
    made, rng, scenes = composer(tmp_path, kept), random.Random(2), []
    scenes = [made.item(rng).scene for _ in range(800)]
    assert len(made.kept_back) == 5
    for scene in scenes:
        things = [(thing.label, thing.hue) for thing in scene.things]
        assert [label for label, _ in things] != ["disc", "disc"]
        assert ("square", "blue") not in things
        labels = {label for label, _ in things}
        assert not ("bar" in labels and scene.ground == "black")
        assert not ("disc" in labels and scene.style == "outline")
    assert any([thing.label for thing in scene.things] == ["bar", "bar"] for scene in scenes)


def test_scenes_are_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    import torch
    from composed import drawn_items

    made = composer(tmp_path)
    alone, shared = ([*drawn_items(made, 70, 5, workers)] for workers in (1, 2))
    assert len(alone) == 70 and [each[1:] for each in alone] == [each[1:] for each in shared]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(alone, shared, strict=True))


def test_processes_that_draw_scenes_end_when_a_pool_ends_them(tmp_path: Path) -> None:
    from composed import _begin

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as a run that saves at that signal
    try:
        with multiprocessing.get_context("fork").Pool(1, _begin, (composer(tmp_path),)) as pool:
            assert pool.apply(signal.getsignal, (signal.SIGTERM,)) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_words_of_scenes_are_listed_for_the_model_that_was_taught_them(tmp_path: Path) -> None:
    from composed import composed_words, forms, names_of
    from shortlist import read_list

    made, rng = composer(tmp_path), random.Random(3)
    entries = read_list(tmp_path / "list.txt")
    known = set(" ".join([*composed_words(entries), "square box disc round thing bar a an the",
                          "3d render glossy emoji icon isolated high quality white"]).replace(
                              ",", " ").split())
    for _ in range(300):
        item = made.item(rng)
        if item.scene.things:
            said = set(" ".join(item.captions).replace(",", " ").split())
            assert said <= known | {thing.hue for thing in item.scene.things}
    assert forms(names_of(entries))["discs"] == "disc"


def test_a_style_of_too_few_things_is_told(tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_shapes import Shapes

    monkeypatch.setattr(Shapes, "has", lambda self, style, label: label == "disc")
    with pytest.raises(SystemExit, match="1 things in the style pixel; scenes of it take 3"):
        composer(tmp_path)._labels(random.Random(1), "pixel", 3)
