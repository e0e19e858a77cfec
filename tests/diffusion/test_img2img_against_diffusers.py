"""Pictures that are changed, against the pipelines of diffusers: the same weights and noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.hires import enlarged
from smalti.models import FLUX_DEV

pytestmark = pytest.mark.peers

SIDE, STEPS, STRENGTH = 32, 4, 0.75
ERROR_MAX = 1e-4
TIMES = [1.0, 0.75, 0.5, 0.25]


def picture() -> Image.Image:
    y, x = np.mgrid[:SIDE, :SIDE] * 8
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def mask() -> Image.Image:
    """Whole latent pixels, which are downsampled the same way everywhere."""
    drawn = Image.new("L", (SIDE, SIDE))
    drawn.paste(255, (8, 4, 20, 26))
    return drawn


@pytest.fixture(autouse=True)
def means(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers' autoencoders give means, without a draw."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution as Drawn

    monkeypatch.setattr(Drawn, "sample", lambda self, generator=None: self.mean)


def expected(base: Any, task: Any, **options: Any) -> np.ndarray:
    """Latents [1, z, h, w] of a pipeline of diffusers with the parts of another."""
    import torch

    pipe = task(**{name: part for name, part in base.components.items()
                   if name in task.__init__.__code__.co_varnames})
    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        found = pipe(prompt="a red apple", num_inference_steps=STEPS, output_type="latent",
                     generator=torch.Generator().manual_seed(7), **options).images
    if found.ndim == 3:
        found = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor)
    return found.numpy()


def ours(base: Any, folder: Path, **options: Any) -> Any:
    """Our last step."""
    pipe = Pipeline.load(theirs.save(base, folder), threads=1)
    *_, last = pipe.steps("a red apple", steps=STEPS, seed=7, sampler="euler", **options)
    return last


def with_channels(monkeypatch: pytest.MonkeyPatch, family: str, channels: int) -> Any:
    """A pipeline of a family whose denoiser reads other channels."""
    config = tiny.FAMILIES[family]
    monkeypatch.setitem(tiny.FAMILIES, family, replace(
        config, denoiser=replace(config.denoiser, in_channels=channels)))
    return theirs.pipeline(family)


@pytest.mark.parametrize("family", ["sd1", "sdxl", "sd3"])
def test_a_changed_picture_is_that_of_diffusers(tmp_path: Path, family: str) -> None:
    import diffusers

    task = {"sd1": diffusers.StableDiffusionImg2ImgPipeline,
            "sdxl": diffusers.StableDiffusionXLImg2ImgPipeline,
            "sd3": diffusers.StableDiffusion3Img2ImgPipeline}[family]
    base, guidance = theirs.pipeline(family), 4.5
    options: dict[str, Any] = {"negative_prompt": "blurry"}
    more = {}
    if family == "sd3":
        options |= {"height": SIDE, "width": SIDE, "max_sequence_length": 77, "sigmas": TIMES}
        more["noise"] = ",".join(f"{3 * t / (1 + 2 * t):.9f}" for t in [*TIMES, 0.0])
    wanted = expected(base, task, image=picture(), strength=STRENGTH, guidance_scale=guidance,
                      **options)
    last = ours(base, tmp_path, negative_prompt="blurry", image=picture(), strength=STRENGTH,
                guidance_scale=guidance, **more)
    assert last.total == 3
    assert relative_error(last.latents, wanted) <= ERROR_MAX


@pytest.mark.parametrize("channels", [4, 9])
def test_a_part_made_anew_is_that_of_diffusers(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int) -> None:
    """With the latents that are known put back after each step, and with a UNet for inpainting."""
    import diffusers

    base, strength = with_channels(monkeypatch, "sd1", channels), STRENGTH if channels == 4 else 1.0
    wanted = expected(base, diffusers.StableDiffusionInpaintPipeline, image=picture(),
                      mask_image=mask(), strength=strength, guidance_scale=4.5, height=SIDE,
                      width=SIDE)
    last = ours(base, tmp_path, image=picture(), mask=mask(), mask_blur=0, guidance_scale=4.5,
                strength=strength if channels == 4 else None)
    assert relative_error(last.latents, wanted) <= ERROR_MAX


def test_an_edited_picture_is_that_of_diffusers(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    base = with_channels(monkeypatch, "sd1", 8)
    wanted = expected(base, diffusers.StableDiffusionInstructPix2PixPipeline, image=picture(),
                      guidance_scale=4.5, image_guidance_scale=1.3)
    last = ours(base, tmp_path, image=picture(), guidance_scale=4.5, image_guidance=1.3)
    assert relative_error(last.latents, wanted) <= ERROR_MAX
    assert "Image CFG scale: 1.3" in last.result.texts[0]


@pytest.mark.parametrize(("name", "channels"), [("fill", 16 + 16 + 4), ("control", 32)])
def test_what_flux_makes_of_a_picture_is_that_of_diffusers(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, channels: int) -> None:
    import diffusers

    base = with_channels(monkeypatch, "flux", channels)
    if name == "fill":
        task, options = diffusers.FluxFillPipeline, {"image": picture(), "mask_image": mask()}
        more = {"mask": mask(), "mask_blur": 0}
    else:
        task, options = diffusers.FluxControlPipeline, {"control_image": picture()}
        more = {}
    wanted = expected(base, task, guidance_scale=30.0, height=SIDE, width=SIDE, **options)
    last = ours(base, tmp_path, image=picture(), distilled_guidance=30.0, **more)
    assert relative_error(last.latents, wanted) <= ERROR_MAX


@pytest.mark.parametrize("given", [True, False])
def test_what_kontext_makes_of_a_picture_is_that_of_diffusers(tmp_path: Path, given: bool) -> None:
    """Without a picture it makes one from the prompt alone."""
    import diffusers

    base = theirs.pipeline("flux")
    options = {"image": picture()} if given else {}
    wanted = expected(base, diffusers.FluxKontextPipeline, guidance_scale=2.5, height=SIDE,
                      width=SIDE, max_area=SIDE**2, _auto_resize=False, **options)
    last = ours(base, tmp_path / "flux-kontext", width=SIDE, height=SIDE, **options)
    assert last.result.parameters.distilled_guidance == 2.5
    assert relative_error(last.latents, wanted) <= ERROR_MAX


def test_what_flux2_makes_of_a_picture_is_that_of_diffusers(tmp_path: Path) -> None:
    """It is read as tokens; with a strength the walk starts from it, too."""
    import diffusers

    base, folder = theirs.pipeline("flux2"), tmp_path / "klein"
    large = picture().resize((64, 64))
    wanted = expected(base, diffusers.Flux2KleinPipeline, guidance_scale=1.0, image=large)
    last = ours(base, folder, image=large, width=64, height=64)
    assert last.result.parameters.strength == 1
    assert relative_error(last.latents, normalised(base, wanted)) <= ERROR_MAX
    started = expected(base, diffusers.Flux2KleinInpaintPipeline, guidance_scale=1.0, image=large,
                       mask_image=Image.new("L", large.size, 255), strength=STRENGTH,
                       height=64, width=64)
    last = ours(base, folder, image=large, strength=STRENGTH, width=64, height=64)
    assert last.total == 3
    assert relative_error(last.latents, normalised(base, started)) <= ERROR_MAX


def normalised(base: Any, latents: np.ndarray) -> np.ndarray:
    """The latents that FLUX.2's transformer works on, from those of the convolutions."""
    import torch

    return theirs.normalised(base, torch.from_numpy(latents)).numpy()


def test_sizes_of_kontext_are_those_of_diffusers() -> None:
    from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

    denoiser = replace(FLUX_DEV, reference=True)
    for width, height in [(3000, 2000), (100, 900), (640, 480), (512, 512), (1000, 1010)]:
        wanted = min(PREFERRED_KONTEXT_RESOLUTIONS,
                     key=lambda size: abs(width / height - size[0] / size[1]))
        assert denoiser.sides(width, height) == wanted


def test_latents_are_enlarged_as_torch_does() -> None:
    import torch

    latents = np.random.default_rng(0).standard_normal((2, 4, 9, 7)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(torch.from_numpy(latents), size=(20, 14),
                                             mode="bilinear").numpy()
    np.testing.assert_allclose(enlarged(latents, 20, 14), wanted, atol=1e-5)
