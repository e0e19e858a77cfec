"""Which device is chosen where none is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.runtime import choice
from smalti.runtime.device import Device
from smalti.runtime.drivers import driver
from smalti.runtime.gpu.model import rate
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


def test_a_name_that_nobody_knows_does_not_beat_one_that_is_known(
        monkeypatch: pytest.MonkeyPatch) -> None:
    known, other = (gpu(n, name, "discrete") for n, name in enumerate(
        ("NVIDIA GeForce GTX 1060 6GB", "Something (TM) X1")))
    small = gpu(2, "Intel(R) UHD Graphics 630 (CFL GT2)", "integrated")
    assert rate(other) > rate(known)  # by a guess
    assert pick(monkeypatch, other, known) == known.id
    assert pick(monkeypatch, small, other) == other.id
    told = replace(other, cores=200)  # its driver says how large it is
    assert pick(monkeypatch, told, known) == other.id


def test_another_way_to_gpus_is_asked_where_the_first_has_none_to_choose(
        monkeypatch: pytest.MonkeyPatch) -> None:
    pick(monkeypatch)
    here = {"cpu": [CPU], "vulkan": [gpu(0, "llvmpipe (LLVM 15)", "cpu")],
            "wgpu": [replace(gpu(0, "Apple M2 Pro", "integrated"), id="wgpu:0")]}
    monkeypatch.setattr(choice, "found", lambda name: here[name])
    monkeypatch.setattr(choice, "devices", lambda: sum(here.values(), []))
    for system, device in (("darwin", "wgpu:0"), ("linux", "cpu")):  # which has Vulkan only
        monkeypatch.setattr(choice.sys, "platform", system)
        assert choice.chosen("auto") == device
