"""ControlNets of Flux and SD 3 in a picture: several kinds at once, when they count, diffusers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image
from safetensors.numpy import save_file

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.benchmark.weights import seeded
from smalti.checkpoint import Companion, open_companion
from smalti.diffusion.control import Control, Controls, SteeredModel
from smalti.diffusion.options import PictureOptions
from smalti.errors import InputError
from smalti.families.controls import SD3, joined
from smalti.models import (
    CHROMA,
    FLUX_DEV,
    SD3_MEDIUM,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    flux_controlnet_graph,
    sd3_controlnet_graph,
)

SIDE = 32
OPTIONS = {"width": SIDE, "height": SIDE, "steps": 2, "seed": 7}
NetConfig = FluxControlNetConfig | MMDiTControlNetConfig


def net_of(family: str, **changes: Any) -> NetConfig:
    """A ControlNet for the tiny model of a family."""
    model = tiny.FAMILIES[family].denoiser
    if family == "flux":
        return FluxControlNetConfig(**{**vars(model), **changes})
    return MMDiTControlNetConfig(**{**vars(model), "hint_channels": 16, **changes})


NETS = {
    "InstantX": ("flux", net_of("flux", single_blocks=1)),
    "union": ("flux", net_of("flux", modes=4, single_blocks=0)),
    "XLabs": ("flux", net_of("flux", single_blocks=0, hint_channels=(16, 16, 16, 16))),
    "SD 3": ("sd3", net_of("sd3", blocks=1)),
    "SD 3.5 large": ("sd3", net_of("sd3", blocks=2, joint=False, qk_norm=False, dual_blocks=0)),
}


def saved(folder: Path, config: NetConfig, seed: int = 0) -> Companion:
    """The net in a file, with weights that make a difference."""
    flux = isinstance(config, FluxControlNetConfig)
    graph = (flux_controlnet_graph if flux else sd3_controlnet_graph)(config, 1, 2, 2, 1)
    stored = {}
    for name, value in graph.parameters.items():
        if name.startswith("control_model."):
            inner = name.removeprefix("control_model.")
            if flux:
                inner = inner.replace("controlnet_x_embedder", "pos_embed_input")
            stored[inner] = seeded(name, value.shape, seed)
    path = folder / f"control_{len(list(folder.iterdir()))}.safetensors"
    save_file(stored, path)
    return open_companion(path)


def test_different_nets_add_up_behind_the_right_blocks() -> None:
    """Of 19 double blocks one net serves 4 in a row, the other takes turns with 2."""
    first = FluxControlNetConfig(3072, 24, 12288, double_blocks=5, single_blocks=10)
    second = replace(first, double_blocks=2, single_blocks=0, hint_channels=(16,))
    both = joined(FLUX_DEV, [first, second])
    double, single = both.control
    assert len(double) == 19 and len(single) == 38
    for block, place in enumerate(double):
        assert both.sources[f"control.double.{place}"] == (
            f"control.double.{block // 4}", f"control.double.{block % 2}")
    for block, place in enumerate(single):
        assert both.sources[f"control.single.{place}"] == (f"control.single.{block // 4}", "")
    assert len(both.sources) == 10 + 10  # 5 runs of 4, each with both of the turns
    small = MMDiTControlNetConfig(1536, 24, blocks=6)
    assert joined(SD3_MEDIUM, [small]).control[-2:] == (5, -1)


@pytest.fixture
def nets(tmp_path: Path) -> dict[str, Companion]:
    """Files of all of them; those of Flux are written as XLabs did, which knew no modes."""
    return {name: saved(tmp_path, replace(config, modes=0) if hasattr(config, "modes") else config)
            for name, (_, config) in NETS.items()}


def test_a_net_with_fewer_positions_refuses_larger_pictures(
        family_files: tiny.Files, tmp_path: Path) -> None:
    small = saved(tmp_path, net_of("sd3", blocks=1, positions=SIDE // 8))
    control = Control(small, Image.new("RGB", (SIDE, SIDE)))
    pipe = Pipeline.load(family_files["sd3"], threads=1)
    most = tiny.FAMILIES["sd3"].vae.downscale * small.config.side_max
    with pytest.raises(InputError, match=f"makes pictures of at most {most} pixels a side"):
        pipe.steps("a red apple", controls=[control], width=2 * most, height=2 * most)
    with pytest.raises(InputError, match="leave hires out, or make the first"):
        pipe.steps("a red apple", controls=[control], width=most, height=most, hires=2)


@pytest.mark.parametrize("family", ["flux", pytest.param("sd3", marks=pytest.mark.sweep)])
def test_they_steer_a_picture(family_files: tiny.Files, nets: dict[str, Companion],
                              family: str) -> None:
    pipe, picture = Pipeline.load(family_files[family], threads=1), Image.linear_gradient("L")
    own = [net for name, net in nets.items() if NETS[name][0] == family]

    def made(*controls: Control) -> np.ndarray:
        return np.asarray(pipe("a red apple", **OPTIONS, controls=controls).images[0], np.float64)

    plain = made()
    assert np.abs(made(Control(own[0], picture, 0.0)) - plain).max() <= 1
    alone = [made(Control(net, picture, 0.5)) for net in own]
    together = made(*(Control(net, picture, 0.5) for net in own))
    pictures = [plain, *alone, together]
    for number, one in enumerate(pictures):
        assert all(np.abs(one - other).mean() > 0.1 for other in pictures[:number])


def test_they_do_not_steer_kontext_where_it_reads_a_picture(
        family_files: tiny.Files, nets: dict[str, Companion], tmp_path: Path) -> None:
    pipe = Pipeline.load(shutil.copy(family_files["flux"], tmp_path / "flux-kontext.safetensors"))
    picture = Image.new("RGB", (SIDE, SIDE))
    controls = [Control(nets["InstantX"], picture)]
    assert pipe.job(PictureOptions("a", width=SIDE, height=SIDE, controls=controls)).controls
    with pytest.raises(InputError, match="ControlNets do not know these: give one of them"):
        pipe.job(PictureOptions("a", width=SIDE, height=SIDE, image=picture, controls=controls))


def test_time_is_that_before_the_shift(nets: dict[str, Companion]) -> None:
    """Of a flow model half of the way is where half of the training steps are."""
    seen = []
    beside = SteeredModel(
        tiny.FAMILIES["flux"].vae, lambda pixels: np.zeros((16, 16, 16), np.float32), None,
        lambda time: seen.append(time) or 499.5)
    use = Control(nets["InstantX"], np.zeros((32, 32, 3), np.float32), start=0.6)
    flux = tiny.FAMILIES["flux"].denoiser
    both = Controls([use], flux, threads=1, beside=beside)
    found = both(np.zeros((1, 16, 16, 16), np.float32), np.array([750.0], np.float32),
                 {"context": np.zeros((1, 5, flux.context_dim), np.float32)})
    assert seen == [750.0] and not any(array.any() for array in found.values())
    assert {array.shape for array in found.values()} == {(1, 64, flux.hidden_size)}


def test_pictures_become_latents_as_each_net_was_trained() -> None:
    """InstantX's without the shift of latents, the one for edges of 3.5 large with 0.5 to 128."""
    vae, hint = tiny.FAMILIES["sd3"].vae, np.float32([0, 0.5, 1])
    _, joint = NETS["SD 3"]
    _, large = NETS["SD 3.5 large"]
    assert SD3.pixels(large, hint).tolist() == SD3.pixels(joint, hint).tolist() == [-1, 0, 1]
    assert SD3.pixels(replace(large, canny=True), hint).tolist() == [0.5, 64.25, 128]
    np.testing.assert_allclose(SD3.scaled(joint, hint, vae)[0, 0], hint * 1.5305, rtol=1e-6)
    np.testing.assert_allclose(SD3.scaled(large, hint, vae)[0, 0], (hint - 0.0609) * 1.5305,
                               rtol=1e-5)


def test_what_cannot_be_is_refused(nets: dict[str, Companion], tmp_path: Path) -> None:
    image, flux = Image.new("L", (4, 4)), tiny.FAMILIES["flux"].denoiser
    inpaint = saved(tmp_path, net_of("sd3", blocks=1, hint_channels=17))
    for net, denoiser, words in (
            (nets["InstantX"], SD3_MEDIUM, "a ControlNet for FLUX.1, and this model has none"),
            (nets["InstantX"], CHROMA, "a ControlNet for FLUX.1, and this model has none"),
            (nets["SD 3"], flux, "a ControlNet for Stable Diffusion 3, and"),
            (nets["InstantX"], FLUX_DEV, "another model: its hidden_size are 64"),
            (nets["SD 3"], SD3_MEDIUM, "another model: its hidden_size are 128"),
            (inpaint, tiny.FAMILIES["sd3"].denoiser, "for inpainting, which reads 17 channels")):
        with pytest.raises(InputError, match=words):
            Controls([Control(net, image)], denoiser)


# ---------------------------------------------------------------------- against diffusers


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name in NETS if name != "XLabs"])
def test_a_picture_is_that_of_diffusers(name: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers
    import diffusers_families as theirs
    import torch
    import transformer_peers
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    from smalti.diffusion.random import NoiseSource

    monkeypatch.setattr(DiagonalGaussianDistribution, "sample",
                        lambda self, generator=None: self.mode())
    family, config = NETS[name]
    build = transformer_peers.flux_controlnet_module if family == "flux" \
        else transformer_peers.sd3_controlnet_module
    net = transformer_peers.filled(build(config))
    net.save_pretrained(tmp_path / "net")
    if not getattr(config, "joint", True):  # a setting of the pipeline that files do not show
        net.register_to_config(force_zeros_for_pooled_projection=False)
    pipe = theirs.pipeline(family, "flow")
    ours = Pipeline.load(theirs.save(pipe, tmp_path / "model"), threads=1)
    whole = {"flux": diffusers.FluxControlNetPipeline,
             "sd3": diffusers.StableDiffusion3ControlNetPipeline}[family]
    parts = {key: part for key, part in pipe.components.items() if part is not None}
    pipe = whole(**parts, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    picture = Image.radial_gradient("L").resize((SIDE, SIDE)).convert("RGB")
    start = torch.from_numpy(latents)
    options: dict[str, Any] = {"guidance_scale": 3.5} if family == "flux" else {
        "guidance_scale": 4.5, "negative_prompt": "blurry", "max_sequence_length": 77,
        "sigmas": [1.0, 0.6, 0.3]}
    if getattr(config, "modes", 0):
        options["control_mode"] = 2
    with torch.no_grad():
        found = pipe(
            "a red apple", height=SIDE, width=SIDE, num_inference_steps=3, output_type="latent",
            control_image=picture, controlnet_conditioning_scale=0.7,
            latents=pipe._pack_latents(start, *start.shape) if family == "flux" else start,
            **options).images
    if family == "flux":
        found = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor)
    more = {} if family == "flux" else {
        "noise": ",".join(f"{3 * t / (1 + 2 * t):.9f}" for t in (1.0, 0.6, 0.3, 0.0))}
    *_, last = ours.steps(
        "a red apple", negative_prompt="blurry", width=SIDE, height=SIDE, steps=3, seed=7,
        guidance_scale=1.0 if family == "flux" else 4.5, sampler="euler", **more,
        controls=[Control.load(tmp_path / "net", picture, strength=0.7, kind=2)])
    assert relative_error(last.latents, found.numpy()) <= 1e-4
