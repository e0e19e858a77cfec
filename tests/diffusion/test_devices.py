"""Pictures made on GPUs, through each language, beside those made on the CPU."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from gpu_devices import absent
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti import Pipeline
from smalti.benchmark.profile import seeded_inputs
from smalti.checkpoint import convert, load
from smalti.diffusion.placement import PartDevices
from smalti.diffusion.submodels import Submodels
from smalti.errors import DeviceError, InputError
from smalti.graph.quantised import FORMATS
from smalti.runtime import vulkan, webgpu
from smalti.runtime.gpu.program import DeviceProgram

LANGUAGES = {"vulkan:0": vulkan.adapters, "wgpu:0": webgpu.adapters}
DECIBEL_MIN = 40.0
FIRST_DEVICE = pytest.mark.parametrize(
    "device", ["vulkan:0", pytest.param("wgpu:0", marks=pytest.mark.sweep)], indirect=True)
"""The sweep tries what is not of one driver with the other one, too."""


@pytest.fixture(scope="module", params=LANGUAGES)
def device(request: pytest.FixtureRequest) -> str:
    """The id of a GPU, or of a driver that computes on the CPU."""
    try:
        LANGUAGES[request.param]()
    except DeviceError as error:
        absent(str(error), "mesa-vulkan-drivers")
    return request.param


def decibel(found: np.ndarray, expected: np.ndarray) -> float:
    """Peak signal to noise of pixels from 0 to 255."""
    mean = np.mean((found.astype(np.float64) - expected) ** 2)
    return math.inf if mean == 0 else 10 * math.log10(255 ** 2 / mean)


def pixels(pipe: Pipeline, **options: object) -> np.ndarray:
    return np.asarray(pipe("a red apple", **options).images[0])


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_parts_and_pictures_of_a_tiny_model(model_path: Path, device: str) -> None:
    cpu = Pipeline.load(model_path, device="cpu", precision="f32", threads=1)
    here = Pipeline.load(model_path, device=device, precision="f32")
    for part in here.parts:
        program = here.program(part)
        assert isinstance(program, DeviceProgram) and program.device == device
        inputs = seeded_inputs(cpu.program(part))
        for name, expected in cpu.program(part).run(inputs).items():
            assert relative(program.run(inputs)[name], expected) < 1e-4, (part, name)
    assert decibel(pixels(here), pixels(cpu)) > 60


@FIRST_DEVICE
def test_a_picture_of_a_tiny_model_in_f16(model_path: Path, device: str) -> None:
    cpu = Pipeline.load(model_path, device="cpu", precision="f32", threads=1)
    here = Pipeline.load(model_path, device=device, precision="f16")
    assert decibel(pixels(here), pixels(cpu)) > DECIBEL_MIN


@pytest.mark.sweep
def test_the_model_that_ships(device: str) -> None:
    expected = pixels(Pipeline.load(device="cpu", precision="f32", threads=1), steps=1)
    for precision, least in (("f32", 60.0), ("f16", DECIBEL_MIN)):
        found = pixels(Pipeline.load(device=device, precision=precision), steps=1)
        assert decibel(found, expected) > least, precision


OTHERS = [name for name in tiny.FAMILIES if name != "sd1"]


@pytest.mark.parametrize("device, family", [
    *(pytest.param("vulkan:0", family, marks=[] if family == "flux" else pytest.mark.sweep)
      for family in OTHERS),
    pytest.param("wgpu:0", "sd3", marks=pytest.mark.sweep)], indirect=["device"])
def test_every_family(family_files: tiny.Files, family: str, device: str) -> None:
    path = family_files[family]
    options = {"width": 32, "height": 32, "steps": 2}
    expected = pixels(Pipeline.load(path, device="cpu", precision="f32", threads=1), **options)
    found = pixels(Pipeline.load(path, device=device, precision="f32"), **options)
    assert expected.std() > 5 and decibel(found, expected) > 60


@FIRST_DEVICE
def test_an_adapter_binds_what_it_changes(model_path: Path, tmp_path: Path, device: str) -> None:
    adapter = write_adapter(tmp_path / "style.safetensors", TINY)
    cpu = Pipeline.load(model_path, device="cpu", precision="f32", threads=1)
    here = Pipeline.load(model_path, device=device, precision="f32")
    plain = pixels(here)
    for pipe in (cpu, here):
        pipe.load_lora(adapter)
    changed = pixels(here)
    assert decibel(changed, pixels(cpu)) > 60 > decibel(changed, plain)
    here.loras = ()
    np.testing.assert_array_equal(pixels(here), plain)


WIDE = replace(tiny.FAMILIES["sd1"], denoiser=replace(
    tiny.UNET, block_channels=(64, 128), context_dim=64))
"""A model that has weights of whole groups."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_whole(tmp_path_factory.mktemp("wide") / "whole.safetensors", WIDE)


def converted(whole: Path, folder: Path, precision: str) -> Path:
    """The same model in blocks."""
    path = folder / f"{precision}.gguf"
    with open(path, "wb") as stream:
        list(convert.plan(whole, ".gguf", precision).write(stream))
    return path


@pytest.mark.sweep
@FIRST_DEVICE
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("blocks", ["q8_0", "q4_k", "q6_k"])
def test_quantised_weights_stay_so(whole: Path, tmp_path: Path, device: str, blocks: str,
                                   precision: str) -> None:
    """Pictures are those of the CPU, and weights take no more than there."""
    model, options = converted(whole, tmp_path, blocks), {"width": 32, "height": 32, "steps": 1}
    cpu = Pipeline.load(model, device="cpu", precision="f32", threads=1)
    expected = pixels(cpu, **options)
    here = Pipeline.load(model, device=device, precision=precision)
    found = decibel(pixels(here, **options), expected)
    assert expected.std() > 5 and found > (60 if blocks == "q8_0" and precision == "f32"
                                           else DECIBEL_MIN)
    program, known = here.program("unet"), cpu.program("unet")
    held = {slot.name: slot for slot in program.module.slots if slot.dtype in FORMATS}
    theirs = {slot.name: slot for slot in known.module.slots if slot.dtype in FORMATS}
    assert held and held.keys() == theirs.keys()
    assert sum(s.bytes for s in held.values()) < sum(s.bytes for s in theirs.values())


@pytest.mark.sweep
@FIRST_DEVICE
def test_an_adapter_for_weights_of_8_bits_compiles_nothing(
        whole: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the adapter changes is bound, of its part."""
    model = converted(whole, tmp_path, "q8_0")
    adapter = write_adapter(tmp_path / "style.safetensors", WIDE)
    options = {"width": 32, "height": 32, "steps": 1}
    pipe = Pipeline.load(model, device=device, precision="f32")
    plain = pixels(pipe, **options)
    names: list[str] = []
    bind = DeviceProgram.bind

    def noted(self: DeviceProgram, *given: object, only: object = None, **more: object) -> None:
        assert only is not None, "everything is bound again"
        names.append(self.name)
        bind(self, *given, only=only, **more)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a program is compiled")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceProgram, "bind", noted)
        patch.setattr("smalti.diffusion.submodels.compile_graph", fail)
        pipe.load_lora(adapter, 0.5, 0.0)
        changed = pixels(pipe, **options)
        assert names == ["unet"] and decibel(changed, plain) < 40
        pipe.loras = ()
        np.testing.assert_array_equal(pixels(pipe, **options), plain)
    fresh = Pipeline.load(model, device=device, precision="f32", loras=[(adapter, 0.5, 0.0)])
    np.testing.assert_array_equal(pixels(fresh, **options), changed)


@pytest.mark.sweep
def test_an_adapter_on_weights_of_4_bits_comes_and_goes(whole: Path, tmp_path: Path, device: str
                                                        ) -> None:
    """What it changes is rounded to 8 bits, as on the CPU; what it leaves has 4."""
    model = converted(whole, tmp_path, "q4_0")
    adapter = write_adapter(tmp_path / "style.safetensors", WIDE)
    options = {"width": 32, "height": 32, "steps": 1}
    cpu = Pipeline.load(model, device="cpu", precision="f32", threads=1)
    here = Pipeline.load(model, device=device, precision="f32")
    plain = pixels(here, **options)
    for pipe in (cpu, here):
        pipe.load_lora(adapter, 0.5, 0.0)
    changed = pixels(here, **options)
    assert decibel(changed, pixels(cpu, **options)) > 50 > decibel(changed, plain)
    assert "q8" in {slot.dtype for slot in here.program("unet").module.slots}
    here.loras = ()
    np.testing.assert_array_equal(pixels(here, **options), plain)
    assert FORMATS.keys() & {s.dtype for s in here.program("unet").module.slots} == {"q4"}


@FIRST_DEVICE
def test_a_vae_is_not_stored_as_f16(model_path: Path, device: str) -> None:
    pipe = Pipeline.load(model_path, device=device, precision="f16")
    assert pipe.program("unet").module.precision == "f16"
    assert pipe.program("vae").module.precision == {"vulkan:0": "bf16", "wgpu:0": "f32"}[device]


def test_texts_of_wide_range_are_not_stored_as_f16(tmp_path: Path, device: str) -> None:
    """T5's states, as those of language models, are beyond what f16 holds; CLIP's are not."""
    config = tiny.WORDLESS["flux"]
    path = tiny.write_whole(tmp_path / "flux.safetensors", config)
    models = Submodels(load(path), "f16", placement=PartDevices(device))
    assert [models.precision_of(part) for part in ("text", "text_2", "transformer")] == [
        "f16", {"vulkan:0": "bf16", "wgpu:0": "f32"}[device], "f16"]


def test_what_a_device_does_not_do_is_said(model_path: Path) -> None:
    with pytest.raises(InputError, match="known: auto, cpu"):
        Pipeline.load(model_path, device="vulkan:99")
    with pytest.raises(InputError, match="'f16'; known: auto, f32, bf16"):
        Pipeline.load(model_path, device="cpu", precision="f16")
