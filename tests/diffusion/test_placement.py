"""Parts of a pipeline on several devices: what texts mean, and that nothing but the place changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_devices import absent
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file
from tiny_controlnet import write_controlnet

from smalti import Control, PictureOptions, Pipeline
from smalti.benchmark.weights import seeded
from smalti.diffusion import control, named, placement, submodels, upscale
from smalti.diffusion.placement import PLACES, PartDevices, placed
from smalti.diffusion.residents import Residents
from smalti.diffusion.submodels import Submodels
from smalti.errors import DeviceError, InputError
from smalti.models import RrdbConfig, upscaler_graph
from smalti.runtime import vulkan, webgpu
from smalti.runtime.device import Device

NAMES = ("cpu", "vulkan:0", "vulkan:1", "wgpu:0")
RRDB = RrdbConfig(channels=8, growth=4, blocks=1, doublings=1)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer with four devices, of which one is the fastest."""
    def chosen(asked: str) -> str:
        if asked not in ("auto", *NAMES):
            raise InputError(f"no device is named {asked!r}; known: auto, {', '.join(NAMES)}")
        return "vulkan:1" if asked == "auto" else asked

    for module in (placement, upscale):
        monkeypatch.setattr(module, "chosen", chosen)
    monkeypatch.setattr(named, "described", lambda name: Device(name, name, "cpu", 8 << 30, ()))


@pytest.mark.parametrize(("asked", "expected"), [
    ("auto", "vulkan:1"), ("cpu", "cpu"), ("text=cpu", "vulkan:1,text=cpu"),
    ("denoiser=vulkan:0,text=cpu", "vulkan:0,text=cpu"),
    (" text = cpu , vulkan:0 ", "vulkan:0,text=cpu"),
    ("others=cpu,denoiser=vulkan:0", "cpu,denoiser=vulkan:0"),
    ("cpu,text=vulkan:0,text_2=cpu,text_3=vulkan:0", "cpu,text=vulkan:0,text_2=cpu"),
    ("cpu,denoiser=wgpu:0,control=wgpu:0,encoder=cpu", "cpu,denoiser=wgpu:0"),
    ({"denoiser": "vulkan:0", "decoder": "auto"}, "vulkan:0,decoder=vulkan:1"),
    ({"others": "auto"}, "vulkan:1"), ({}, "vulkan:1")])
def test_texts_and_mappings_say_the_same(four: None, asked: object, expected: str) -> None:
    assert str(placed(asked)) == expected and placed(expected) == placed(asked)


@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(list(PLACES)),
                                               st.sampled_from(NAMES)))
def test_a_placement_is_read_as_it_is_written(rest: str, named: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "chosen", str)
        found = placed({"others": rest, **named})
        assert placed(str(found)) == found
        assert all(found.of(name) == device for name, device in named.items())
        assert set(found.devices) == {found.of(name) for name in PLACES}
        assert found.devices[0] == found.of("denoiser")
        assert "vulkan:0" not in found.moved("vulkan:0", "cpu").devices
        assert found.refining().of("denoiser") == found.of("refiner")


@pytest.mark.parametrize(("asked", "said"), [
    ("vulkan:9", "'vulkan:9'; known: auto, cpu, vulkan:0"),
    ("denoiser=vulkan:9", "'vulkan:9'; known: auto, cpu, vulkan:0"),
    ("unet=cpu", "given for 'unet'; known parts: text, text_2, text_3, denoiser, refiner, control"),
    ({"vae": "cpu"}, "given for 'vae'; known parts: text"),
    ({"text": 3}, "device of text is 3; expected the id"), ({3: "cpu"}, "given for 3; known"),
    ("text=cpu,text=cpu", "two devices for text"), ("cpu,vulkan:0", "two devices for others"),
    ("text=", "expected \"auto\""), ("=cpu", "or parts and ids, such as \"denoiser="),
    ("", "expected \"auto\""), ("cpu,", "expected \"auto\""), (None, "device is None; expected"),
    (0, "device is 0; expected")])
def test_what_cannot_be_is_refused(four: None, asked: object, said: str) -> None:
    with pytest.raises(InputError) as raised:
        placed(asked)
    assert said in str(raised.value)


def test_budgets_are_those_of_each_device() -> None:
    here = Residents(7, "vulkan:0", True, {"cpu": 100, "wgpu:0": None}.__getitem__)
    assert here.on("vulkan:0") is here and here.on("cpu").budget_bytes == 100
    assert here.on("cpu").on("vulkan:0") is here and here.on("wgpu:0").budget_bytes is None
    assert here.on("cpu") is here.on("wgpu:0").on("cpu") and not list(here.on("cpu"))


def networks(folder: Path) -> dict[str, object]:
    """What a picture is made with so that ControlNet and upscaler run, too."""
    net = Control.load(write_controlnet(folder / "net"), Image.linear_gradient("L"))
    graph = upscaler_graph(RRDB, 1, 4, 4)
    save_file({name: seeded(name, value.shape) for name, value in graph.parameters.items()},
              folder / "large.safetensors")
    return {"steps": 2, "width": 16, "height": 16, "controls": [net], "hires": 2.0,
            "hires_upscaler": folder / "large.safetensors"}


def held(pipe: Pipeline) -> dict[str, list[str]]:
    """The parts that are in memory, by device."""
    return {device: sorted({part for _, part in pipe.residents.on(device)})
            for device in pipe.placement.devices}


def test_every_network_of_a_picture_is_compiled_for_its_device(
        four: None, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    for module in (submodels, control, upscale):
        monkeypatch.setattr(module, "compile_graph",
                            lambda graph, *, device, **options: compiled.append(device))
    pipe = Pipeline.load(model_path, precision="f32", threads=1, memory="2GB", device={
        "others": "cpu", "control": "wgpu:0", "denoiser": "vulkan:0", "upscaler": "vulkan:1"})
    job = pipe.job(PictureOptions("a red apple", **networks(tmp_path)))
    shapes = {"text": (1, 1), "unet": (1, 8, 8, 77), "vae": (8, 8)}
    for part, shape in shapes.items():
        job.models.compiled(part, job.models.graph(part, shape))
    assert compiled == ["cpu", "vulkan:0", "cpu"]
    assert [job.models.residents_of(part).device for part in shapes] == compiled
    held_by = pipe.residents
    for device, network in (("wgpu:0", job.controls), ("vulkan:1", job.upscaler)):
        assert network.device == device and network.residents is held_by.on(device)
    assert job.upscaler.user is job._user
    assert held_by.device == "vulkan:0" and held_by.on("cpu").budget_bytes == 2_000_000_000
    assert "f32 on cpu,denoiser=vulkan:0,control=wgpu:0,upscaler=vulkan:1;" in repr(pipe)


def test_a_refiner_has_a_device_of_its_own(four: None) -> None:
    where = placed("vulkan:0,text=cpu,refiner=vulkan:1").refining()
    assert [where.of_part(part) for part in ("unet", "text", "vae")] == [
        "vulkan:1", "cpu", "vulkan:0"]


def alone(models: dict[str, Submodels], where: PartDevices) -> Callable[..., dict[str, np.ndarray]]:
    """What runs a part as a pipeline does that has but the one device of this part."""
    def run(self: Submodels, part: str, shape: tuple[int, ...],
            **inputs: np.ndarray) -> dict[str, np.ndarray]:
        return models[where.of_part(part)]._ready(part, shape).program.run_checked(inputs)

    return run


@pytest.fixture
def all_here() -> None:
    """Both drivers of GPUs are here, of the CPU as they may be."""
    for adapters in (vulkan.adapters, webgpu.adapters):
        try:
            adapters()
        except DeviceError as error:
            absent(str(error), "mesa-vulkan-drivers")


@pytest.mark.sweep
def test_bytes_are_those_of_each_part_alone(all_here: None, model_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of parts on three devices, beside what single pipelines' parts give in turns."""
    where = {"denoiser": "vulkan:0", "text": "cpu", "decoder": "wgpu:0"}
    options = {"steps": 2, "width": 16, "height": 16}
    mixed = Pipeline.load(model_path, device=where, precision="f32", threads=1)
    found = mixed("a red apple", **options)
    devices = {part: mixed.program(part, 16, 16).device for part in ("text", "unet", "vae")}
    assert devices == {"text": "cpu", "unet": "vulkan:0", "vae": "wgpu:0"}
    assert held(mixed) == {"vulkan:0": ["unet"], "cpu": ["text"], "wgpu:0": ["vae"]}
    single = {device: Pipeline.load(model_path, device=device, precision="f32", threads=1)
              for device in where.values()}
    monkeypatch.setattr(Submodels, "run", alone(
        {device: pipe._submodels for device, pipe in single.items()}, mixed.placement))
    again = single["cpu"]("a red apple", **options)
    assert again.images[0].tobytes() == found.images[0].tobytes()


@pytest.mark.sweep
def test_networks_beside_a_model_run_on_a_gpu(all_here: None, model_path: Path, tmp_path: Path
                                              ) -> None:
    options = {"steps": 1, "width": 16, "height": 16, "controls": networks(tmp_path)["controls"],
               "image": Image.linear_gradient("L").resize((16, 16))}
    pipe = Pipeline.load(model_path, precision="f32", threads=1,
                         device="cpu,control=vulkan:0,encoder=vulkan:0")
    found = np.asarray(pipe("a red apple", **options).images[0], np.float64)
    assert held(pipe) == {"cpu": ["text", "unet", "vae"], "vulkan:0": ["control", "vae_encoder"]}
    plain = Pipeline.load(model_path, device="cpu", precision="f32", threads=1)
    assert np.abs(np.asarray(plain("a red apple", **options).images[0]) - found).max() <= 1


def test_precision_is_one_that_every_device_has(four: None) -> None:
    with pytest.raises(InputError, match="precision on cpu is 'f16'; known: auto, f32, bf16"):
        Pipeline.load(device="vulkan:0,text=cpu", precision="f16")
