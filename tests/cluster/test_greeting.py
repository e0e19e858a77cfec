"""What a node tells of itself before it gets workers."""

from __future__ import annotations

import pytest

from smalti.cluster import greeting
from smalti.cluster.greeting import Greeter, every
from smalti.errors import InputError
from smalti.runtime.cache import code_digest
from smalti.runtime.device import Device

GPU = Device("vulkan:0", "a GPU", "discrete", 8 << 30, (), driver="535.1")


def gpus(monkeypatch: pytest.MonkeyPatch, *here: Device) -> None:
    monkeypatch.setattr(greeting, "chosen", lambda asked: here[0].id)
    monkeypatch.setattr(greeting, "described", lambda name: next(
        each for each in here if each.id == name))
    monkeypatch.setattr(greeting, "usual", lambda driver: here)


def test_a_worker_for_each_gpu_that_is_like_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    one = replace(GPU, id="vulkan:1")
    slow = replace(GPU, id="vulkan:2", kind="integrated")
    gpus(monkeypatch, GPU, one, slow)
    assert every("auto") == ("vulkan:0", "vulkan:1")
    gpus(monkeypatch, GPU, slow)
    assert every("auto") == ("auto",)


def test_a_cpu_tells_its_name_and_level() -> None:
    greeter = Greeter(code_digest())
    found = greeter.look("cpu", "auto")
    assert found.devices == ("cpu",) and ", " in found.kind
    assert greeter.look("denoiser=cpu,text=cpu", "f32") == found
    for device, precision, said in (("cpu", "f99", "cpu has no f99; it has auto, f32"),
                                    ("vulkan:99", "auto", "no device is named 'vulkan:99'")):
        with pytest.raises(InputError, match=said):
            greeter.look(device, precision)
