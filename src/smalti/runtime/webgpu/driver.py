"""`wgpu` as a driver: what is asked of it from outside of this folder."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from smalti.errors import DeviceError
from smalti.runtime.device import Device
from smalti.runtime.doctor.verdict import kept, when_kept
from smalti.runtime.gpu.driver import gpu_driver, usable
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.opened import kept_open
from smalti.runtime.gpu.removals import unexplained
from smalti.runtime.webgpu.adapter import WebAdapter, adapters, judged
from smalti.runtime.webgpu.gpu import device_of, open_device


@lru_cache(maxsize=1)
def found() -> tuple[Device | str, ...]:
    """GPUs, and texts that say why others are missing."""
    try:
        return tuple(device_of(checked(adapter), number)
                     for number, adapter in enumerate(adapters()))
    except DeviceError as error:
        return (f"wgpu: {error}",)


def opened(device: str) -> Gpu:
    """The GPU of this id, opened once in a process. Raises DeviceError where its driver refuses."""
    return kept_open(device, lambda number: open_device(
        device, lambda adapter: usable(checked(adapter))))


def bare(device: str, names: Collection[str]) -> Gpu:
    """The GPU of this id for a check, without what has these names."""
    return open_device(device, lambda adapter: judged(adapter, map(unexplained, names)))


def checked(adapter: WebAdapter) -> WebAdapter:
    """An adapter as the check of this machine has left it, if there was one."""
    verdict = kept(adapter.identity)
    return adapter if verdict is None else judged(adapter, verdict.removals)


def about(device: Device) -> tuple[tuple[str, str], ...]:
    """The code that a GPU takes, and its driver."""
    return (("code", "WGSL, through wgpu"), ("driver", device.driver),
            ("matrix unit", "out of reach of WGSL"))


when_kept(found.cache_clear)
DRIVER = gpu_driver(found, opened, bare, about)
