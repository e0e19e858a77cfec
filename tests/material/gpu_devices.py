"""Devices that tests of GPUs run on: any driver of this machine, those of the CPU included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import GroupProgram
from smalti.errors import DeviceError
from smalti.runtime.gpu.interface import ComputePipeline, Copy, DeviceBuffer, Dispatch, Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, adapters


def absent(what: str, package: str) -> None:
    """Leave a test out, as there is nothing here to run it on; the package of Debian gives one."""
    pytest.skip(f"{what} (install the package {package})")


@pytest.fixture(scope="session")
def adapter() -> VulkanAdapter:
    """The best adapter of Vulkan."""
    try:
        found = [each for each in adapters() if not each.unusable]
    except DeviceError as error:
        absent(str(error), "mesa-vulkan-drivers")
    return found[0]


@pytest.fixture(scope="module")
def vulkan(adapter: VulkanAdapter) -> Iterator[VulkanGpu]:
    """The best device of Vulkan."""
    with VulkanGpu(adapter) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def staged(adapter: VulkanAdapter) -> Iterator[VulkanGpu]:
    """The same, as if the CPU could not see its memory."""
    with VulkanGpu(replace(adapter, limits=replace(adapter.limits, unified=False))) as gpu:
        yield gpu


def increment(elements: int, by: float = 1.0) -> GroupProgram:
    """y[i] = x[i] + by, in f32."""
    b = Builder("increment", 64)
    x, y = b.binding("x", "f32", elements, "read"), b.binding("y", "f32", elements, "write")
    i = b.let(b.group[0] * 64 + b.invocation)
    b.store(y, i, b.load(x, i, where=i < elements) + by, where=i < elements)
    return b.finish((-(-elements // 64), 1, 1))


def filled(gpu: Gpu, data: np.ndarray) -> DeviceBuffer:
    """A buffer with `data`."""
    buffer = gpu.buffer(data.nbytes)
    gpu.write(buffer, 0, data)
    return buffer


def chain(pipeline: ComputePipeline, buffer: DeviceBuffer, length: int,
          seconds: float = 0.0) -> list[Dispatch]:
    """Launches of which each reads what the one before it writes, from half of a buffer to the
    other and back."""
    half = buffer.bytes // 2
    return [Dispatch(pipeline, ((buffer, half * (i % 2)), (buffer, half * (1 - i % 2))), seconds)
            for i in range(length)]


def uses_of_another(gpu: Gpu) -> list[Callable[[], object]]:
    """Calls that give a GPU a buffer, a pipeline or a recording of another driver."""
    other, program, data = InterpretedGpu(), increment(64), np.zeros(128, np.float32)
    buffer = other.buffer(512)
    return [lambda: gpu.write(buffer, 0, data), lambda: gpu.read(buffer, 0, 4),
            lambda: gpu.record([Copy(buffer, 0, buffer, 256, 256)]),
            lambda: gpu.record(chain(gpu.pipeline(program), buffer, 1)),
            lambda: gpu.record(chain(other.pipeline(program), gpu.buffer(512), 1)),
            lambda: gpu.run(other.record([]))]
