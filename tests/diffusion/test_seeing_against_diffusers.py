"""Pictures that Qwen-Image-Edit and FLUX.2 make of others, against the pipelines of diffusers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.images import as_pixels
from smalti.diffusion.init_image import as_read, near
from smalti.diffusion.random import NoiseSource
from smalti.families import ModelFamily, families, registered
from smalti.models.config import FLUX2_VAE

pytestmark = pytest.mark.peers

STEPS, ERROR_MAX = 3, 1e-4
SEEN, READ, BOTH = 128 * 128, 32 * 32, 96 * 96
"""Pixels of pictures that the text encoder and the denoiser read here, and that both read of the
first Edit, instead of up to a megapixel."""
PROMPT, NEGATIVE = "let it rain, and put on a hat", "blurry"


def picture(width: int, height: int, turn: int = 0) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    colours = np.stack([255 * x // width, 255 * y // height, (x + y) * 3 % 256], axis=-1)
    return Image.fromarray(np.roll(colours, turn, axis=2).astype(np.uint8))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures are read in few pixels, on both sides."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as edit
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

    sides, of_plus = edit.calculate_dimensions, plus.calculate_dimensions
    monkeypatch.setattr(edit, "calculate_dimensions", lambda area, ratio: sides(BOTH, ratio))
    monkeypatch.setattr(plus, "CONDITION_IMAGE_SIZE", SEEN)
    monkeypatch.setattr(plus, "calculate_dimensions",
                        lambda area, ratio: of_plus(area if area == SEEN else READ, ratio))
    for name, config in tiny.EDITS.items():
        monkeypatch.setitem(tiny.FAMILIES, name, config)
    yield


def edits(family: str, monkeypatch: pytest.MonkeyPatch) -> ModelFamily:
    """The record of the family that a folder is of, which reads pictures of few pixels: names of
    folders tell 2511 no more than their configurations do."""
    first = family == "qwen-image-edit"
    monkeypatch.setattr("smalti.models.transformer_config.READ_AREA", BOTH if first else READ)
    record = families()[family if first else "qwen-image-edit-2509"]
    (text,) = record.texts
    return replace(record, texts=(replace(text, seen=replace(
        text.seen, area=BOTH if first else SEEN)),))


CASES = {  # family, sizes of pictures, size of what is made
    "edit": ("qwen-image-edit", [(32, 32)], None),
    "edit, of another shape": ("qwen-image-edit", [(150, 70)], None),
    "edit, in another size": ("qwen-image-edit", [(64, 64)], (48, 32)),
    "2509": ("qwen-image-edit-2509", [(90, 40)], None),
    "2509, of three": ("qwen-image-edit-2509", [(32, 32), (90, 40), (30, 80)], (32, 32)),
    "2511": ("qwen-image-edit-2511", [(32, 32)], None),
    "2511, of two": ("qwen-image-edit-2511", [(50, 50), (60, 30)], (40, 48))}


@pytest.mark.parametrize("case", CASES)
def test_a_changed_picture_is_that_of_diffusers(tmp_path: Path, case: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    family, shapes, size = CASES[case]
    pipe = theirs.pipeline(family)
    pipe.set_progress_bar_config(disable=True)
    pictures = [picture(*shape, turn) for turn, shape in enumerate(shapes)]
    given = pictures if len(pictures) > 1 else pictures[0]
    made = {} if size is None else dict(zip(("width", "height"), size, strict=True))
    record = edits(family, monkeypatch)
    with registered(record):
        ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
        assert ours.config.family == record.name
        assert ours.config.denoiser.clean == family.endswith("2511")
        *_, last = ours.steps(PROMPT, negative_prompt=NEGATIVE, image=given, steps=STEPS,
                              guidance_scale=4.0, seed=7, sampler="euler", **made)
    image = last.result.images[0]
    latents = NoiseSource("cpu", (7,), (16, image.height // 2, image.width // 2)).draw()
    start = pipe._pack_latents(torch.from_numpy(latents), *latents.shape)
    with torch.no_grad():
        found = pipe(prompt=PROMPT, negative_prompt=NEGATIVE, image=given, true_cfg_scale=4.0,
                     num_inference_steps=STEPS, latents=start, output_type="latent", **made).images
    found = pipe._unpack_latents(found, image.height, image.width, pipe.vae_scale_factor)
    expected = found.numpy()[:, :, 0]
    assert relative_error(last.latents, expected) <= ERROR_MAX
    near = np.abs(np.asarray(image, np.float64) - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and np.asarray(image).std() > 1


@pytest.mark.parametrize("size", [(96, 64), (100, 70), (65, 95), (1400, 1100), (1030, 1041)])
def test_flux2_cuts_a_picture_as_diffusers_does(size: tuple[int, int]) -> None:
    """A larger one is made smaller before, and neither is stretched."""
    from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor

    config, theirs_of, given = tiny.FAMILIES["flux2"], Flux2ImageProcessor(), picture(*size)
    shown = theirs_of._resize_if_exceeds_area(given)
    width, height = (extent // 16 * 16 for extent in shown.size)
    expected = theirs_of.preprocess(shown, height=height, width=width, resize_mode="crop")
    near_to = near(size, replace(config, vae=FLUX2_VAE))
    assert near_to == (width, height)
    found = as_read(given, near_to, replace(config, vae=FLUX2_VAE))
    np.testing.assert_allclose(as_pixels(found), expected[0].numpy(), atol=1e-6)


def test_flux2_reads_several_pictures_as_diffusers_does(tmp_path: Path) -> None:
    """Each in a size of its own, of which what is no multiple is cut off."""
    import torch

    pipe = theirs.pipeline("flux2")
    pipe.set_progress_bar_config(disable=True)
    pictures = [picture(101, 70), picture(64, 80, 1), picture(67, 64, 2)]
    with torch.no_grad():
        wanted = pipe(prompt=PROMPT, image=pictures, num_inference_steps=STEPS, guidance_scale=1.0,
                      width=64, height=64, output_type="latent",
                      generator=torch.Generator().manual_seed(7)).images
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "klein"), threads=1)
    *_, last = ours.steps(PROMPT, image=pictures, steps=STEPS, seed=7, sampler="euler", width=64,
                          height=64)
    assert relative_error(last.latents, theirs.normalised(pipe, wanted).numpy()) <= ERROR_MAX
