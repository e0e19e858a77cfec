"""ControlNets of Qwen-Image in a picture: what they read, what is refused, diffusers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image
from safetensors.numpy import save_file
from tiny_controlnet import check_steering

from smalti import Control, Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.benchmark.weights import seeded
from smalti.checkpoint import Companion, open_companion
from smalti.diffusion.control import Controls, SteeredModel
from smalti.errors import InputError
from smalti.families.controls import QWEN_IMAGE, misfit
from smalti.models import (
    FLUX_DEV,
    FluxControlNetConfig,
    QwenImageControlNetConfig,
    qwen_image_controlnet_graph,
)

SIDE, STEPS = 32, 3
PROMPT, NEGATIVE = "a red apple, ripe", "blurry"
MODEL = tiny.FAMILIES["qwen-image"]
UNION = QwenImageControlNetConfig(**{**vars(MODEL.denoiser), "blocks": 1})
NETS = {"union": UNION, "inpaint": replace(UNION, hint_channels=17, blocks=2)}


def saved(folder: Path, config: QwenImageControlNetConfig) -> Companion:
    """The net in a file, with weights that make a difference."""
    graph = qwen_image_controlnet_graph(config, 1, 2, 2, 1)
    path = folder / f"control_{config.hint_channels}.safetensors"
    save_file({name.removeprefix("control_model."): seeded(name, value.shape)
               for name, value in graph.parameters.items()}, path)
    return open_companion(path)


@pytest.fixture
def nets(tmp_path: Path) -> dict[str, Companion]:
    return {name: saved(tmp_path, config) for name, config in NETS.items()}


def holed() -> Image.Image:
    """A picture whose middle is transparent."""
    picture = Image.radial_gradient("L").resize((SIDE, SIDE)).convert("RGB")
    picture.putalpha(Image.fromarray(np.pad(np.zeros((12, 16), np.uint8), ((10, 10), (8, 8)),
                                            constant_values=255)))
    return picture


def test_what_is_transparent_is_filled(nets: dict[str, Companion]) -> None:
    """What the autoencoder encodes is black there, and 0 behind its latent."""
    seen = []

    def encode(pixels: np.ndarray) -> np.ndarray:
        seen.append(pixels)
        return np.zeros((16, SIDE // 2, SIDE // 2), np.float32)

    beside = SteeredModel(MODEL.vae, encode, None, lambda time: time)
    use = Control(nets["inpaint"], holed())
    controls = Controls([use], MODEL.denoiser, threads=1, beside=beside)
    controls.read(SIDE // 2, SIDE // 2)
    (pixels,) = seen
    hole = np.zeros((SIDE, SIDE), bool)
    hole[10:22, 8:24] = True
    assert (pixels[:, hole] == -1).all() and pixels[:, ~hole].std() > 0.1
    read = controls._hints[0, SIDE // 2, SIDE // 2]
    assert read.shape == (17, SIDE // 2, SIDE // 2)
    np.testing.assert_array_equal(read[16], ~hole[::2, ::2])
    mean, std = (np.array(each, np.float32)[:, None, None]
                 for each in (MODEL.vae.latents_mean, MODEL.vae.latents_std))
    np.testing.assert_allclose(read[:16], np.broadcast_to(-mean / std, read[:16].shape), rtol=1e-6)


def test_an_array_marks_what_is_filled_by_itself() -> None:
    hint = np.zeros((3, 4, 4), np.float32)
    hint[:, :2] = -1
    latent = np.ones((16, 2, 2), np.float32)
    found = QWEN_IMAGE.channels(NETS["inpaint"], latent, hint)
    assert found[16].tolist() == [[0, 0], [1, 1]] and (found[:16] == 1).all()
    assert QWEN_IMAGE.channels(UNION, latent, hint) is latent


def test_what_cannot_be_is_refused(nets: dict[str, Companion]) -> None:
    model = MODEL.denoiser
    for mode in ("RGB", "RGBA"):  # which could be transparent, and is not
        with pytest.raises(InputError, match="fills what is transparent in its picture, and this"):
            Controls([Control(nets["inpaint"], Image.new(mode, (4, 4), "red"))], model)
    for net, denoiser, words in (
            (UNION, FLUX_DEV, "is a ControlNet for Qwen-Image, and this model has none"),
            (FluxControlNetConfig(3072, 24, 12288), model, "is a ControlNet for FLUX.1, and"),
            (UNION, replace(model, hidden_size=128), "made for another model: its hidden_size are"),
            (replace(UNION, hint_channels=20), model, "reads 20 channels, which are not made"),
            (UNION, replace(model, references=1), "this model changes pictures that it reads as"),
            (object(), model, "is no ControlNet"), (UNION, model, "^$")):
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(misfit(net, denoiser))


def test_what_the_prompt_alone_gives_is_added_for_the_negative_one_too(
        nets: dict[str, Companion]) -> None:
    """As in the pipeline of the authors."""
    random = np.random.default_rng(0)
    beside = SteeredModel(MODEL.vae, lambda pixels: np.zeros((16, 2, 2), np.float32), None,
                          lambda time: time)
    controls = Controls([Control(nets["union"], Image.new("RGB", (4, 4)), 0.5)], MODEL.denoiser,
                        threads=1, beside=beside)
    latents = np.repeat(random.standard_normal((1, 16, 2, 2), np.float32), 2, 0)
    told = {"context": random.standard_normal((2, 5, 48), np.float32),
            "mask": np.ones((2, 5), np.float32)}
    both = controls(latents, np.full(2, 500, np.float32), told)
    alone = controls(latents[:1], np.full(1, 500, np.float32),
                     {name: part[:1] for name, part in told.items()})
    assert both.keys() == alone.keys() == {"control.0"}
    for row in range(2):
        np.testing.assert_array_equal(both["control.0"][row], alone["control.0"][0])
    assert np.abs(alone["control.0"]).max() > 0


@pytest.mark.sweep
def test_they_steer_a_picture(nets: dict[str, Companion], family_files: tiny.Files) -> None:
    pipe = Pipeline.load(family_files["qwen-image"], threads=1)
    check_steering(pipe, SIDE, holed(), nets.values())


# ---------------------------------------------------------------------- against diffusers


@pytest.mark.peers
@pytest.mark.parametrize(("name", "start", "guidance"), [
    ("union", 0.0, 4.0), ("union", 0.3, 1.0), ("inpaint", 0.0, 4.0)])
def test_a_picture_is_that_of_diffusers(name: str, start: float, guidance: float, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers
    import diffusers_families as theirs
    import torch
    import transformer_peers
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    from smalti.diffusion.random import NoiseSource

    monkeypatch.setattr(DiagonalGaussianDistribution, "sample",
                        lambda self, generator=None: self.mode())
    net = transformer_peers.filled(transformer_peers.qwen_image_controlnet_module(NETS[name]))
    net.save_pretrained(tmp_path / "net")
    base = theirs.pipeline("qwen-image")
    ours = Pipeline.load(theirs.save(base, tmp_path / "model"), threads=1)
    pictures: dict[str, Any] = {"control_image": holed().convert("RGB")}
    kind = diffusers.QwenImageControlNetPipeline
    if name == "inpaint":
        kind = diffusers.QwenImageControlNetInpaintPipeline
        pictures["control_mask"] = holed().getchannel("A").point(lambda value: 255 - value)
    pipe = kind(**base.components, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    begun = torch.from_numpy(latents)
    with torch.no_grad():
        found = pipe(PROMPT, negative_prompt=NEGATIVE, height=SIDE, width=SIDE,
                     num_inference_steps=STEPS, output_type="latent", true_cfg_scale=guidance,
                     latents=pipe._pack_latents(begun, *begun.shape), control_guidance_start=start,
                     controlnet_conditioning_scale=0.7, **pictures).images
    expected = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor).numpy()[:, :, 0]
    *_, last = ours.steps(
        PROMPT, negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS, seed=7,
        guidance_scale=guidance, sampler="euler",
        controls=[Control.load(tmp_path / "net", holed(), strength=0.7, start=start)])
    assert relative_error(last.latents, expected) <= 1e-4
    made = np.asarray(last.result.images[0], np.float64)
    near = np.abs(made - theirs.decoded(base, expected)) <= 1
    assert near.mean() >= 0.999 and made.std() > 1
    *_, plain = ours.steps(
        PROMPT, negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS, seed=7,
        guidance_scale=guidance, sampler="euler")
    assert relative_error(plain.latents, expected) > 1e-2
