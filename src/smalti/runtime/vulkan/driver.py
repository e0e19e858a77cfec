"""Vulkan as a driver: what is asked of it from outside of this folder."""

from __future__ import annotations

from functools import lru_cache

from smalti.errors import DeviceError
from smalti.graph import Graph
from smalti.runtime.device import Device
from smalti.runtime.driver import Driver, Runnable
from smalti.runtime.gpu.check import executor
from smalti.runtime.gpu.compilation import PRECISIONS, compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.model import rate
from smalti.runtime.gpu.opened import kept_open, wide_range
from smalti.runtime.interface import Program
from smalti.runtime.vulkan.adapter import adapters
from smalti.runtime.vulkan.gpu import VulkanGpu, device_of
from smalti.runtime.vulkan.matrices import listed_with_matrices


@lru_cache(maxsize=1)
def found() -> tuple[Device | str, ...]:
    """GPUs, and texts that say why others are missing."""
    try:
        return tuple(f"vulkan:{number}: {adapter.name} cannot be used: {adapter.unusable}"
                     if adapter.unusable else device_of(listed_with_matrices(adapter), number)
                     for number, adapter in enumerate(adapters()))
    except DeviceError as error:
        return (f"vulkan: {error}",)


def opened(device: str) -> Gpu:
    """The GPU of this id, opened once in a process. Raises DeviceError where its driver refuses."""
    return kept_open(device, lambda number: VulkanGpu(adapters()[number], number))


def compiled(device: str, graph: Graph, **options) -> Program:
    """A program of the GPU of this id."""
    return compile_for(opened(device), graph, **options)


def runs(device: str) -> list[Runnable]:
    """What the GPU of this id runs."""
    gpu = opened(device)
    return [Runnable(gpu.target, gpu.limits, executor(gpu))]


DRIVER = Driver(found, rate, compiled, PRECISIONS,
                lambda device, precision: wide_range(opened(device), precision), runs,
                opened=opened)
