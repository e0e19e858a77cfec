"""Pictures that are changed, on tiny models: how much, in which size, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_model import TINY

from smalti import Pipeline
from smalti.diffusion import encoding, inpainting
from smalti.diffusion.encoding import encoded, in_tiles, to_model_space
from smalti.diffusion.images import as_pixels, resized
from smalti.diffusion.init_image import around, as_read, init_image, near
from smalti.diffusion.inpainting import largest
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.submodels import Submodels
from smalti.errors import InputError
from smalti.models.config import FLUX2_VAE

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
    clean = to_model_space(models, encoded(models, as_pixels(picture)))
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
    deep = Image.fromarray(np.asarray(picture.convert("L"), np.uint16) * 257)
    assert deep.mode == "I;16"
    np.testing.assert_array_equal(made(pipe, image=deep), made(pipe, image=picture.convert("L")))
    clear = picture.convert("RGBA")
    clear.putalpha(0)
    np.testing.assert_array_equal(made(pipe, image=clear),
                                  made(pipe, image=Image.new("RGB", picture.size, "white")))


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name == "sdxl" else pytest.mark.sweep)
    for name in tiny.FAMILIES])
def test_every_family_changes_pictures(
        family_files: tiny.Files, family: str, picture: Image.Image) -> None:
    pipe = Pipeline.load(family_files[family], threads=1)
    found = made(pipe, image=picture)
    assert found.shape == (SIDE, SIDE, 3)
    np.testing.assert_array_equal(made(pipe, image=picture), found)
    flipped = picture.transpose(Image.Transpose.ROTATE_180)
    # autoencoders of random numbers, with the statistics of published latents, keep little of it
    assert np.abs(made(pipe, image=flipped) - found).max() >= 1
    assert np.abs(made(pipe, image=picture, seed=8) - found).mean() > 0.5
    drawn = Image.new("L", picture.size)
    drawn.paste(255, (8, 8, 20, 20))
    *_, last = pipe.steps("a red apple", image=picture, mask=drawn, mask_blur=0, **OPTIONS)
    clean = to_model_space(pipe._submodels, encoded(pipe._submodels, as_pixels(picture)))
    known = largest(np.asarray(drawn, np.float32), pipe.config.vae.downscale) == 0
    np.testing.assert_allclose(last.latents[0][:, known], clean[:, known], atol=1e-4)
    assert np.abs(last.latents[0][:, ~known] - clean[:, ~known]).mean() > 0.05
    larger = pipe("a red apple", width=16, height=16, hires=2, hires_steps=1, cache=0.5, **OPTIONS)
    assert larger.images[0].size == (SIDE, SIDE) and larger.saved.evaluations == 5


@pytest.mark.parametrize(("options", "message"), [
    ({"strength": 0.5}, "strength is given, but no image, which it belongs to"),
    ({"image": "no-such.png"}, "no-such.png cannot be read as a picture"),
    ({"image": b"bytes"}, "a picture is given as bytes; expected a PIL image or the path"),
    ({"image": Image.new("L", (0, 3))}, "a picture of 0 x 3 pixels is given; expected one"),
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


# ---------------------------------------------------------------------- masks

@pytest.fixture(scope="module")
def mask() -> Image.Image:
    drawn = Image.new("L", (SIDE, SIDE))
    drawn.paste(255, (9, 7, 15, 13))
    return drawn


def changed(found: np.ndarray, picture: Image.Image) -> np.ndarray:
    """Where a picture differs from another, [height, width]."""
    return (np.abs(found - np.asarray(picture)) > 0).any(axis=-1)


@pytest.mark.parametrize("options", [
    {"mask_blur": 0}, {"mask_blur": 2}, {"mask_blur": 0, "only_masked": True, "padding": 3},
    {"mask_blur": 1, "only_masked": True}])
def test_what_is_not_masked_is_the_original(pipe: Pipeline, picture: Image.Image, mask: Image.Image,
                                            options: dict[str, Any]) -> None:
    found = changed(made(pipe, image=picture, mask=mask, **options), picture)
    reach = 3 * options["mask_blur"] + 1
    allowed = np.zeros((SIDE, SIDE), bool)
    allowed[7 - reach:13 + reach, 9 - reach:15 + reach] = True
    assert not found[~allowed].any()
    assert found[8:12, 10:14].mean() > 0.9


def test_a_picture_of_any_size_keeps_it(pipe: Pipeline, picture: Image.Image,
                                        mask: Image.Image) -> None:
    odd, drawn = picture.crop((0, 0, 31, 27)), mask.crop((0, 0, 31, 27))
    found = made(pipe, image=odd, mask=drawn, mask_blur=0)
    assert found.shape == (27, 31, 3)
    assert not changed(found, odd)[np.asarray(drawn) == 0].any()
    smaller = made(pipe, image=odd, mask=drawn, mask_blur=0, width=16, height=16)
    assert smaller.shape == (16, 16, 3)


def test_known_latents_stay_known_with_every_sampler(
        pipe: Pipeline, picture: Image.Image, mask: Image.Image) -> None:
    clean = to_model_space(pipe._submodels, encoded(pipe._submodels, as_pixels(picture)))
    known = largest(np.asarray(mask, np.float32) / 255, 2) == 0
    for sampler in ("euler_a", "heun", "dpm++_2m_sde", "lms", "uni_pc", "lcm", "euler_cfg++"):
        *_, last = pipe.steps("a red apple", image=picture, mask=mask, mask_blur=0, steps=4,
                              sampler=sampler, guidance_scale=1.5)
        np.testing.assert_allclose(last.latents[0][:, known], clean[:, known], atol=2e-2,
                                   err_msg=sampler)
        assert np.abs(last.latents[0][:, ~known] - clean[:, ~known]).mean() > 0.1


def test_an_extended_picture_is_larger_and_holds_the_original(
        pipe: Pipeline, picture: Image.Image) -> None:
    result = pipe("a red apple", image=picture, extend=(8, 0, 0, 12), mask_blur=1, **OPTIONS)
    assert result.images[0].size == (SIDE + 8, SIDE + 12)
    assert result.parameters.change.strength == 1
    found = np.asarray(result.images[0], float)[:SIDE, 8:]
    kept = np.zeros((SIDE, SIDE), bool)
    kept[:SIDE - 6, 6:] = True
    assert not changed(found, picture)[kept].any()


def test_what_is_computed_lies_around_the_mask(picture: Image.Image, mask: Image.Image) -> None:
    found = init_image(TINY, PictureOptions(
        "", image=picture, width=16, height=8, mask=mask, mask_blur=0, only_masked=True,
        padding=1))
    left, top, right, bottom = found.box
    assert (right - left, bottom - top) == (16, 8)
    assert left <= 8 and top <= 6 and right >= 16 and bottom >= 14
    assert found.pixels().shape == (3, 8, 16) and found.masked().max() > 0.9


SIDES = st.integers(1, 60)


@given(st.tuples(SIDES, SIDES), st.data(), st.integers(0, 20), st.floats(0.1, 10))
def test_a_box_holds_the_mask_and_lies_in_the_picture(
        size: tuple[int, int], data: st.DataObject, padding: int, ratio: float) -> None:
    left, top = (data.draw(st.integers(0, extent - 1)) for extent in size)
    right, bottom = (data.draw(st.integers(low + 1, extent))
                     for low, extent in zip((left, top), size, strict=True))
    found = around((left, top, right, bottom), padding, ratio, size)
    assert 0 <= found[0] <= left < right <= found[2] <= size[0]
    assert 0 <= found[1] <= top < bottom <= found[3] <= size[1]
    wide, high = found[2] - found[0], found[3] - found[1]
    if wide < size[0] and high < size[1]:
        assert abs(wide - ratio * high) <= max(1, ratio) or abs(high - wide / ratio) <= 1


@pytest.mark.parametrize(("options", "message"), [
    ({"image": None, "mask": "x.png"}, "mask is given, but no image, which it belongs to"),
    ({"mask_blur": 2}, "mask_blur is given, but no mask"),
    ({"only_masked": True}, "only_masked is given, but no mask"),
    ({"mask": Image.new("L", (8, 8))}, "the mask is black everywhere"),
    ({"mask": Image.new("RGBA", (8, 8))}, "the mask is black everywhere"),
    ({"mask": "no-such.png"}, "no-such.png cannot be read as a picture"),
    ({"mask": Image.new("L", (8, 8), 255), "mask_blur": -1}, "mask_blur is -1; expected a whole"),
    ({"mask": Image.new("L", (8, 8), 255), "padding": 3}, "padding is given, but no only_masked"),
    ({"mask": Image.new("L", (8, 8), 255), "width": "wide"}, "width and height are 'wide'"),
    ({"extend": (1, 2)}, "extend is .1, 2.; expected the pixels to add"),
    ({"extend": (0, 0, 0, 0)}, "expected the pixels to add"),
    ({"image_guidance": 2.0}, "image_guidance is for models that edit pictures"),
])
def test_masks_that_cannot_be(pipe: Pipeline, picture: Image.Image, options: dict[str, Any],
                              message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipe.steps("a red apple", **{"image": picture, **options})


def test_a_picture_is_encoded_in_tiles_where_memory_is_short(
        pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = np.mgrid[:160, :120]
    waves = np.stack([np.sin(x / 9), np.cos(y / 7), np.sin((x + y) / 11)]).astype(np.float32)
    models = pipe._submodels
    whole = encoded(models, waves)
    monkeypatch.setattr(encoding, "fitting_side", lambda *_: 48)
    shapes = []
    run = Submodels.run
    monkeypatch.setattr(Submodels, "run", lambda self, part, shape, **inputs: (
        shapes.append(shape), run(self, part, shape, **inputs))[1])
    tiled = encoded(models, waves)
    assert set(shapes) == {(96, 96)} and len(shapes) == 4
    assert any("encoded in tiles of 96 pixels" in text for text in models.said)
    assert np.corrcoef(tiled.ravel(), whole.ravel())[0, 1] > 0.95
    sums = in_tiles(lambda part: part[:, ::2, ::2], waves, 48, 2)
    np.testing.assert_allclose(sums, waves[:, ::2, ::2], atol=1e-6)


@pytest.mark.parametrize(("size", "read", "corner"), [
    ((100, 50), (96, 48), (2, 1)), ((111, 64), (96, 64), (7, 0)), ((64, 64), (64, 64), (0, 0))])
def test_flux2_reads_pictures_without_what_is_no_multiple(
        size: tuple[int, int], read: tuple[int, int], corner: tuple[int, int]) -> None:
    config = replace(tiny.FAMILIES["flux2"], vae=FLUX2_VAE)
    pixels = np.arange(3 * size[0] * size[1], dtype=np.uint32).astype(np.uint8)
    given = Image.fromarray(pixels.reshape(size[1], size[0], 3))
    assert near(size, config) == read
    found = as_read(given, read, config)
    box = (*corner, corner[0] + read[0], corner[1] + read[1])
    np.testing.assert_array_equal(np.asarray(found), np.asarray(given.crop(box)))
    assert init_image(config, PictureOptions("a", image=given), "reference").width == read[0]


def test_flux2_stretches_what_shows_through_as_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would not lie where it is put back."""
    config, seen = replace(tiny.FAMILIES["flux2"], vae=FLUX2_VAE), []
    y, x = np.mgrid[:64, :111]
    given = Image.fromarray(np.stack([x, y, x + y], axis=-1).astype(np.uint8))
    mask = Image.fromarray(np.uint8(255) * (x > 50).astype(np.uint8))
    monkeypatch.setattr(inpainting, "encoded", lambda models, pixels: seen.append(pixels) or pixels)
    monkeypatch.setattr(inpainting, "to_model_space", lambda models, mean: mean)
    source = init_image(config, PictureOptions("a", image=[given] * 2, mask=mask), "reference")
    inpainting.start(SimpleNamespace(checkpoint=SimpleNamespace(config=config)), source)
    first, second = seen
    np.testing.assert_array_equal(first, as_pixels(resized(given, 96, 64)))
    np.testing.assert_array_equal(second, as_pixels(given.crop((7, 0, 103, 64))))


def test_flux2_stretches_pictures_to_another_size_and_tiny_ones() -> None:
    config = replace(tiny.FAMILIES["flux2"], vae=FLUX2_VAE)
    assert as_read(Image.new("RGB", (100, 50)), (32, 32), config).size == (32, 32)
    white = Image.new("RGB", (7, 40), "white")
    assert near(white.size, config) == (16, 32)
    assert np.asarray(as_read(white, (16, 32), config)).min() == 255


def test_models_of_other_families_stretch_what_they_read() -> None:
    config = replace(tiny.EDITS["qwen-image-edit"], vae=FLUX2_VAE)
    size = near((100, 50), config)
    given = Image.fromarray(np.arange(15000, dtype=np.uint32).astype(np.uint8).reshape(50, 100, 3))
    np.testing.assert_array_equal(np.asarray(as_read(given, size, config)),
                                  np.asarray(resized(given, *size)))
