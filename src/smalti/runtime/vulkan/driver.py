"""Vulkan as a driver: what is asked of it from outside of this folder."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from smalti.errors import DeviceError
from smalti.runtime.device import Device
from smalti.runtime.doctor.verdict import kept, when_kept
from smalti.runtime.gpu.driver import gpu_driver, usable
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.opened import kept_open
from smalti.runtime.gpu.removals import MATRICES, unexplained
from smalti.runtime.vulkan.adapter import VulkanAdapter, adapters, judged
from smalti.runtime.vulkan.gpu import VulkanGpu, device_of
from smalti.runtime.vulkan.matrices import listed_with_matrices

_identities: dict[int, str] = {}
"""Of adapters that were opened, by their numbers."""


@lru_cache(maxsize=1)
def found() -> tuple[Device | str, ...]:
    """GPUs, and texts that say why others are missing."""
    try:
        return tuple(f"vulkan:{number}: {adapter.name} cannot be used: {adapter.unusable}"
                     if adapter.unusable else
                     device_of(listed_with_matrices(checked(adapter)), number)
                     for number, adapter in enumerate(adapters()))
    except DeviceError as error:
        return (f"vulkan: {error}",)


def opened(device: str) -> Gpu:
    """The GPU of this id, opened once in a process. Raises DeviceError where its driver refuses."""
    return kept_open(device, lambda number: VulkanGpu(usable(checked(adapter_of(number))),
                                                      number))


def adapter_of(number: int) -> VulkanAdapter:
    """The adapter that had this number when this process saw it first. Raises DeviceError where it
    is gone, as a device may be that was lost."""
    here = adapters()
    identity = _identities.setdefault(number, here[number].identity if number < len(here) else "")
    if number < len(here) and here[number].identity == identity:
        return here[number]
    found = next((each for each in here if each.identity == identity), None)
    if found is None:
        raise DeviceError(f"vulkan:{number} is no longer there; `smalti devices` lists what is")
    return found


def bare(device: str, names: Collection[str]) -> Gpu:
    """The GPU of this id for a check: with its matrix unit, which that is to prove, and without
    what has these names."""
    number = int(device.partition(":")[2])
    return VulkanGpu(judged(adapters()[number], map(unexplained, names), (MATRICES,)), number)


def checked(adapter: VulkanAdapter) -> VulkanAdapter:
    """An adapter as the check of this machine has left it, if there was one."""
    verdict = kept(adapter.identity)
    return adapter if verdict is None else judged(adapter, verdict.removals, verdict.proven)


def about(device: Device) -> tuple[tuple[str, str], ...]:
    """The code that a GPU takes, its driver, and what is known of its matrix unit."""
    unit = ", ".join(device.matrices) or (
        "asked for when the device is used first" if "matrices" in device.features else "none")
    return (("code", "SPIR-V, through Vulkan"), ("driver", device.driver), ("matrix unit", unit))


when_kept(found.cache_clear)
DRIVER = gpu_driver(found, opened, bare, about)
