"""Whole pictures of tiny models of every family against the pipelines of diffusers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from tiny_tekken import TREE

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.checkpoint import load
from smalti.diffusion.random import NoiseSource

pytestmark = pytest.mark.peers

SIDE, STEPS = 32, 3
ERROR_MAX = 1e-4
MEAN, STD = [-1.6574, 1.886, -1.383, 2.5155], [8.4927, 5.9022, 6.5498, 5.2299]
"""Of the latents of Playground 2.5."""
PROMPT, NEGATIVE = "a red apple, ripe", "blurry"
SAVED = {  # how folders are written
    "sd1": {"variant": "fp16"}, "sd2": {}, "sdxl": {"max_shard_size": "2MB"},
    "sdxl-refiner": {}, "sd3": {"max_shard_size": "2MB"},
    "flux": {"max_shard_size": "2MB"}, "chroma": {}, "z-image": {}, "flux2": {}, "anima": {},
    "krea2": {}, "qwen-image": {}}
CALLS: dict[str, dict[str, Any]] = {
    "sd3": {"max_sequence_length": 77, "guidance_scale": 4.5},
    "flux": {"guidance_scale": 3.5},
    "chroma": {"guidance_scale": 4.0},
    "flux2": {"guidance_scale": 4.0},
    "z-image": {"guidance_scale": 3.0},  # what is added, and so one less than elsewhere
    "krea2": {"guidance_scale": 3.0},
    "qwen-image": {"true_cfg_scale": 4.0, "guidance_scale": None}}
PACKED = ("flux", "chroma", "qwen-image", "krea2")
"""Families whose pipelines work on tokens."""


def called(pipe: Any, family: str, latents: np.ndarray, sigmas: list[float] | None) -> np.ndarray:
    """The latents at the end of the walk, [1, channels, height, width]."""
    import torch

    start = torch.from_numpy(latents)
    if family == "anima":
        pipe.guider.guidance_scale = 4.0
        with torch.no_grad():
            return pipe(prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS,
                        height=SIDE, width=SIDE, latents=start[:, :, None],
                        output="latents").numpy()[:, :, 0]
    if family in PACKED:
        start = pipe._pack_latents(start, *start.shape)
    options = {"guidance_scale": 7.0, **CALLS.get(family, {})}
    if family == "flux2":
        options["negative_prompt_embeds"], _ = pipe.encode_prompt(NEGATIVE)
    elif family != "flux":
        options["negative_prompt"] = NEGATIVE
    if family == "chroma":
        mask_chroma(pipe.transformer)
    if sigmas is not None:
        options["sigmas"] = sigmas
    if family == "sdxl-refiner":  # goes on with latents, here from their very beginning
        pipe.scheduler.set_timesteps(STEPS)
        options |= {"image": start * pipe.scheduler.init_noise_sigma, "denoising_start": 1e-9}
    else:
        options |= {"height": SIDE, "width": SIDE, "latents": start}
    with torch.no_grad():
        found = pipe(prompt=PROMPT, num_inference_steps=STEPS, output_type="latent",
                     **options).images
    if family in PACKED:
        factor = [] if family == "krea2" else [pipe.vae_scale_factor]
        found = pipe._unpack_latents(found, SIDE, SIDE, *factor)
    if family == "flux2":
        found = theirs.normalised(pipe, found)
    return found.numpy().reshape(1, -1, *found.shape[-2:])


def mask_chroma(transformer: Any) -> None:
    """Of diffusers 0.42 the pipeline gives the mask as floats, which attention adds to the scores;
    the model was trained with tokens that are not seen at all."""
    forward = transformer.forward
    transformer.forward = lambda *inputs, attention_mask, **more: forward(
        *inputs, attention_mask=attention_mask.bool(), **more)


@pytest.mark.parametrize(("family", "prediction"), [
    ("sd1", "epsilon"), ("sd2", "epsilon"), ("sd2", "v_prediction"), ("sdxl", "epsilon"),
    ("sdxl-refiner", "epsilon"), ("sd3", "flow"), ("flux", "flow"), ("chroma", "flow"),
    ("z-image", "flow"), ("flux2", "flow"), ("anima", "flow"), ("qwen-image", "flow"),
    ("krea2", "flow")])
def test_a_picture_is_that_of_diffusers(tmp_path: Path, family: str, prediction: str) -> None:
    pipe = theirs.pipeline(family, prediction)
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model", **SAVED[family]), threads=1)
    config = ours.config
    assert (config.family, config.prediction) == (family, prediction)
    side = SIDE // config.vae.downscale
    latents = NoiseSource("cpu", (7,), (config.vae.z_channels, side, side)).draw()
    expected = called(pipe, family, latents,
                      [1.0, 0.6, 0.3] if family == "sd3" else None)
    options: dict[str, Any] = {}
    if family == "sd3":
        options["noise"] = ",".join(f"{3 * t / (1 + 2 * t):.9f}" for t in (1.0, 0.6, 0.3, 0.0))
    guidance = {"sd3": 4.5, "flux": 1.0, "chroma": 4.0, "z-image": 4.0,
                "flux2": 4.0, "anima": 4.0, "qwen-image": 4.0, "krea2": 4.0}.get(family, 7.0)
    *_, last = ours.steps(PROMPT, negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS,
                          guidance_scale=guidance, seed=7, sampler="euler", **options)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1


@pytest.mark.parametrize(("scheduler", "prediction", "sampler"), [
    ("EDMDPMSolverMultistepScheduler", "edm", "dpm++_2m"), ("EDMEulerScheduler", "edm", "euler"),
    ("EDMEulerScheduler", "edm_v", "euler")])
def test_a_picture_of_edm_is_that_of_diffusers(tmp_path: Path, scheduler: str, prediction: str,
                                               sampler: str) -> None:
    """Playground 2.5, whose latents have statistics of their own, and CosXL."""
    import diffusers

    pipe = theirs.pipeline("sdxl")
    pipe.set_progress_bar_config(disable=True)
    kind = getattr(diffusers, scheduler)
    if prediction == "edm":
        pipe.scheduler = kind()
        pipe.vae.register_to_config(latents_mean=MEAN, latents_std=STD, scaling_factor=0.5)
    else:
        pipe.scheduler = kind(prediction_type="v_prediction", sigma_data=1.0, sigma_max=120.0)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    assert ours.config.prediction == prediction
    drawn = NoiseSource("cpu", (7,), (4, SIDE // 2, SIDE // 2)).draw()
    highest = ours.config.sigma_max  # diffusers begins with a variance of one more than its square
    expected = called(pipe, "sdxl", drawn * np.float32(highest / (highest**2 + 1) ** 0.5), None)
    *_, last = ours.steps(PROMPT, negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS,
                          guidance_scale=7.0, seed=7, sampler=sampler, noise="karras")
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    statistics = (np.array(each)[:, None, None] for each in (
        (MEAN, STD) if prediction == "edm" else ([0.0] * 4, [1.0] * 4)))
    shown = _shown(pipe, expected, *statistics)
    assert (np.abs(picture - shown) <= 1).mean() >= 0.999 and picture.std() > 1


def _shown(pipe: Any, latents: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Pixels of latents whose channels have means and deviations."""
    scaled = latents * std + mean * pipe.vae.config.scaling_factor
    return theirs.decoded(pipe, scaled.astype(np.float32))


@pytest.mark.parametrize("family", ["sd1", "sdxl", "sd3", "flux", "chroma", "z-image", "flux2"])
def test_parts_of_a_folder_as_files_of_their_own(tmp_path: Path, family: str) -> None:
    """A denoiser in diffusers' names, and text encoders and autoencoder as folders or files."""
    folder = theirs.save(theirs.pipeline(family), tmp_path / "model")
    whole = load(folder)
    (denoiser,) = (folder / ("unet" if family in ("sd1", "sdxl") else "transformer")).glob("*.s*")
    texts = sorted(folder.glob("text_encoder*"))
    found = load(denoiser, texts, folder / "vae" / "diffusion_pytorch_model.safetensors")
    assert (found.config.family, found.config.texts) == (family, whole.config.texts)
    assert found.names() == whole.names()
    for name in whole.names():
        np.testing.assert_array_equal(found.floats(name), whole.floats(name), name)


@pytest.mark.parametrize("added", [0.0, 3.0])
def test_a_long_prompt_of_z_image_is_read_as_diffusers_reads_it(tmp_path: Path,
                                                               added: float) -> None:
    """It takes 96 tokens, the negative one 32: in a batch each says where its image stands. Turbo
    models are asked without guidance."""
    import torch

    pipe = theirs.pipeline("z-image")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    prompt, size = "a red apple, ripe, " * 14, {"width": 40, "height": SIDE}
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, 20)).draw()
    with torch.no_grad():
        expected = pipe([prompt], negative_prompt=[NEGATIVE], num_inference_steps=STEPS, **size,
                        latents=torch.from_numpy(latents), guidance_scale=added,
                        output_type="latent").images.numpy()
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          guidance_scale=1 + added, **size)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    assert (np.abs(picture - theirs.decoded(pipe, expected)) <= 1).mean() >= 0.999


def test_a_prompt_of_krea2_that_is_cut_off_ends_as_others_do(tmp_path: Path) -> None:
    """What the template has behind it is read, and the negative one is shorter by 500 tokens."""
    import torch

    pipe = theirs.pipeline("krea2")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    prompt = "a red apple, ripe, " * 120
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    start = pipe._pack_latents(torch.from_numpy(latents), *latents.shape)
    found = pipe(prompt, negative_prompt=NEGATIVE, num_inference_steps=STEPS, width=SIDE,
                 height=SIDE, latents=start, guidance_scale=3.0, output_type="latent").images
    expected = pipe._unpack_latents(found, SIDE, SIDE)[:, :, 0].numpy()
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          guidance_scale=4.0, width=SIDE, height=SIDE)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    assert any("is longer than the" in line for line in last.result.warnings)


def test_a_picture_of_flux2_dev_is_that_of_diffusers(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer is brought along; prompts are filled up in front, by what sees nothing."""
    import torch

    monkeypatch.setitem(tiny.FAMILIES, "flux2-dev", tiny.FLUX2_DEV)
    pipe = theirs.pipeline("flux2-dev")
    pipe.set_progress_bar_config(disable=True)
    folder = theirs.save(pipe, tmp_path / "model")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(TREE))
    ours = Pipeline.load(folder, threads=1)
    assert ours.config.family == "flux2-dev" and ours.config.default_steps == 28
    latents = NoiseSource("cpu", (7,), (128, 8, 8)).draw()
    with torch.no_grad():
        found = pipe(prompt=PROMPT, num_inference_steps=STEPS, output_type="latent", height=SIDE,
                     width=SIDE, guidance_scale=4.0, latents=torch.from_numpy(latents)).images
    expected = found.numpy().transpose(0, 2, 1).reshape(latents.shape)  # of tokens
    *_, last = ours.steps(PROMPT, steps=STEPS, width=SIDE, height=SIDE, seed=7, sampler="euler")
    assert last.result.parameters.distilled_guidance == 4
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    assert (np.abs(picture - theirs.decoded(pipe, expected)) <= 1).mean() >= 0.999


@pytest.mark.parametrize("prompt", [
    PROMPT, "a \"sign\" that's 'red' and says “苹果”", "a red apple, ripe, " * 110])
def test_a_picture_of_longcat_image_is_that_of_diffusers(tmp_path: Path, prompt: str,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in quotes is read letter by letter; guidance is only taken back."""
    import torch

    monkeypatch.setitem(tiny.FAMILIES, "longcat-image", tiny.LONGCAT_IMAGE)
    pipe = theirs.pipeline("longcat-image")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    assert (ours.config.family, ours.config.flow_shift) == ("longcat-image", None)
    latents = NoiseSource("cpu", (7,), (16, 16, 20)).draw()
    start = pipe._pack_latents(torch.from_numpy(latents), *latents.shape)
    found = pipe(prompt, negative_prompt=NEGATIVE, num_inference_steps=STEPS, width=40,
                 height=SIDE, latents=start, output_type="latent",
                 enable_prompt_rewrite=False).images
    expected = pipe._unpack_latents(found, SIDE, 40, pipe.vae_scale_factor).numpy()
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          width=40, height=SIDE)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1


@pytest.mark.parametrize("prompt", [PROMPT, "a red apple, ripe, " * 60])
def test_a_picture_of_ovis_image_is_that_of_diffusers(tmp_path: Path, prompt: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills up a prompt is seen, as zeros; one may be too long."""
    import torch

    monkeypatch.setitem(tiny.FAMILIES, "ovis-image", tiny.OVIS_IMAGE)
    pipe = theirs.pipeline("ovis-image")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    assert (ours.config.family, ours.config.flow_shift) == ("ovis-image", None)
    latents = NoiseSource("cpu", (7,), (16, 16, 20)).draw()
    with torch.no_grad():
        start = pipe._pack_latents(torch.from_numpy(latents), *latents.shape)
        found = pipe(prompt, negative_prompt=NEGATIVE, num_inference_steps=STEPS, width=40,
                     height=SIDE, latents=start, output_type="latent").images
    expected = pipe._unpack_latents(found, SIDE, 40, pipe.vae_scale_factor).numpy()
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          width=40, height=SIDE)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1
    assert any("is longer than the 284" in line for line in last.result.warnings) == (
        len(prompt) > 99)


@pytest.mark.parametrize(("prompt", "guidance"), [
    (PROMPT, 4.0), ("the red apple " * 20, 4.0), (PROMPT, 1.0)])
def test_a_picture_of_ernie_image_is_that_of_diffusers(
        tmp_path: Path, prompt: str, guidance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer is in the folder; prompt and negative prompt are of other lengths. What the
    folder states of the autoencoder's statistics is not what the model was trained with."""
    import torch

    monkeypatch.setitem(tiny.FAMILIES, "ernie-image", tiny.ERNIE_IMAGE)
    pipe = theirs.pipeline("ernie-image")
    pipe.set_progress_bar_config(disable=True)
    folder = theirs.save(pipe, tmp_path / "model")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(TREE))
    ours = Pipeline.load(folder, threads=1)
    assert (ours.config.texts, ours.config.vae) == (tiny.ERNIE_IMAGE.texts, tiny.ERNIE_IMAGE.vae)
    assert (ours.config.family, ours.config.flow_shift) == ("ernie-image", 4.0)
    latents = NoiseSource("cpu", (7,), (128, 8, 10)).draw()
    found = []
    for kind in ("latent", "np"):
        with torch.no_grad():
            found.append(pipe(prompt, negative_prompt=NEGATIVE, num_inference_steps=STEPS,
                              width=40, height=SIDE, latents=torch.from_numpy(latents),
                              guidance_scale=guidance, output_type=kind).images)
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          guidance_scale=guidance, width=40, height=SIDE)
    assert relative_error(last.latents, found[0].numpy()) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - np.round(255 * found[1][0].astype(np.float64))) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1


@pytest.mark.parametrize("prompt", [PROMPT, "the red apple " * 60])
def test_a_picture_of_lumina2_is_that_of_diffusers(tmp_path: Path, prompt: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer is in the folder; prompt and negative prompt are of other lengths, and one may
    be too long."""
    import torch

    monkeypatch.setitem(tiny.FAMILIES, "lumina2", tiny.LUMINA2)
    pipe = theirs.pipeline("lumina2")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    assert ours.config.family == "lumina2" and ours.config.texts == tiny.LUMINA2.texts
    latents = NoiseSource("cpu", (7,), (16, 16, 20)).draw()
    with torch.no_grad():  # it takes every autoencoder to make 8 x 8 pixels of one
        expected = pipe(prompt, negative_prompt=NEGATIVE, num_inference_steps=STEPS, width=160,
                        height=128, latents=torch.from_numpy(latents), guidance_scale=4.0,
                        output_type="latent").images.numpy()
    *_, last = ours.steps(prompt, negative_prompt=NEGATIVE, steps=STEPS, seed=7, sampler="euler",
                          guidance_scale=4.0, width=40, height=SIDE)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1
    cut = [line for line in last.result.warnings if "is longer than the 256" in line]
    assert len(cut) == (len(prompt) > 99)


@pytest.mark.parametrize(("prompt", "negative", "guidance"), [
    ("a red apple, ripe", "", 1.0), ("", "", 1.0), ("a red apple, ripe", "blurry", 4.0),
    ("a red apple, ripe, " * 40, "", 3.0)])
def test_a_picture_of_qwen_image21_is_that_of_diffusers(
        tmp_path: Path, prompt: str, negative: str, guidance: float,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of other lengths than their negative ones, and empty ones, which are read as a space;
    levels of noise follow the size. Pictures have opacity."""
    import torch

    width, height = 96, 64
    monkeypatch.setitem(tiny.FAMILIES, "qwen-image21", tiny.QWEN_IMAGE21)
    pipe = theirs.pipeline("qwen-image21")
    pipe.set_progress_bar_config(disable=True)
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    config = ours.config
    assert (config.family, config.flow_shift, config.flow_terminal) == ("qwen-image21", None, 0.02)
    assert config.vae == tiny.QWEN_IMAGE21.vae
    latents = NoiseSource("cpu", (7,), (64, height // 16, width // 16)).draw()
    start = torch.from_numpy(latents).flatten(2).transpose(1, 2)
    with torch.no_grad():
        found = pipe(prompt, negative_prompt=negative, true_cfg_scale=guidance, width=width,
                     height=height, num_inference_steps=STEPS, latents=start,
                     output_type="latent").images
    expected = found.transpose(1, 2).reshape(latents.shape).numpy()
    *_, last = ours.steps(prompt, negative_prompt=negative, steps=STEPS, seed=7, sampler="euler",
                          guidance_scale=guidance, width=width, height=height)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    picture = np.asarray(last.result.images[0], np.float64)
    near = np.abs(picture - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and picture.std() > 1
    assert picture.shape == (height, width, 4)
