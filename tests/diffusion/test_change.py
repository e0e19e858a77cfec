"""Pictures that are changed, on tiny models: how much, in which size, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.diffusion.images import as_pixels, encoded, to_model_space
from smalti.errors import InputError

SIDE = 32
OPTIONS = {"steps": 4, "sampler": "euler"}


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """Colours that run in both directions."""
    y, x = np.mgrid[:SIDE, :SIDE] * 8
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def made(pipe: Pipeline, **options: Any) -> np.ndarray:
    (image,) = pipe("a red apple", **{**OPTIONS, **options}).images
    return np.asarray(image, np.float64)


def test_strength_is_the_share_of_the_steps(pipe: Pipeline, picture: Image.Image) -> None:
    for strength, count in ((0.5, 2), (0.75, 3), (1, 4), (0.01, 1)):
        steps = list(pipe.steps("a red apple", image=picture, strength=strength, **OPTIONS))
        assert [step.total for step in steps] == [count] * count
    assert f"Denoising strength: {strength}" in steps[-1].result.texts[0]
    assert set(steps[-1].result.timings) == {"prepare", "encode", "text", "denoise", "decode"}


def test_the_weaker_the_nearer_to_the_latents_of_the_picture(
        pipe: Pipeline, picture: Image.Image) -> None:
    tails = [next(iter(pipe.steps("a red apple", image=picture, strength=strength,
                                  noise=f"{level},0", **OPTIONS))).latents
             for strength, level in ((1, 1e-4), (1, 1.0))]
    models = pipe._submodels
    clean = to_model_space(models, encoded(models, as_pixels(picture), 0))
    near, far = (np.abs(tail[0] - clean).mean() for tail in tails)
    assert near < 1e-3 < far


def test_the_size_is_that_of_the_picture_as_near_as_can_be(
        pipe: Pipeline, picture: Image.Image) -> None:
    odd = picture.resize((21, 30))
    assert made(pipe, image=odd).shape == (32, 20, 3)  # sides are multiples of 4; ties to even
    assert made(pipe, image=odd, width=16, height=24).shape == (24, 16, 3)


def test_a_path_and_a_picture_are_the_same(pipe: Pipeline, picture: Image.Image,
                                           tmp_path: Path) -> None:
    picture.save(tmp_path / "in.png")
    np.testing.assert_array_equal(made(pipe, image=picture),
                                  made(pipe, image=str(tmp_path / "in.png")))
    clear = picture.convert("RGBA")
    clear.putalpha(0)
    np.testing.assert_array_equal(made(pipe, image=clear),
                                  made(pipe, image=Image.new("RGB", picture.size, "white")))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_changes_pictures(tmp_path: Path, family: str, picture: Image.Image) -> None:
    config = tiny.FAMILIES[family]
    path = tiny.write(tmp_path / "model.safetensors",
                      tiny.single_file(config, tiny.random_weights(config)))
    pipe = Pipeline.load(path, threads=1)
    found = made(pipe, image=picture)
    assert found.shape == (SIDE, SIDE, 3)
    np.testing.assert_array_equal(made(pipe, image=picture), found)
    flipped = picture.transpose(Image.Transpose.ROTATE_180)
    assert np.abs(made(pipe, image=flipped) - found).mean() > 1
    assert np.abs(made(pipe, image=picture, seed=8) - found).mean() > 0.5


@pytest.mark.parametrize(("options", "message"), [
    ({"strength": 0.5}, "strength says how much of a picture is changed, but no image is given"),
    ({"image": "no-such.png"}, "no-such.png cannot be read as a picture"),
    ({"image": b"bytes"}, "a picture is given as bytes; expected a PIL image or the path"),
    ({"strength": 0}, "strength is 0; expected a number above 0"),
    ({"strength": 1.5}, "strength is 1.5; expected a number above 0"),
    ({"strength": "much"}, "strength is 'much'; expected a number"),
])
def test_what_cannot_be_is_said(pipe: Pipeline, picture: Image.Image, options: dict[str, Any],
                                message: str) -> None:
    if "strength" in options and options["strength"] != 0.5:
        options = {"image": picture, **options}
    with pytest.raises(InputError, match=message):
        pipe.steps("a red apple", **options)
