"""Models that were distilled to few steps and are told of guidance: latent consistency models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.checkpoint import inspect
from smalti.checkpoint.adapters import AdapterFile
from smalti.diffusion.option_text import written as written_text
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.random import NoiseSource
from smalti.errors import InputError

SIDE, STEPS = 32, 3
ERROR_MAX = 1e-4


def told(family: str) -> Any:
    config = tiny.FAMILIES[family]
    return replace(config, denoiser=replace(config.denoiser, guidance=True))


def written(folder: Path, family: str, name: str = "model") -> Path:
    config = told(family)
    return tiny.write_whole(folder / f"{name}.safetensors", config)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_defaults_of_a_model_that_is_told_of_guidance(tmp_path: Path, family: str) -> None:
    pipe = Pipeline.load(written(tmp_path, family), threads=1)
    job = pipe.job(PictureOptions("a red apple"))
    asked = job.asked
    assert (asked.steps, asked.guidance_scale, asked.distilled_guidance, asked.sampler,
            asked.noise) == (4, 1.0, 8.5, "lcm", "lcm")
    assert job.notes == ["defaults are those of lcm models"]
    with pytest.raises(InputError, match="distilled_guidance is -1"):
        PictureOptions("a red apple", distilled_guidance=-1)


@pytest.mark.sweep
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_what_it_is_told_steers(tmp_path: Path, family: str) -> None:
    pipe = Pipeline.load(written(tmp_path, family), threads=1)
    small = {"width": SIDE, "height": SIDE, "steps": 1}
    result = pipe("a red apple", **small)
    assert "Distilled CFG Scale: 8.5" in result.texts[0]
    assert result.notes == ("defaults are those of lcm models",)
    other = pipe("a red apple", distilled_guidance=3.0, **small).images[0]
    assert np.abs(np.asarray(other, float) - np.asarray(result.images[0], float)).mean() > 0.1


def test_what_is_said_of_it(tmp_path: Path) -> None:
    text = str(inspect(written(tmp_path, "sd1", "dream_8steps")))
    assert "defaults are those of lcm models, as its layers show" in text
    assert "8 steps, guidance 1, lcm, lcm" in text and "loads       yes" in text


def test_an_adapter_changes_the_layer_that_is_told_of_guidance(tmp_path: Path) -> None:
    """In the names of the original, and in those of diffusers."""
    config = told("sd1")
    shapes = {name: value.shape for name, value in tiny.random_weights(config).items()}
    layer = "model.diffusion_model.time_embed.cond_proj.weight"
    rows, columns = shapes[layer]
    for name in ("lora_unet_time_embed_cond_proj", "lora_unet_time_embedding_cond_proj"):
        path = tiny.write(tmp_path / "a.safetensors", {
            f"{name}.lora_up.weight": np.ones((rows, 1), np.float32),
            f"{name}.lora_down.weight": np.ones((1, columns), np.float32)})
        assert list(AdapterFile.open(path).fit(shapes, "the model").weights) == [layer]


def test_eta_is_for_samplers_that_put_noise_back(tmp_path: Path) -> None:
    pipe = Pipeline.load(written(tmp_path, "sd1"), threads=1)
    for sampler, text in (("tcd", "Eta: 0.5"), ("euler_a", "Eta: 0.5")):
        asked = pipe.job(PictureOptions("a", sampler=sampler, eta=0.5)).asked
        assert text in str(written_text(asked, 0))
    assert "Eta" not in str(written_text(pipe.job(PictureOptions("a", sampler="tcd")).asked, 0))
    with pytest.raises(InputError, match="the sampler euler has none; .* euler_a, dpm2_a, .*tcd"):
        pipe.job(PictureOptions("a", sampler="euler", eta=0.5))
    with pytest.raises(InputError, match="eta is 2"):
        PictureOptions("a", eta=2)


@pytest.mark.peers
@pytest.mark.parametrize("guidance", [8.5, 2.0])
def test_a_picture_is_that_of_diffusers(tmp_path: Path, guidance: float) -> None:
    import diffusers
    import diffusers_families as theirs
    import torch

    base = theirs.pipeline("sd1")
    unet = diffusers.UNet2DConditionModel.from_config(
        {**base.unet.config, "time_cond_proj_dim": 256}).eval()
    scheduler = diffusers.LCMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
        set_alpha_to_one=True, original_inference_steps=50)
    pipe = diffusers.LatentConsistencyModelPipeline(
        vae=base.vae, text_encoder=base.text_encoder, tokenizer=base.tokenizer, unet=unet,
        scheduler=scheduler, safety_checker=None, feature_extractor=None,
        requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    drawn = NoiseSource("cpu", (7,), (4, SIDE // 2, SIDE // 2))
    job = ours.job(PictureOptions("a red apple", width=SIDE, height=SIDE, steps=STEPS,
                                  distilled_guidance=guidance, seed=7))
    *_, last = job.steps()
    highest = job._sigmas(job.asked)[0]
    # diffusers begins with noise of size one after scaling, samplers here with the highest level
    start = torch.from_numpy(drawn.draw()) * highest / (1 + highest**2) ** 0.5
    module = "diffusers.schedulers.scheduling_lcm.randn_tensor"
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(module, lambda *args, **kinds: torch.from_numpy(drawn.draw()))
        expected = pipe("a red apple", height=SIDE, width=SIDE, num_inference_steps=STEPS,
                        guidance_scale=guidance, latents=start, output_type="latent").images
        image = pipe.vae.decode(expected / pipe.vae.config.scaling_factor).sample[0]
    assert relative_error(last.latents, expected.numpy()) <= ERROR_MAX
    pixels = ((image / 2 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    picture = np.asarray(last.result.images[0], np.float64)
    assert (np.abs(picture - pixels) <= 1).mean() >= 0.999 and picture.std() > 1
