"""A Vulkan device as the `Gpu` that programs run on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smalti.codegen.shader import BufferUse, Shader
from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.runtime.device import Device
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.gpu.architecture import with_rates
from smalti.runtime.gpu.removals import require_clock
from smalti.runtime.vulkan.adapter import VulkanAdapter
from smalti.runtime.vulkan.logical import LogicalDevice
from smalti.runtime.vulkan.matrices import with_matrices
from smalti.runtime.vulkan.memory import DeviceMemory, VulkanBuffer
from smalti.runtime.vulkan.pipelines import Pipelines, VulkanPipeline
from smalti.runtime.vulkan.recording import VulkanRecording
from smalti.runtime.vulkan.transfers import Transfers

KEEP_SECONDS = 10
"""Between times that what the driver compiled is written to disk, while the device is open."""


def device_of(adapter: VulkanAdapter, number: int) -> Device:
    """What is said of the device `vulkan:number`; its cores are its compute units."""
    limits = adapter.limits
    features = [name for name, has in (
        ("f16", limits.f16), ("bf16", limits.bf16), ("storage8", limits.storage8),
        ("dot_i8", limits.dot_i8),
        ("matrices", limits.matrices or adapter.offers_matrices)) if has]
    return Device(f"vulkan:{number}", adapter.name, adapter.kind, adapter.memory_bytes,
                  tuple(features), max(limits.units, 1), driver=adapter.driver,
                  matrices=tuple(map(str, limits.matrices)), removals=adapter.removals,
                  identity=adapter.identity)


class VulkanGpu(gpu.Gpu):
    """An adapter that is open, the one called `vulkan:number`.

    Raises DeviceError when it cannot be opened.
    """

    target = TARGETS["spirv"]

    def __init__(self, adapter: VulkanAdapter, number: int = 0) -> None:
        adapter = with_matrices(adapter)
        self.device = device_of(adapter, number)
        self.limits = with_rates(adapter.limits, adapter.name)
        self._logical = LogicalDevice(adapter)
        self._memory = DeviceMemory(self._logical)
        self._pipelines = Pipelines(self._logical)
        self._transfers = Transfers(self._logical, self._memory)
        adapter.instance.opened.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._logical.closed

    @property
    def lost(self) -> bool:
        return self._logical.lost

    @lost.setter
    def lost(self, lost: bool) -> None:
        self._logical.lost = lost

    def build(self, shader: Shader, code: bytes) -> VulkanPipeline:
        return self.pipeline_from(code, shader.bindings, shader.groups, name=shader.name,
                                  subgroup_size=shader.subgroup)

    def pipeline_from(self, spirv: bytes, bindings: Sequence[BufferUse],
                      groups: tuple[int, int, int], *, name: str = "",
                      subgroup_size: int = 0) -> VulkanPipeline:
        """The pipeline of a SPIR-V module whose entry point is `main`, which needs not have come
        from a GroupProgram; `subgroup_size` 0 leaves that to the driver.

        Raises DeviceError when the driver rejects it or the device is too small for it.
        """
        return self._pipelines.build(spirv, bindings, groups, name=name,
                                     subgroup_size=subgroup_size)

    def buffer(self, bytes: int, *, kind: str = "device") -> VulkanBuffer:
        if kind not in ("device", "host"):
            raise InputError(f"no kind of buffer is called {kind!r}; known: device, host")
        return self._memory.buffer(bytes, kind)

    def write(self, buffer: gpu.DeviceBuffer, offset: int, data: memoryview | np.ndarray) -> None:
        self._transfers.write(buffer, offset, data)

    def read(self, buffer: gpu.DeviceBuffer, offset: int, bytes: int) -> np.ndarray:
        return self._transfers.read(buffer, offset, bytes)

    def record(self, launches: Sequence[gpu.Launch], *, timed: bool = False) -> VulkanRecording:
        self._logical.check()
        if timed:
            require_clock(self.device.name, self.device.removals)
        self._logical.reap()
        self._pipelines.keep(KEEP_SECONDS)
        with self._logical.lock:
            return VulkanRecording(self._memory, launches, timed)

    def run(self, recording: gpu.Recording) -> None:
        logical = self._logical
        with logical.lock:
            logical.check()
            if not isinstance(recording, VulkanRecording):
                raise InputError("the recording is of another device")
            recording.check(logical)
            self._transfers.flush()
            recording.run(logical.transfer.value)

    def wait(self) -> None:
        self._logical.check()
        with self._logical.lock:
            self._transfers.flush()
        self._logical.wait()

    def free_bytes(self) -> int:
        self._logical.check()
        return self._memory.free_bytes()

    def close(self) -> None:
        logical = self._logical
        if logical.closed:
            return
        if not logical.lost:
            self._pipelines.keep()
        logical.close()
        if logical.lost:
            logical.adapter.instance.forget()
        logical.adapter.instance.left()
