"""A device that is open, lost, or closed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from _thread import interrupt_main

import numpy as np
import pytest
from gpu_devices import chain, filled, increment
from vulkan_layer import Layer

from smalti.errors import DeviceError, DeviceLostError
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.runtime.vulkan.library import TIMEOUT, checked


def test_a_device_describes_itself(adapter: VulkanAdapter, vulkan: VulkanGpu) -> None:
    assert vulkan.device.id == "vulkan:0" and vulkan.device.name == adapter.name
    assert vulkan.device.kind == adapter.kind and vulkan.target.name == "spirv"


def lose(gpu: VulkanGpu, name: str) -> None:
    """Let a function of the driver answer that the device is lost, and whatever runs end first."""
    gpu.wait()
    setattr(gpu._logical.functions, name, lambda *_: checked(-4, name))


@pytest.mark.parametrize("name", ["vkQueueSubmit", "vkWaitSemaphores"])
def test_a_device_that_is_lost_says_so_and_is_opened_anew(
        adapter: VulkanAdapter, name: str) -> None:
    own = Layer().adapter()  # as its connection ends with it
    gpu = VulkanGpu(own)
    buffer = filled(gpu, np.zeros(128, np.float32))
    recording = gpu.record(chain(gpu.pipeline(increment(64)), buffer, 2))
    lose(gpu, name)
    with pytest.raises(DeviceLostError, match="the device was lost: .* open it anew"):
        gpu.run(recording)
        gpu.wait()
    for call in (gpu.wait, lambda: gpu.run(recording), lambda: gpu.buffer(4),
                 lambda: gpu.record([]), lambda: gpu.read(buffer, 0, 4)):
        with pytest.raises(DeviceLostError, match="was lost"):
            call()
    gpu.close()
    with pytest.raises(DeviceError, match="the connection to the driver of .* ended"):
        VulkanGpu(own)
    with VulkanGpu(adapter) as again:
        assert not again.read(filled(again, np.zeros(8, np.float32)), 0, 32).any()


def test_a_device_that_was_closed_says_so(adapter: VulkanAdapter) -> None:
    gpu = VulkanGpu(adapter)
    buffer = gpu.buffer(64)
    recording = gpu.record([])
    gpu.close()
    gpu.close()
    for call in (gpu.wait, lambda: gpu.run(recording), lambda: gpu.buffer(4), gpu.free_bytes,
                 lambda: gpu.read(buffer, 0, 4), lambda: gpu.pipeline(increment(64))):
        with pytest.raises(DeviceError, match="was closed"):
            call()
    buffer.close()
    recording.close()


def test_threads_use_one_device(vulkan: Gpu) -> None:
    n, found = 1000, {}
    pipeline = vulkan.pipeline(increment(n))

    def work(number: int) -> None:
        buffer = filled(vulkan, np.full(2 * n, number, np.float32))
        recording = vulkan.record(chain(pipeline, buffer, 20))
        for _ in range(5):
            vulkan.run(recording)
        found[number] = vulkan.read(buffer, 0, 4 * n).view(np.float32)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.all(found[number] == number + 100) for number in range(6))


def test_a_thousand_launches_are_submitted_in_no_time(vulkan: Gpu) -> None:
    buffer = filled(vulkan, np.zeros(128, np.float32))
    recording = vulkan.record(chain(vulkan.pipeline(increment(64)), buffer, 1000))
    taken = []
    for _ in range(12):  # of which two measure, and one records
        vulkan.wait()
        started = time.perf_counter()
        vulkan.run(recording)
        taken.append(time.perf_counter() - started)
    assert min(taken) < 0.002  # asked are 0.3 ms, which bench/vulkan.py measures


def test_nothing_is_left_of_what_is_gone(adapter: VulkanAdapter) -> None:
    with VulkanGpu(adapter) as gpu:
        counts = []
        for number in range(6):
            buffer = filled(gpu, np.zeros(128, np.float32))
            recording = gpu.record(chain(gpu.pipeline(increment(64, number)), buffer, 4),
                                   timed=True)
            gpu.run(recording)
            del buffer, recording
            gpu.wait()
            counts.append(len(gpu._logical._owned))
        assert len(set(counts)) == 1 and not gpu._logical._given


@pytest.mark.usefixtures("interruptible")
def test_a_wait_is_ended_by_the_keyboard_and_the_device_goes_on(
        adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def never(_: int, __: object, nanoseconds: int) -> int:
        asked.append(nanoseconds)
        if len(asked) == 3:
            interrupt_main()
        return TIMEOUT

    with VulkanGpu(adapter) as gpu:
        buffer = filled(gpu, np.zeros(128, np.float32))
        recording = gpu.record(chain(gpu.pipeline(increment(64)), buffer, 10))
        gpu.run(recording)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(gpu._logical.functions, "vkWaitSemaphores", never)
            gpu.wait()
        assert len(asked) <= 4 and max(asked) <= 1e8
        gpu.run(recording)
        assert np.all(gpu.read(buffer, 0, 256).view(np.float32) == 20)


LEFT_OPEN = """
import numpy as np
from smalti.runtime.vulkan import VulkanGpu, adapters
gpu = VulkanGpu(adapters()[0])
buffer = gpu.buffer(1 << 20)
gpu.write(buffer, 0, np.ones(1 << 20, np.uint8))
print(int(gpu.read(buffer, 0, 1 << 20).sum()))
"""


def test_a_process_that_leaves_a_device_open_ends_well(
        vulkan: Gpu, environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], env=environment, capture_output=True,
                          text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("1048576\n", 0), done.stderr


def test_without_a_driver_the_reason_is_told(vulkan: Gpu, environment: dict[str, str]) -> None:
    code = ("from smalti.runtime.vulkan import adapters\n"
            "from smalti.errors import DeviceError\n"
            "try: adapters()\n"
            "except DeviceError as error: print(error)")
    nowhere = {**environment, "VK_DRIVER_FILES": "/none.json", "VK_ICD_FILENAMES": "/none.json"}
    done = subprocess.run([sys.executable, "-c", code], env=nowhere, capture_output=True,
                          text=True, check=True, timeout=120)
    assert "driver" in done.stdout
