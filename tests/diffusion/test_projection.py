"""Latents as colours: near what decoders make of them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from smalti import Pipeline
from smalti.diffusion.projection import Projection, published
from smalti.families import families


def test_the_shipped_model_is_shown_nearly_as_its_decoder_shows_it() -> None:
    *_, step = Pipeline.load(threads=1).steps("a red apple", steps=4)
    projection = published(Pipeline.load(threads=1).config.vae)
    assert projection is not None and step.result is not None
    shown = np.asarray(projection(step.latents[0]), float) / 127.5 - 1
    small = step.result.images[0].resize((16, 16), Image.Resampling.BOX)
    wanted = np.asarray(small, float) / 127.5 - 1
    assert np.sqrt(((shown - wanted) ** 2).mean()) < 0.25 < wanted.std()


@pytest.mark.parametrize("family", sorted(families()))
def test_every_family_has_a_projection_of_its_channels(family: str) -> None:
    vae = families()[family].vae
    projection = published(vae)
    assert projection is not None
    assert projection.factors.shape == (vae.z_channels, 3) and projection.offset.shape == (3,)


def test_what_a_decoder_does_is_found_in_one_picture() -> None:
    random = np.random.default_rng(0)
    known = Projection(random.normal(0, 0.2, (4, 3)).astype(np.float32),
                       np.array([0.1, -0.1, 0], np.float32))
    latent = random.normal(0, 1, (4, 12, 16)).astype(np.float32)
    picture = known(latent).resize((128, 96), Image.Resampling.NEAREST)
    found = Projection.fitted(latent, picture)
    np.testing.assert_allclose(found.factors, known.factors, atol=0.02)
    np.testing.assert_allclose(found.offset, known.offset, atol=0.02)


def test_numbers_that_are_none_are_shown_gray() -> None:
    projection = Projection(np.ones((4, 3), np.float32), np.zeros(3, np.float32))
    assert projection(np.full((4, 1, 1), np.nan, np.float32)).getpixel((0, 0)) == (128, 128, 128)
