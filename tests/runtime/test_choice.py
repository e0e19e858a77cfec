"""Which device is chosen where none is named."""

from __future__ import annotations

import pytest

from smalti.runtime import choice
from smalti.runtime.device import Device
from smalti.runtime.drivers import driver
from smalti.runtime.gpu.quirks import DOZEN, NVIDIA, AdapterFacts, removals_for

CPU = Device("cpu", "A CPU", "cpu", 16 << 30, ())


def gpu(number: int, name: str, kind: str, driver: int = 0) -> Device:
    facts = AdapterFacts(NVIDIA, name, "Vulkan", kind, driver)
    return Device(f"vulkan:{number}", name, kind, 8 << 30, (), removals=removals_for(facts))


def pick(monkeypatch: pytest.MonkeyPatch, *gpus: Device) -> str:
    here = {"cpu": [CPU], "vulkan": list(gpus), "wgpu": []}
    monkeypatch.setattr(choice, "found", lambda name: here[name])
    monkeypatch.setattr(choice, "driver_of", lambda name: driver(
        "vulkan" if name != "cpu" else "cpu"))
    monkeypatch.setattr(choice.settings, "device", lambda: "")
    monkeypatch.setattr(choice, "devices", lambda: [CPU, *gpus])
    return choice.chosen("auto")


def test_what_translates_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    dozen = gpu(0, "Microsoft Direct3D12 (NVIDIA GeForce GTX 1060)", "discrete", DOZEN)
    assert pick(monkeypatch, dozen) == "cpu"
    assert pick(monkeypatch, dozen, gpu(1, "NVIDIA GeForce GTX 1060", "discrete")) == "vulkan:1"
    assert choice.chosen("vulkan:0") == "vulkan:0"  # by its name it is
