"""What a pipeline gives: pictures that carry their settings, and what is said about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti import Pipeline
from smalti.diffusion.images import opened
from smalti.diffusion.metadata import carried, text_in
from smalti.errors import InputError, OutputError


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.jpg", "a.webp"])
def test_every_picture_carries_its_settings(pipe: Pipeline, tmp_path: Path, name: str) -> None:
    result = pipe("a red äpple", batch_size=2, steps=1)
    for number in (0, 1):
        result.images[number].save(tmp_path / name)
        assert text_in(tmp_path / name) == result.texts[number]
        assert carried(opened(tmp_path / name)) == result.texts[number]
        assert result.images[number].info["parameters"] == result.texts[number]
    plain = Image.open(tmp_path / name)
    assert plain.size == result.images[1].size
    assert result.images[1].resize((4, 4)).size == (4, 4)
    assert result.images[1].tobytes() == Image.Image.copy(result.images[1]).tobytes()


def test_all_are_written_whole_with_numbers(pipe: Pipeline, tmp_path: Path) -> None:
    result = pipe("a red apple", batch_size=2, steps=1)
    assert [path.name for path in result.save(tmp_path / "a.png")] == ["a-001.png", "a-002.png"]
    (path, _) = result.save(tmp_path / "%02d.webp")
    assert path.name == "01.webp" and text_in(path) == result.texts[0]
    with Image.open(tmp_path / "a-002.png") as second:
        assert second.tobytes() == result.images[1].tobytes()
    for name, message in (("a.txt", "no ending of a picture"), ("none/a.png", "cannot write"),
                          ("%d-%d.png", "holds 2 numbers")):
        with pytest.raises(OutputError, match=message):
            result.save(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 4


def test_what_is_shown_helps(pipe: Pipeline) -> None:
    assert repr(pipe).startswith("<Pipeline tiny: sd1, 16x16, auto on cpu; parts text, unet, vae")
    first, last = pipe.steps("a red apple", "x", guidance_scale=1.0, steps=2)
    assert repr(first).startswith("<Step 1 of 2: noise ") and "latents [1, 4, 8, 8]>" in repr(first)
    assert repr(last).endswith(", with the result>")
    told = repr(last.result)
    assert told.startswith("<Result of 'a red apple': 16x16, seed 7; 2 steps of euler_a (karras) by"
                           " tiny in ") and told.endswith(" s, 1 warnings>")


@pytest.mark.parametrize(("options", "words"), [
    ({"path": 3}, "given 3"), ({"vae": 3}, "loading with vae is given 3"),
    ({"text_encoders": 3}, "text_encoders is 3; expected a path, or several"),
    ({"embeddings": [3]}, "loading with embeddings is given 3"),
    ({"refiner": ["a"]}, "loading with refiner is given"),
    ({"lora_folder": 3}, "lora_folder is 3; expected a path, or several"),
])
def test_what_is_no_path_is_refused(model_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Pipeline.load(**{"path": model_path, **options})
    assert words in str(caught.value)
