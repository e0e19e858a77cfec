"""ControlNets of Z-Image in a picture: the model's weights that they read, refusals, diffusers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
from smalti.checkpoint.adapters import Adapted
from smalti.diffusion.control import Controls, NetWeights, SteeredModel
from smalti.diffusion.residents import Resident
from smalti.families.controls import Z_IMAGE, misfit
from smalti.models import (
    LUMINA2,
    QwenImageControlNetConfig,
    ZImageControlNetConfig,
    z_image_controlnet_graph,
)

SIDE, STEPS = 32, 3
PROMPT, NEGATIVE = "a red apple, ripe", "blurry"
MODEL = tiny.FAMILIES["z-image"]
FIRST = ZImageControlNetConfig(**{**vars(MODEL.denoiser), "blocks": 1})
NETS = {"1.0": FIRST,
        "2.0": replace(FIRST, blocks=2, refining="layers", refiners=0, hint_channels=33),
        "2.1": replace(FIRST, blocks=2, refining="steering", hint_channels=33)}
PICTURE = Image.radial_gradient("L").resize((SIDE, SIDE)).convert("RGB")


def saved(folder: Path, config: ZImageControlNetConfig) -> Companion:
    """The net in a file, with weights that make a difference."""
    graph = z_image_controlnet_graph(config, config, 1, 2, 2, 1)
    path = folder / f"control_{config.refining}.safetensors"
    save_file({name.removeprefix("control_model."): seeded(name, value.shape)
               for name, value in graph.parameters.items() if name.startswith("control_model.")},
              path)
    return open_companion(path)


@pytest.fixture
def nets(tmp_path: Path) -> dict[str, Companion]:
    return {name: saved(tmp_path, config) for name, config in NETS.items()}


class Weights:
    """Those of the model, seeded."""

    def given(self, name: str) -> np.ndarray:
        graph = z_image_controlnet_graph(FIRST, MODEL.denoiser, 1, 2, 2, 1)
        return seeded(name, graph.parameters[name].shape)


def test_weights_of_the_model_stay_as_they_are_held(nets: dict[str, Companion]) -> None:
    """Those that a net reads besides its own are no copies in f32; what no net adds is zeros."""
    beside = SteeredModel(
        MODEL.vae, lambda pixels: np.zeros((16, 2, 2), np.float32), Weights(), lambda time: time,
        lambda names: {name: "bf16" for name in names if name.endswith("qkv.weight")})
    use = Control(nets["1.0"], PICTURE, 0.5, end=0.5)
    controls = Controls([use], MODEL.denoiser, threads=1, beside=beside)
    latents = np.ones((1, 16, 2, 2), np.float32)
    told = {"context": np.ones((1, 5, 32), np.float32), "mask": np.ones((1, 5), np.float32)}
    early = controls(latents, np.full(1, 900, np.float32), told)["control.0"]
    assert early.shape == (1, 32 + 32, 64) and early.any()
    (resident,) = controls.residents.all((nets["1.0"], "control"))
    held = dict(resident.program.recipe.options.weights)
    assert held.keys() == {f"model.diffusion_model.{stack}_refiner.0.attention.qkv.weight"
                           for stack in ("noise", "context")}
    late = controls(latents, np.full(1, 100, np.float32), told)["control.0"]
    assert late.shape == early.shape and not late.any()


def test_weights_of_another_model_are_not_those_that_were_bound(
        nets: dict[str, Companion]) -> None:
    """Programs of a net are shared by pipelines, which may be of different models."""
    parameters = z_image_controlnet_graph(FIRST, MODEL.denoiser, 1, 2, 2, 1).parameters
    own = [name for name in parameters if name in nets["1.0"]]
    here, there = (SimpleNamespace(names=tuple) for _ in range(2))

    def differing(read: Iterable[str], before: object, after: object) -> frozenset[str] | None:
        graph = SimpleNamespace(parameters=dict.fromkeys(read))
        bound, wanted = (NetWeights(nets["1.0"], Adapted(each, ())) for each in (before, after))
        return wanted.differing(Resident(SimpleNamespace(recipe=SimpleNamespace(graph=graph)), (),
                                         bound))

    assert differing(parameters, here, here) == frozenset()
    assert differing(parameters, here, there) is None
    assert differing(own, here, there) == frozenset()


def test_zeros_stand_behind_the_latent_of_a_picture() -> None:
    latent, hint = np.ones((16, 2, 2), np.float32), np.ones((3, 16, 16), np.float32)
    found = Z_IMAGE.channels(NETS["2.1"], latent, hint)
    assert found.shape == (33, 2, 2) and found[:16].all() and not found[16:].any()
    assert Z_IMAGE.channels(FIRST, latent, hint).shape == latent.shape


@pytest.mark.parametrize(("net", "denoiser", "words"), [
    (FIRST, LUMINA2, "is a ControlNet for Z-Image, and this model has none"),
    (FIRST, tiny.FAMILIES["qwen-image"].denoiser, "is a ControlNet for Z-Image, and"),
    (QwenImageControlNetConfig(64, 2, 256), MODEL.denoiser, "is a ControlNet for Qwen-Image, and"),
    (FIRST, replace(MODEL.denoiser, mlp_size=96), "another model: its mlp_size are 170"),
    (replace(FIRST, hint_channels=4), MODEL.denoiser, "reads 4 channels; expected those of a"),
    (NETS["2.1"], MODEL.denoiser, "^$")])
def test_what_cannot_be_is_refused(net: object, denoiser: object, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(misfit(net, denoiser))


@pytest.mark.sweep
def test_they_steer_a_picture(nets: dict[str, Companion], family_files: tiny.Files) -> None:
    pipe = Pipeline.load(family_files["z-image"], threads=1)
    check_steering(pipe, SIDE, PICTURE, nets.values())


# ---------------------------------------------------------------------- against diffusers


@pytest.mark.peers
@pytest.mark.parametrize(("name", "added"), [("1.0", 3.0), ("2.0", 0.0), ("2.1", 3.0)])
def test_a_picture_is_that_of_diffusers(name: str, added: float, tmp_path: Path) -> None:
    """Guidance is what is added there, and so one less than here."""
    import diffusers
    import diffusers_families as theirs
    import torch
    import transformer_peers

    from smalti.diffusion.random import NoiseSource

    places = range(NETS[name].blocks)
    net = transformer_peers.filled(transformer_peers.z_image_controlnet_module(NETS[name], places))
    net.save_pretrained(tmp_path / "net")
    base = theirs.pipeline("z-image")
    ours = Pipeline.load(theirs.save(base, tmp_path / "model"), threads=1)
    pipe = diffusers.ZImageControlNetPipeline(**base.components, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    with torch.no_grad():
        expected = pipe([PROMPT], negative_prompt=[NEGATIVE], height=SIDE, width=SIDE,
                        num_inference_steps=STEPS, output_type="latent", guidance_scale=added,
                        latents=torch.from_numpy(latents), control_image=PICTURE,
                        controlnet_conditioning_scale=0.7).images.numpy()
    asked = dict(negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS, seed=7,
                 guidance_scale=1 + added, sampler="euler")
    *_, last = ours.steps(PROMPT, **asked, controls=[
        Control.load(tmp_path / "net", PICTURE, strength=0.7)])
    assert relative_error(last.latents, expected) <= 1e-4
    made = np.asarray(last.result.images[0], np.float64)
    near = np.abs(made - theirs.decoded(base, expected)) <= 1
    assert near.mean() >= 0.999 and made.std() > 1
    *_, plain = ours.steps(PROMPT, **asked)
    assert relative_error(plain.latents, expected) > 1e-2
