"""ControlNets in a picture: what several add, when they count, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tiny_model
from click.testing import CliRunner
from peers_models import TINY_UNET
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.weights import seeded
from smalti.checkpoint import Companion, open_companion
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.checkpoint.quantise import quantise
from smalti.cli.generate import read_controls
from smalti.cli.main import root
from smalti.diffusion import residents
from smalti.diffusion.control import Control, Controls, as_hint
from smalti.errors import InputError, NumericsError
from smalti.graph import evaluate
from smalti.models import (
    FLUX_DEV,
    ControlNetConfig,
    RrdbConfig,
    UNetConfig,
    controlnet_graph,
    unet_graph,
    upscaler_graph,
)

UNET = replace(TINY_UNET, norm_groups=32, context_dim=768, heads=8)
SDXL = replace(UNET, attention=(False, True), transformer_depth=(0, 1), linear_projection=True,
               vector_dim=24, context_dim=48, head_dim=64)
PLAIN = ControlNetConfig(UNET, hint_channels=(8, 8, 12, 16))
UNION = ControlNetConfig(SDXL, hint_channels=(8, 8, 12, 16), types=6, type_sinusoids=8)
ROWS, SIDE, TOKENS = 2, 4, 3


def weights_of(config: ControlNetConfig, seed: int) -> dict[str, np.ndarray]:
    graph = controlnet_graph(config, 1, SIDE, SIDE)
    return {name: seeded(name, value.shape, seed) for name, value in graph.parameters.items()}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Companion]:
    def save(config: ControlNetConfig, seed: int = 0) -> Companion:
        path = tmp_path / f"control_{seed}.safetensors"
        safetensors.numpy.save_file(weights_of(config, seed), path)
        return open_companion(path)
    return save


def write_folder(folder: Path) -> None:
    """A folder of diffusers with a ControlNet for the tiny model."""
    config = ControlNetConfig(tiny_model.TINY.denoiser, hint_channels=(4, 8))
    weights = {name: seeded(name, value.shape)
               for name, value in controlnet_graph(config, 1, 2, 2).parameters.items()}
    safetensors.numpy.save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps(
        {"norm_num_groups": 8, "attention_head_dim": 2, "block_out_channels": [16, 32]}))


def picture(seed: int, width: int = 8 * SIDE) -> np.ndarray:
    return np.random.default_rng(seed).random((8 * SIDE, width, 3), np.float32)


def inputs_of(config: ControlNetConfig, timestep: float = 500.0) -> tuple:
    random, unet = np.random.default_rng(5), config.unet
    conditioning = {"context": random.standard_normal((ROWS, TOKENS, unet.context_dim), np.float32)}
    if unet.vector_dim:
        conditioning["vector"] = random.standard_normal((ROWS, unet.vector_dim), np.float32)
    latents = random.standard_normal((ROWS, 4, SIDE, SIDE), np.float32)
    return latents, np.full(ROWS, timestep, np.float32), conditioning


def expected(config: ControlNetConfig, seed: int, image: np.ndarray, kind: int = 0,
             timestep: float = 500.0) -> dict[str, np.ndarray]:
    latents, timesteps, conditioning = inputs_of(config, timestep)
    given = {"latent": latents, "timesteps": timesteps, **conditioning,
             "hint": np.stack([image.transpose(2, 0, 1)] * ROWS)}
    if config.types:
        given["types"] = np.eye(config.types, dtype=np.float32)[[kind]]
    graph = controlnet_graph(config, ROWS, SIDE, SIDE, TOKENS)
    return evaluate(graph, given, weights_of(config, seed))


def controls(uses: list[Control], unet=UNET) -> Controls:
    return Controls(uses, unet, threads=1)


def test_several_add_up_with_their_strengths(saved) -> None:
    first, second = saved(PLAIN, 0), saved(PLAIN, 1)
    one, two = picture(1), picture(2)
    latents, timesteps, conditioning = inputs_of(PLAIN)
    found = controls([Control(first, one, 0.8), Control(second, two, -0.5),
                      Control(first, two, 0.3)])(latents, timesteps, conditioning)
    parts = [(0.8, expected(PLAIN, 0, one)), (-0.5, expected(PLAIN, 1, two)),
             (0.3, expected(PLAIN, 0, two))]
    wanted = unet_graph(UNET, ROWS, SIDE, SIDE, TOKENS, control=True).inputs
    assert {name for name in wanted if name.startswith("control.")} == set(found)
    for name, array in found.items():
        total = sum(strength * part[name] for strength, part in parts)
        np.testing.assert_allclose(array, total, rtol=1e-4, atol=1e-4 * np.abs(total).max())


def test_a_union_is_told_the_kind(saved) -> None:
    net, image = saved(UNION), picture(1)
    results = {}
    for kind in (0, 5):
        found = controls([Control(net, image, kind=kind)], SDXL)(*inputs_of(UNION))
        results[kind] = found["control.middle"]
        total = expected(UNION, 0, image, kind)["control.middle"]
        np.testing.assert_allclose(results[kind], total, rtol=1e-4, atol=1e-4)
    assert not np.allclose(results[0], results[5])


def test_a_quantised_net_stays_so_in_memory(saved, tmp_path: Path) -> None:
    """With the numbers that it stands for: those of a file that holds them as f32."""
    def tensor(name: str, array: np.ndarray) -> GgufTensor:
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            return GgufTensor(name, array.shape, "Q8_0", lambda: quantise("Q8_0", array))
        return GgufTensor(name, array.shape, "f16", lambda: array.astype(np.float16))

    with open(tmp_path / "control.gguf", "wb") as stream:
        write_gguf(stream, {}, [tensor(*item) for item in weights_of(PLAIN, 0).items()], 127)
    net = open_companion(tmp_path / "control.gguf")
    safetensors.numpy.save_file({name: np.float32(net.floats(name)) for name in net.names()},
                                tmp_path / "control_f32.safetensors")
    plain = open_companion(tmp_path / "control_f32.safetensors")
    found, wanted = (controls([Control(each, picture(1))]) for each in (net, plain))
    for name, array in found(*inputs_of(PLAIN)).items():
        np.testing.assert_allclose(array, wanted(*inputs_of(PLAIN))[name], rtol=1e-5, atol=1e-5)
    program, whole = (each.residents.get(next(iter(each.residents))).program
                      for each in (found, wanted))
    assert {slot.dtype for slot in program.module.slots} == {"q8", "f16", "f32"}
    assert program.weights_bytes < 0.6 * whole.weights_bytes


def test_outside_of_its_time_it_adds_nothing_and_is_not_computed(saved) -> None:
    use = Control(saved(PLAIN), picture(1), start=0.25, end=0.75)
    assert [use.counts(t) for t in (999, 760, 740, 260, 240, 0)] == [
        False, False, True, True, False, False]
    lines: list[str] = []
    both = Controls([use], UNET, threads=1, progress=lines.append)
    latents, timesteps, conditioning = inputs_of(PLAIN, 999.0)
    early = both(latents, timesteps, conditioning)
    assert not lines and not any(array.any() for array in early.values())
    late = both(latents, np.full(ROWS, 500.0, np.float32), conditioning)
    assert lines == ["compiling the ControlNet", "loading the ControlNet"]
    assert {name: array.shape for name, array in early.items()} == {
        name: array.shape for name, array in late.items()}
    assert all(array.any() for array in late.values())
    assert not Control(None, None, strength=0.0).counts(500.0)


def test_an_inpainting_denoiser_hands_over_the_latent_only(saved) -> None:
    latents, timesteps, conditioning = inputs_of(PLAIN)
    more = np.concatenate([latents, np.ones((ROWS, 5, SIDE, SIDE), np.float32)], axis=1)
    both = controls([Control(saved(PLAIN), picture(1))], replace(UNET, in_channels=9))
    found = both(more, timesteps, conditioning)["control.0"]
    np.testing.assert_array_equal(found, both(latents, timesteps, conditioning)["control.0"])


def test_any_picture_becomes_a_hint() -> None:
    for mode in ("1", "L", "RGBA", "P"):
        hint = as_hint(Image.new(mode, (5, 7)), 16, 8)
        assert hint.shape == (3, 8, 16) and hint.dtype == np.float32 and not hint.any()
    assert as_hint(Image.new("RGB", (4, 4), (255, 0, 51)), 4, 4)[:, 0, 0].tolist() == [
        1.0, 0.0, pytest.approx(0.2)]
    half = Image.new("L", (32, 32))
    half.paste(255, (16, 0, 32, 32))
    hint = as_hint(half, 32, 32, (100, 200))
    assert (hint[:, :, 14:17].sum(axis=2) == 1).all() and hint.sum() == 3 * 32


def test_what_is_transparent_is_filled_by_a_net_for_inpainting(saved) -> None:
    """It reads -1 there, others what lies below; without such parts it reads a picture alike."""
    net = saved(PLAIN)
    filling = Companion(net.path, replace(PLAIN, fills=True), {})
    shown = Image.new("RGB", (8, 4), "white")
    shown.putalpha(Image.fromarray(np.repeat(np.array([[0, 127, 128, 255]], np.uint8), 2, 1)
                                   .repeat(4, 0)))
    assert (Control(net, shown).hint(8, 4) == 1).all()
    found = Control(filling, shown).hint(8, 4)
    assert found[0].tolist() == [[-1] * 4 + [1] * 4] * 4
    assert (Control(filling, shown.convert("RGB")).hint(8, 4) == 1).all()
    changed = shown.convert("RGBA")
    assert Control(filling, None).shown(changed).picture is changed
    assert not Control(filling, None).fills_changed  # what is known is shown to the model, too


def test_a_picture_is_made_to_fit(saved) -> None:
    net, image = saved(PLAIN), Image.fromarray((255 * picture(1)).astype(np.uint8))
    exact = controls([Control(net, np.asarray(image, np.float32) / 255)])(*inputs_of(PLAIN))
    given = controls([Control(net, image)])(*inputs_of(PLAIN))
    larger = image.resize((96, 96), Image.Resampling.NEAREST)
    scaled = controls([Control.load(net.path, larger, strength=0.5)])(*inputs_of(PLAIN))
    for name, array in exact.items():
        np.testing.assert_array_equal(given[name], array)
        assert not np.array_equal(scaled[name], array)


def test_a_picture_is_steered(model_path: Path, tmp_path: Path) -> None:
    write_folder(tmp_path)
    pipe = Pipeline.load(model_path, threads=1)
    image = Image.linear_gradient("L")
    plain, off, on, twice = (
        pipe("a red apple", controls=controls, batch_size=2).images[1].tobytes()
        for controls in ((), [Control.load(tmp_path, image, strength=0)],
                         [Control.load(tmp_path, image)], [Control.load(tmp_path, image)] * 2))
    assert plain == off and len({plain, on, twice}) == 3
    result = pipe("a red apple", controls=[Control.load(tmp_path, image, end=0.5)])
    assert f"Model: {tmp_path.name}, Weight: 1, Guidance Start: 0, Guidance End: 0.5" in \
        result.texts[0]
    kept = Pipeline.load(model_path, threads=1, keep=False)
    again = kept("a red apple", controls=[Control.load(tmp_path, image)], batch_size=2)
    assert again.images[1].tobytes() == on and not list(kept._residents)
    with pytest.raises(InputError, match="made for another model"):
        pipe.steps("a red apple", controls=[Control(replaced(tmp_path, UNET), image)])


def test_nets_take_their_memory_from_that_of_the_model(
        model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in use goes for them, and they for others; the picture is the same."""
    for constant in ("BASE_BYTES", "STAGED"):
        monkeypatch.setattr(residents, constant, 0)
    monkeypatch.setattr(residents, "resident_bytes", lambda: None)
    write_folder(tmp_path)
    used = [Control.load(tmp_path, Image.linear_gradient("L"))]
    plenty, tight = (Pipeline.load(model_path, threads=1) for _ in range(2))
    expected = plenty("a red apple", controls=used).images[0].tobytes()
    held = plenty._residents
    sizes = {name: held.get((of, name)).bytes for of, name in held}
    assert set(sizes) == {"text", "unet", "control", "vae"}
    tight._residents.budget_bytes = most = sizes["unet"] + sizes["control"] + sizes["text"] // 2
    taken, put = [], residents.Residents.put

    def noted(self, key, resident) -> None:
        put(self, key, resident)
        taken.append(sum(self.get(each).bytes for each in self))

    monkeypatch.setattr(residents.Residents, "put", noted)
    assert tight("a red apple", controls=used).images[0].tobytes() == expected
    assert most - sizes["text"] < max(taken) <= most


def test_the_command(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path)
    picture, target = tmp_path / "gradient.png", tmp_path / "made.png"
    Image.linear_gradient("L").save(picture)

    def run(*options: object):
        return CliRunner().invoke(root, [
            "generate", "a red apple", "--model", str(model_path), "-o", str(target),
            "--threads", "1", *map(str, options)])

    both = ("--control", tmp_path, picture, "--control", tmp_path, picture)
    result = run(*both, "--control-strength", 0.5, "--control-time", 0.1, 0.9, "--edges")
    assert result.exit_code == 0, result.output
    with Image.open(target) as made:
        text = made.info["parameters"]
    assert "Module: canny" in text and "Weight: 0.5, Guidance Start: 0.1" in text
    assert "ControlNet 1:" in text and "Weight: 1, Guidance Start: 0, Guidance End: 1" in text
    first, second = read_controls([(str(tmp_path), "none"), (str(tmp_path), str(picture))], [], [],
                                  edges=False)
    assert first.picture is None and isinstance(second.picture, Image.Image)
    for options, words in (
            (("--edges",), "there is no --control"),
            (("--control", tmp_path, "none"), "is given without a picture, which stands for the"),
            (("--control-strength", 1), "--control-strength is given 1 times, --control 0 times"),
            (("--control", tmp_path, model_path), "cannot be read as a picture"),
            (("--control", model_path, picture), "is a Stable Diffusion 1.x checkpoint; expected a "
                                                 "ControlNet, an upscaler of the ESRGAN")):
        result = run(*options)
        assert result.exit_code == 2 and words in result.stderr, result.output


def replaced(folder: Path, unet: UNetConfig) -> Companion:
    """A ControlNet for another UNet."""
    config = ControlNetConfig(unet, hint_channels=(4, 8))
    path = folder / "other.safetensors"
    safetensors.numpy.save_file(
        {name: seeded(name, value.shape)
         for name, value in controlnet_graph(config, 1, 2, 2).parameters.items()}, path)
    return open_companion(path)


def test_what_cannot_be_is_refused(saved, tmp_path: Path) -> None:
    net, image = saved(PLAIN), picture(1)
    graph = upscaler_graph(RrdbConfig(8, 4, 1), 1, 1, 1)
    path = tmp_path / "4x.safetensors"
    safetensors.numpy.save_file(
        {name: np.zeros(value.shape, np.float32) for name, value in graph.parameters.items()}, path)
    for use, unet, words in (
            (Control(open_companion(path), image), UNET, "4x.safetensors is no ControlNet"),
            (Control(net, image), replace(UNET, block_channels=(32, 96)),
             r"made for another model: its block_channels are \(32, 64\)"),
            (Control(net, image), replace(UNET, context_dim=1024), "its context_dim are 768"),
            (Control(net, image), FLUX_DEV, "a ControlNet for a UNet, and this model has none"),
            (Control(net, image, start=0.6, end=0.5), UNET, "counts from 0.6 to 0.5"),
            (Control(net, image, strength=float("nan")), UNET, "strength of a ControlNet is nan"),
            (Control(saved(UNION, 1), image, kind=6), SDXL, "knows 6 kinds .* got 6")):
        with pytest.raises(InputError, match=words):
            controls([use], unet)
    with pytest.raises(InputError, match=r"given f32\[32, 24, 3\]; .* or f32\[32, 32, 3\]"):
        controls([Control(net, picture(1, 24))])(*inputs_of(PLAIN))
    with pytest.raises(NumericsError, match="controlnet"):
        controls([Control(net, np.full_like(image, np.nan))])(*inputs_of(PLAIN))
