"""Latents as colours: near what decoders make of them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from smalti import Pipeline
from smalti.diffusion.projection import Projection, published
from smalti.families import families


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.load(threads=1)


@pytest.mark.parametrize("prompt", ["a red apple", "a green frog", "a black cat"])
def test_the_shipped_model_is_shown_nearly_as_its_decoder_shows_it(
        pipe: Pipeline, prompt: str) -> None:
    *_, step = pipe.steps(prompt, steps=4)
    projection = published(pipe.config.vae)
    assert projection is not None and step.result is not None
    latent, picture = step.latents[0], step.result.images[0]
    small = picture.resize((16, 16), Image.Resampling.BOX)
    wanted, shown, best = (np.asarray(each, float) / 127.5 - 1 for each in (
        small, projection(latent), Projection.fitted(latent, picture)(latent)))
    error = np.abs(shown - wanted).mean()
    assert error < 0.15 and error < np.abs(best - wanted).mean() + 0.08


UNPUBLISHED = ("anima", "ernie-image", "flux2", "flux2-dev", "flux3", "krea2", "qwen-image",
               "qwen-image21", "qwen-image-edit", "qwen-image-edit-2509", "qwen-image-edit-2511")
"""Families for which none is taken over; a picture that is decoded gives one."""


@pytest.mark.parametrize("family", sorted(set(families()) - set(UNPUBLISHED)))
def test_families_have_a_projection_of_their_channels(family: str) -> None:
    vae = families()[family].vae
    projection = published(vae)
    assert projection is not None
    assert projection.factors.shape == (vae.z_channels, 3) and projection.offset.shape == (3,)


@pytest.mark.parametrize("family", UNPUBLISHED)
def test_other_families_are_not_shown_by_one_of_other_latents(family: str) -> None:
    assert published(families()[family].vae) is None


def test_what_a_decoder_does_is_found_in_one_picture() -> None:
    random = np.random.default_rng(0)
    known = Projection(random.normal(0, 0.2, (4, 3)).astype(np.float32),
                       np.array([0.1, -0.1, 0], np.float32))
    latent = random.normal(0, 1, (4, 12, 16)).astype(np.float32)
    picture = known(latent).resize((128, 96), Image.Resampling.NEAREST)
    found = Projection.fitted(latent, picture)
    np.testing.assert_allclose(found.factors, known.factors, atol=0.02)
    np.testing.assert_allclose(found.offset, known.offset, atol=0.02)


def test_what_is_transparent_is_shown_white() -> None:
    latent = np.ones((1, 2, 2), np.float32)
    found = Projection.fitted(latent, Image.new("RGBA", (8, 8), (0, 0, 0, 0)))
    assert found(latent).getpixel((0, 0)) == (255, 255, 255)


def test_numbers_that_are_none_are_shown_gray() -> None:
    projection = Projection(np.ones((4, 3), np.float32), np.zeros(3, np.float32))
    assert projection(np.full((4, 1, 1), np.nan, np.float32)).getpixel((0, 0)) == (128, 128, 128)
