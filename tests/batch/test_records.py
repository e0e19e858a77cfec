"""Records: what rows ask for, one by one, and by which hash a picture is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smalti.batch.records import BatchRecord, distinct, records
from smalti.batch.table import BatchRow
from smalti.cli.picture_options import asked_for
from smalti.diffusion.options import OPTIONS, PictureOptions
from smalti.errors import InputError


def made(*values: dict[str, Any], folder: Path = Path(), texts: bool = False,
         loading: str = "model", usual: dict[str, Any] | None = None, **sweeps: str
         ) -> list[BatchRecord]:
    rows = [BatchRow(f"t:{number}", each, texts) for number, each in enumerate(values, 1)]
    return records(rows, folder, loading, usual or {}, sweeps)


def options(found: list[BatchRecord], name: str) -> list[Any]:
    return [record.options.get(name) for record in found]


def test_a_sweep_is_every_combination() -> None:
    found = made({"prompt": "a", "seed*": [1, 2], "sampler*": "euler | heun"}, steps="4|8")
    assert [(record.options["seed"], record.options["sampler"], record.options["steps"])
            for record in found] == [(seed, sampler, steps) for seed in (1, 2)
                                     for sampler in ("euler", "heun") for steps in (4, 8)]
    assert [record.number for record in found] == [*range(1, 9)]
    assert options(made({"prompt*": "a cat|a dog", "seed*": "3..5"}, texts=True), "seed") == [
        3, 4, 5] * 2


def test_a_batch_is_its_pictures_with_seeds_that_follow() -> None:
    assert options(made({"prompt": "a", "seed": 9, "batch_size": 3}), "seed") == [9, 10, 11]
    assert options(made({"prompt": "a", "batch_size": 2}), "seed") == [7, 8]
    varied = made({"prompt": "a", "variation_strength": .2, "variation_seed": 5, "batch_size": 2})
    assert options(varied, "variation_seed") == [5, 6] and options(varied, "seed") == [None] * 2


def test_cells_of_a_csv_are_read_as_their_options_are() -> None:
    found = made({"prompt": "a", "steps": "4", "guidance_scale": "7.5", "guidance_time": "0-0.8",
                  "tiling": "xy", "apg": "yes"}, texts=True)
    assert found[0].options["steps"] == 4 and found[0].options["guidance_time"] == (0, .8)
    assert PictureOptions.of(**found[0].options).apg is not None


def test_the_command_line_counts_where_a_row_says_nothing() -> None:
    assert options(made({"prompt": "a"}, {"prompt": "b", "steps": 8}, usual={"steps": 4}),
                   "steps") == [4, 8]


@pytest.mark.parametrize(("values", "said"), [
    ({"prompt": "a", "stepz": 3}, "t:1: there is no option stepz; did you mean steps"),
    ({"seed": 3}, "t:1: no prompt"), ({"prompt": "a", "steps": 0}, "t:1: steps is 0"),
    ({"prompt": "a", "seed": 1, "seed*": [2]}, "seed is given, and swept over"),
    ({"prompt": "a", "seed*": 3}, "expected several values"),
    ({"prompt": "a", "seed*": []}, "expected several values"),
    ({"prompt": "a", "seed*": "9..3"}, "expected first..last"),
    ({"prompt": "a", "seed*": "1..99999999"}, "expected first..last"),
    ({"prompt": "a", "image": "none.png"}, "none.png, which is no file"),
    ({"prompt": "a", "controls": [{"model": "x"}]}, "expected model, image"),
    ({"prompt": "a", "controls": "x"}, "expected a list such as"),
    ({"prompt": "a", "batch_size": 65}, "batch_size is 65"),
    ({"prompt": "a", "width": "wide"}, "width is 'wide'; expected a whole number"),
    ({"prompt": "a", "noise": True}, "noise is True"),
    ({"prompt": "a", "mask": [1]}, r"mask is \[1\]; expected the path of a file"),
    ({"prompt": "a", "controls": [{"model": 1, "image": 2}]}, "expected the path of a file")])
def test_rows_that_cannot_be_made_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"1 of 2 rows cannot be made:\n.*{said}"):
        made(values, {"prompt": "good"})


def test_ten_of_many_wrong_rows_are_named() -> None:
    with pytest.raises(InputError, match="12 of 12 rows") as raised:
        made(*[{"prompt": 3}] * 12)
    assert str(raised.value).count("\n") == 11 and "and 2 more" in str(raised.value)


@pytest.mark.parametrize("values", [
    {"prompt": "a", "seed": "x"}, {"prompt": "a", "only_masked": "x"},
    {"prompt": "a", "guidance_time": "x"}])
def test_cells_that_are_no_values_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"t:1: {[*values][1]} is 'x'; expected"):
        made(values, texts=True)


def test_a_record_is_known_by_what_decides_its_picture(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2), "red").save(tmp_path / "a.png")
    Image.new("RGB", (2, 2), "red").save(tmp_path / "b.png")
    Image.new("RGB", (2, 2), "blue").save(tmp_path / "c.png")
    digests = [record.digest for record in made(
        {"prompt": "a"}, {"prompt": "a", "seed": 7}, {"prompt": "a", "seed": 8},
        *({"prompt": "a", "image": f"{name}.png"} for name in "abc"), folder=tmp_path)]
    assert digests[0] == digests[1] != digests[2]
    assert digests[3] == digests[4] != digests[5]
    one, same, turned = made(*({"prompt": "a", "image": [f"{first}.png", f"{second}.png"]}
                               for first, second in ("ac", "bc", "cb")), folder=tmp_path)
    assert one.digest == same.digest != turned.digest
    assert one.options["image"] == (str(tmp_path / "a.png"), str(tmp_path / "c.png"))
    both = asked_for({"image": ("a.png", "c.png")})  # as the command line has them
    assert made({"prompt": "a"}, folder=tmp_path, usual=both)[0].digest == one.digest
    assert made({"prompt": "a"}, loading="other")[0].digest != digests[0]
    assert made({"num_inference_steps": 4, "prompt": "a"})[0].digest == made(
        {"prompt": "a", "steps": 4})[0].digest


def test_a_network_may_be_given_by_name(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    control = {"model": "hf:org/canny", "image": "a.png"}
    [found] = made({"prompt": "a", "hires": 2, "hires_upscaler": "hf:org/esrgan",
                    "controls": [control]}, folder=tmp_path)
    assert found.options["hires_upscaler"] == "hf:org/esrgan"
    assert found.options["controls"] == [{**control, "image": str(tmp_path / "a.png")}]
    with pytest.raises(InputError, match="image is .*hf:org/a, which is no file"):
        made({"prompt": "a", "image": "hf:org/a"}, folder=tmp_path)


def test_seeds_that_are_drawn_are_the_same_at_the_next_start() -> None:
    rows = [{"prompt": "a", "seed": -1}, {"prompt": "a", "seed": -1}, {"prompt": "b", "seed": -1},
            {"prompt": "a", "variation_strength": .1}]
    first, second = made(*rows), made(*rows)
    assert [record.digest for record in first] == [record.digest for record in second]
    assert len({record.options["seed"] for record in first[:3]}) == 3
    assert first[3].options["variation_seed"] == second[3].options["variation_seed"] >= 0


def test_what_is_asked_for_twice_is_one_picture() -> None:
    found = made({"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"})
    assert [record.number for record in distinct(found)] == [1, 2]


@examples(100)
@given(st.dictionaries(st.sampled_from([*OPTIONS, "x", "seed*"]), st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=3)), max_size=4), st.booleans())
def test_any_row_is_made_or_refused(values: dict[str, Any], texts: bool) -> None:
    row = {name: str(value) if texts else value for name, value in values.items()}
    try:
        found = made({"prompt": "a", **row}, texts=texts)
    except InputError:
        return
    assert len({record.digest for record in found}) <= len(found)
    for record in found:
        assert PictureOptions.of(**{name: value for name, value in record.options.items()
                                    if name != "controls"})
