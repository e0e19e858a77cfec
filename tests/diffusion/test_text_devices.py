"""Where text encoders run for which there is no room beside the denoiser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti import PictureOptions, Pipeline, machine
from smalti.diffusion import residents, text_devices
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.placement import PartDevices
from smalti.diffusion.residents import Residents
from smalti.diffusion.text_devices import DeviceRoom, TextWork
from smalti.runtime.device import Device

GB = 1e9
T5, CLIP = TextWork(9.5 * GB, 4.9e12), TextWork(0.25 * GB, 4e10)


def room(name: str, budget: float, share: float = 1.0) -> DeviceRoom:
    return DeviceRoom(machine.device(name), budget * GB, share * budget * GB)


CPU = room("ryzen_7_7700x", 28, 0.5)


@pytest.mark.parametrize(("rooms", "beside", "expected"), [
    ({"gpu": room("rtx_4090", 21.6), "cpu": CPU}, 6, {"t5": "gpu", "clip": "gpu"}),
    ({"gpu": room("rtx_4060", 7.2), "cpu": CPU}, 5, {"t5": "cpu", "clip": "gpu"}),
    ({"gpu": room("rtx_4060", 7.2), "cpu": CPU}, 24, {"t5": "cpu", "clip": "cpu"}),
    ({"gpu": room("rtx_3060", 10.8), "cpu": CPU}, 5, {"t5": "cpu", "clip": "gpu"}),
    ({"gpu": room("rtx_4060", 7.2), "cpu": CPU, "two": room("rtx_3060", 10.8)}, 5,
     {"t5": "two", "clip": "gpu"}),
    # nothing is kept: what fits alone is read where it is computed fastest
    ({"gpu": room("rtx_3060", 10.8, 0), "cpu": room("ryzen_7_7700x", 28, 0)}, 5,
     {"t5": "gpu", "clip": "gpu"}),
    # it fits nowhere
    ({"gpu": room("rtx_4060", 7.2), "cpu": room("ryzen_7_7700x", 7)}, 5,
     {"t5": "gpu", "clip": "gpu"})])
def test_a_text_encoder_runs_where_a_picture_takes_least(
        rooms: dict[str, DeviceRoom], beside: float, expected: dict[str, str]) -> None:
    assert text_devices.text_devices({"t5": T5, "clip": CLIP}, beside * GB, rooms) == expected


@given(st.floats(0.1, 40), st.floats(0, 40), st.floats(1, 80), st.floats(0, 80),
       st.floats(1, 80), st.sampled_from([0.0, 0.5, 1.0]))
def test_more_memory_never_drives_a_text_encoder_off(
        size: float, beside: float, gpu: float, more: float, cpu: float, share: float) -> None:
    def chosen(budget: float) -> str:
        rooms = {"gpu": room("rtx_4090", budget, share), "cpu": room("ryzen_7_7700x", cpu, share)}
        work = TextWork(size * GB, 5e11 * size)
        return text_devices.text_devices({"text": work}, beside * GB, rooms)["text"]

    assert chosen(gpu + more) == "gpu" or chosen(gpu) == "cpu" or size > gpu
    if size <= cpu and size > gpu:
        assert chosen(gpu) == "cpu"


@dataclass(frozen=True)
class Known:
    """A driver of GPUs that the timing model knows."""

    name: str
    of_gpus = True
    computes_in_main_memory = False

    def model(self, device: Device) -> machine.DeviceModel:
        return machine.device(self.name)


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer with a GPU with memory of its own, and with a CPU."""
    names = {"cpu": "ryzen_7_7700x", "vulkan:0": "rtx_4060"}

    def described(device: str) -> Device:
        return Device(device, names[device], "cpu" if device == "cpu" else "discrete", 8 << 30, ())

    for module in (text_devices, residents):
        monkeypatch.setattr(module, "described", described)
        monkeypatch.setattr(module, "driver_of", lambda device: Known(names[device]))
    monkeypatch.setattr(text_devices, "candidates", lambda: [described("cpu")])


def chosen_for(model_path: Path, memory: int, asked: str = "auto", keep: bool = True
               ) -> tuple[PartDevices, list[str]]:
    """What is chosen for the tiny model on such a computer."""
    pipe = Pipeline.load(model_path, device="cpu", threads=1)
    options = LoadOptions(model_path, device="cpu", keep=keep)
    options.placement, options.device = PartDevices("vulkan:0"), asked
    budgets = {"vulkan:0": memory, "cpu": 1 << 30}
    held = Residents(memory, "vulkan:0", keep, budgets.__getitem__)
    models = pipe._submodels
    object.__setattr__(models, "residents", held)
    return text_devices.best(options, models)


def test_where_nothing_is_said_memory_decides(small_gpu: None, model_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = partial(chosen_for, model_path)
    assert chosen(1 << 30) == (PartDevices("vulkan:0"), [])
    found, (said,) = chosen(2_000_000)
    assert str(found) == "vulkan:0,text=cpu"
    assert said.startswith("the text encoder runs on cpu: ") and "no room on vulkan:0" in said
    assert chosen(2_000_000, "vulkan:0") == (PartDevices("vulkan:0"), [])
    assert chosen(2_000_000, keep=False) == (PartDevices("vulkan:0"), [])
    monkeypatch.setenv("SMALTI_DEVICE", "vulkan:0")
    assert chosen(2_000_000) == (PartDevices("vulkan:0"), [])


def test_what_waits_for_the_next_picture(small_gpu: None) -> None:
    """A GPU with memory of its own keeps all that it may hold, main memory half of it."""
    held = Residents(1000, "vulkan:0", budget_of={"cpu": 1000}.__getitem__)
    assert held.kept_bytes == 1000 and held.on("cpu").kept_bytes == 500
    assert Residents().kept_bytes is None


def test_pictures_say_where_parts_run(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.diffusion.pipeline.best",
                        lambda asked, models: (PartDevices("cpu"), ["the text encoder runs there"]))
    pipe = Pipeline.load(model_path, device="cpu", threads=1)
    job = pipe.job(PictureOptions("a red apple", steps=1))
    assert list(job.notes)[:1] == ["the text encoder runs there"]
