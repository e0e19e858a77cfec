"""ControlNets of Z-Image in a picture: the model's weights that they read, refusals, diffusers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image, ImageOps
from safetensors.numpy import save_file
from tiny_controlnet import check_steering

from smalti import Control, PictureOptions, Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.benchmark.weights import seeded
from smalti.checkpoint import Companion, open_companion
from smalti.checkpoint.adapters import Adapted
from smalti.diffusion.control import Controls, NetWeights, SteeredModel
from smalti.diffusion.init_image import init_image
from smalti.diffusion.residents import Resident
from smalti.errors import InputError
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
    found = Z_IMAGE.channels(NETS["2.1"], latent, None)
    assert found.shape == (33, 2, 2) and found[:16].all() and not found[16:].any()
    assert Z_IMAGE.channels(FIRST, latent, hint).shape == latent.shape


def holed() -> Image.Image:
    """A picture whose middle is transparent."""
    picture = PICTURE.copy()
    picture.putalpha(ImageOps.invert(mask()))
    return picture


def mask() -> Image.Image:
    """White where that is."""
    return Image.fromarray(np.pad(np.full((12, 16), 255, np.uint8), ((10, 10), (8, 8))))


def read(use: Control, changed: Image.Image | None = None) -> tuple[list[np.ndarray], np.ndarray]:
    """What the autoencoder encodes for a net, and what the net reads, of latents that are 1, 2."""
    seen: list[np.ndarray] = []

    def encode(pixels: np.ndarray) -> np.ndarray:
        seen.append(pixels)
        return np.full((16, SIDE // 2, SIDE // 2), len(seen), np.float32)

    vae = replace(MODEL.vae, scaling_factor=1.0, shift_factor=0.0)
    controls = Controls([use.shown(changed)], MODEL.denoiser, threads=1,
                        beside=SteeredModel(vae, encode, None, lambda time: time))
    controls.read(SIDE // 2, SIDE // 2)
    return seen, controls._hints[0, SIDE // 2, SIDE // 2]


def test_a_picture_is_filled_beside_one_that_steers(nets: dict[str, Companion]) -> None:
    """What is encoded of it is grey in the hole; between the latents stands what stays."""
    hole = np.asarray(mask()) > 0
    steering = Image.new("RGB", (8, 8), "red")
    for use, changed in ((Control(nets["2.1"], steering, fill=holed()), None),
                         (Control(nets["2.1"], steering), holed())):
        (first, second), found = read(use, changed)
        assert (first[0] == 1).all() and (first[1:] == -1).all()
        assert (second[:, hole] == 0).all() and second[:, ~hole].std() > 0.1
        assert (found[:16] == 1).all() and (found[17:] == 2).all()
        np.testing.assert_array_equal(found[16], ~hole[::2, ::2])
    for use, changed in ((Control(nets["2.1"], holed()), None),
                         (Control(nets["2.1"], None, fill=holed()), None),
                         (Control(nets["2.1"], holed()), PICTURE),
                         (Control(nets["2.1"], None), holed())):
        (only,), found = read(use, changed)
        assert (only[:, hole] == 0).all() and not found[:16].any() and (found[17:] == 1).all()
    (only,), found = read(Control(nets["2.1"], None), PICTURE)  # without a mask it steers
    assert (found[:16] == 1).all() and not found[16:].any()
    (only,), found = read(Control(nets["1.0"], steering), holed())
    assert (only[0] == 1).all() and found.shape == (16, SIDE // 2, SIDE // 2)


def test_an_array_that_is_filled_marks_the_hole_by_itself(nets: dict[str, Companion]) -> None:
    pixels = np.where(np.asarray(mask())[:, :, None] > 0, np.float32(-1), np.float32(0.75))
    (only,), found = read(Control(nets["2.0"], np.repeat(pixels, 3, axis=2)))
    assert {*np.unique(only)} == {0, 0.5} and found[16].mean() == 1 - 12 * 16 / SIDE**2
    for given in (np.zeros((4, 4, 3), np.float32), "a.png"):
        with pytest.raises(InputError, match="a ControlNet is given .*; expected a picture, or"):
            read(Control(nets["2.0"], PICTURE, fill=given))  # type: ignore[arg-type]


def test_what_cannot_be_filled_is_refused(nets: dict[str, Companion]) -> None:
    for use, words in (
            (Control(nets["1.0"], PICTURE, fill=holed()), "is given a picture to fill besides one"),
            (Control(nets["2.1"], PICTURE, fill=PICTURE), "fills what is transparent in its pict"),
            (Control(nets["2.1"], None), "is given without a picture, which stands for the one")):
        with pytest.raises(InputError, match=words):
            read(use)
    upscaler = SimpleNamespace(path="4x.pth", config=object())
    options = PictureOptions("a", image=PICTURE, mask=mask(), controls=[Control(upscaler, PICTURE)])
    with pytest.raises(InputError, match="4x.pth is no ControlNet"):
        init_image(MODEL, options)


def test_who_sees_to_it_that_the_rest_stays(nets: dict[str, Companion]) -> None:
    """The net alone, where it reads the mask of the picture that is changed in every step."""
    net = nets["2.1"]
    for use, alone in ((Control(net, PICTURE), True), (Control(net, None), True),
                       (Control(net, holed()), False), (Control(net, None, fill=holed()), False),
                       (Control(net, PICTURE, end=0.5), False),
                       (Control(net, PICTURE, strength=0), False),
                       (Control(nets["1.0"], PICTURE), False),
                       (Control(nets["1.0"], None), False)):
        assert use.fills_changed == alone
        options = PictureOptions("a", image=PICTURE, mask=mask(), controls=[use])
        found = init_image(MODEL, options)
        assert found is not None and found.change.strength == (1 if alone else 0.75)


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


@pytest.mark.peers
@pytest.mark.parametrize(("name", "added"), [("2.0", 0.0), ("2.1", 3.0)])
def test_a_picture_that_is_filled_is_that_of_diffusers(name: str, added: float, tmp_path: Path
                                                       ) -> None:
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
    pipe = diffusers.ZImageControlNetInpaintPipeline(**base.components, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    steering = Image.linear_gradient("L").resize((SIDE, SIDE)).convert("RGB")
    with torch.no_grad():
        expected = pipe([PROMPT], negative_prompt=[NEGATIVE], height=SIDE, width=SIDE,
                        num_inference_steps=STEPS, output_type="latent", guidance_scale=added,
                        latents=torch.from_numpy(latents), image=PICTURE, mask_image=mask(),
                        control_image=steering, controlnet_conditioning_scale=0.7).images.numpy()
    asked = dict(negative_prompt=NEGATIVE, width=SIDE, height=SIDE, steps=STEPS, seed=7,
                 guidance_scale=1 + added, sampler="euler")
    use = Control.load(tmp_path / "net", steering, strength=0.7)
    *_, last = ours.steps(PROMPT, **asked, image=PICTURE, mask=mask(), mask_blur=0, controls=[use])
    assert relative_error(last.latents, expected) <= 1e-4
    made, hole = np.asarray(last.result.images[0], np.float64), np.asarray(mask()) > 0
    near = np.abs(made - theirs.decoded(base, expected))[hole] <= 1
    assert near.mean() >= 0.999 and made[hole].std() > 1
    np.testing.assert_array_equal(made[~hole], np.asarray(PICTURE, np.float64)[~hole])
    *_, again = ours.steps(PROMPT, **asked, controls=[replace(use, fill=holed())])
    np.testing.assert_array_equal(again.latents, last.latents)
    *_, plain = ours.steps(PROMPT, **asked, controls=[use])
    assert relative_error(plain.latents, expected) > 1e-2
