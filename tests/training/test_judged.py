"""What the judge of the small model asks, and when a picture shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.judged import GROUPS, Judgement, Seen, Wanted, met, read_prompts, shares, short_names

TRAINING = Path(__file__).parents[2] / "training"


def asked(tmp_path: Path, text: str) -> Wanted:
    file = tmp_path / "prompts.txt"
    file.write_text(f"# a comment\n{text}\n")
    (found,) = read_prompts(file)
    return found


def picture(*things: Seen, ground: str = "white", style: str = "3d") -> Judgement:
    return Judgement(things, ground, style)


def thing(label: str, x: float = 0.5, y: float = 0.5, hue: str = "many") -> Seen:
    return Seen(label, hue, x, y)


def test_the_prompts_ask_for_things_of_the_list_25_times_in_each_group() -> None:
    prompts = read_prompts(TRAINING / "prompts.txt")
    assert [sum(each.group == group for each in prompts) for group in GROUPS] == [25] * 8
    lines = (TRAINING / "concepts.txt").read_text(encoding="utf-8").splitlines()
    labels = {line.partition("|")[0].strip() for line in lines if not line.startswith("#")}
    assert {label for each in prompts for part in each.parts for label in part.labels} <= labels
    assert len({each.prompt for each in prompts}) == 200


@pytest.mark.parametrize(("line", "shown", "wanted"), [
    ("known object | a cat | cat face", picture(thing("cat face"), thing("dog face")), True),
    ("known object | a cat | cat face/cat", picture(thing("cat")), True),
    ("known object | a cat | cat face", picture(thing("dog face")), False),
    ("colour | a blue car | blue: automobile", picture(thing("automobile", hue="blue")), True),
    ("colour | a blue car | blue: automobile", picture(thing("automobile", hue="red")), False),
    ("count | two cats | 2 x cat face", picture(thing("cat face"), thing("cat face")), True),
    ("count | two cats | 2 x cat face", picture(*[thing("cat face")] * 3), False),
    ("count | two cats | 2 x cat face", picture(*[thing("cat face")] * 2, thing("key")), False),
    ("two objects | a cat and a key | cat face;key", picture(thing("cat face")), False),
    ("relation | a cat left of a key | cat face left of key",
     picture(thing("key", 0.8), thing("cat face", 0.2)), True),
    ("relation | a cat left of a key | cat face left of key",
     picture(thing("key", 0.2), thing("cat face", 0.8)), False),
    ("relation | a sun above a key | sun above key",
     picture(thing("sun", y=0.2), thing("key", y=0.8)), True),
    ("relation | a sun above a key | sun above key",
     picture(thing("sun", 0.1, 0.4), thing("key", 0.9, 0.6)), False),  # beside, not above
    ("relation | a cat under a key | cat face under key",
     picture(thing("key", y=0.2), thing("cat face", y=0.8)), True),
    ("background | a cat on blue | cat face; ground blue",
     picture(thing("cat face"), ground="blue"), True),
    ("background | a cat on light blue | cat face; ground light blue",
     picture(thing("cat face"), ground="blue"), False),
    ("style | a cat, pixel art | cat face; style pixel",
     picture(thing("cat face"), style="flat"), False),
    ("nonsense | florp |", picture(), True),
    ("nonsense | florp |", picture(thing("cat face")), False)])
def test_what_a_picture_has_to_show(line: str, shown: Judgement, wanted: bool,
                                    tmp_path: Path) -> None:
    assert met(asked(tmp_path, line), shown) is wanted


def test_shares_are_told_by_group(tmp_path: Path) -> None:
    cat = asked(tmp_path, "count | two cats | 2 x cat face")
    florp = asked(tmp_path, "nonsense | florp |")
    assert shares([cat, cat, florp], [True, False, True]) == {"count": 0.5, "nonsense": 1.0}


@pytest.mark.parametrize("line", ["a cat", "animal | a cat | cat face", "count | two cats"])
def test_a_line_that_asks_nothing_is_refused_by_its_number(line: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="line 2: expected"):
        asked(tmp_path, line)


def test_two_models_of_one_name_have_columns_of_their_own() -> None:
    """Each trained file is called emoji-128: the second one took the first one's column."""
    first, second, third = Path("a/emoji-128.st"), Path("b/emoji-128.st"), Path("c/other.st")
    assert short_names([first, second, third]) == ["a/emoji-128", "b/emoji-128", "other"]
    with pytest.raises(SystemExit, match="two models are called a/emoji-128: rename one"):
        short_names([first, Path("x/a/emoji-128.st")])
