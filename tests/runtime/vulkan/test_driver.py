"""A device that is lost: a clear error, everything let go, and the next picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_devices import chain, filled, increment
from tiny_model import tiny_weights, write_model
from vulkan_layer import LOST, Layer

from smalti import Pipeline
from smalti.errors import DeviceError, DeviceLostError
from smalti.runtime.gpu import opened
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, driver, instance


class Breakable(Layer):
    """Drivers whose devices are lost when they are `broken`."""

    def __init__(self) -> None:
        self.broken = False
        super().__init__(vkQueueSubmit=self._submit, vkDestroyDevice=self._passed,
                         vkDestroyInstance=self._passed)

    def _submit(self, real: Callable, *arguments: object) -> int:
        return LOST if self.broken else real(*arguments)

    def _passed(self, real: Callable, *arguments: object) -> None:
        real(*arguments)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model."""
    return write_model(tmp_path_factory.mktemp("loss") / "tiny.safetensors", tiny_weights())


@pytest.fixture
def breakable(adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Breakable]:
    """What this process reaches drivers through."""
    layer = Breakable()
    monkeypatch.setattr(instance, "_kept", [layer.instance])
    for name, empty in (("_open", {}), ("_lost", set())):
        monkeypatch.setattr(opened, name, empty)
    monkeypatch.setattr(driver, "_identities", {})
    driver.found.cache_clear()
    yield layer
    for gpu in opened._open.values():
        gpu.close()
    driver.found.cache_clear()


def test_what_is_held_of_a_lost_device_is_let_go(breakable: Breakable) -> None:
    gpu = driver.opened("vulkan:0")
    buffer = filled(gpu, np.zeros(128, np.float32))
    recording = gpu.record(chain(gpu.pipeline(increment(64)), buffer, 2))
    gpu.run(recording)
    breakable.broken = True
    with pytest.raises(DeviceLostError, match="reset or removed.*open it anew"):
        gpu.run(recording)
    assert gpu.lost
    anew = driver.opened("vulkan:0")
    assert anew is not gpu and isinstance(anew, VulkanGpu)
    assert [call for call in breakable.calls if "Destroy" in call] == [
        "vkDestroyDevice", "vkDestroyInstance"]
    assert instance.instance() is not breakable.instance
    for _ in (recording.close, buffer.close, gpu.close):  # of no use, and no harm
        _()
    other = filled(anew, np.zeros(128, np.float32))
    anew.run(anew.record(chain(anew.pipeline(increment(64)), other, 2)))
    assert np.all(anew.read(other, 0, 256).view(np.float32) == 2)


def test_a_connection_lasts_as_long_as_a_device_is_open_through_it(breakable: Breakable) -> None:
    first, second = (VulkanGpu(breakable.adapter()) for _ in range(2))
    first.lost = True
    first.close()
    assert "vkDestroyInstance" not in breakable.calls
    second.write(second.buffer(4), 0, np.zeros(1, np.float32))
    second.close()
    assert breakable.calls.count("vkDestroyInstance") == 1


def test_an_adapter_keeps_its_number(breakable: Breakable, monkeypatch: pytest.MonkeyPatch,
                                     adapter: VulkanAdapter) -> None:
    here = driver.adapters()
    assert driver.adapter_of(0).identity == here[0].identity
    monkeypatch.setattr(driver, "adapters", lambda: ())
    with pytest.raises(DeviceError, match="vulkan:0 is no longer there"):
        driver.adapter_of(0)


@pytest.mark.parametrize("returns", [True, False])
def test_the_next_picture_is_made(breakable: Breakable, returns: bool, path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"steps": 2, "seed": 3}
    on_cpu = Pipeline.load(path, threads=1)("a red apple", **asked).images[0]
    pipe = Pipeline.load(path, threads=1, device="vulkan:0", precision="f32")
    before = pipe("a red apple", **asked)
    assert not [text for text in before.warnings if "lost" in text]
    breakable.broken = True
    with pytest.raises(DeviceLostError):
        pipe("a red apple", **asked)
    if not returns:
        monkeypatch.setattr(driver, "VulkanGpu", refuse)
    for _ in range(2):
        after = pipe("a red apple", **asked)
        said = [text for text in after.warnings if "lost" in text]
        if returns:
            assert not said and after.images[0].tobytes() == before.images[0].tobytes()
        else:
            assert "vulkan:0 was lost and does not come back" in said[0]
            assert after.images[0].tobytes() == on_cpu.tobytes()


def refuse(*_: object) -> None:
    """A device that does not come back."""
    raise DeviceError("it cannot be initialised")
