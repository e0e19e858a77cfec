"""`wgpu` as a driver: what is asked of it from outside of this folder."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from smalti.errors import DeviceError
from smalti.graph import Graph
from smalti.runtime.device import Device
from smalti.runtime.doctor.verdict import kept, when_kept
from smalti.runtime.driver import Driver, Runnable
from smalti.runtime.gpu.check import executor
from smalti.runtime.gpu.compilation import PRECISIONS, compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.model import rate, recorded
from smalti.runtime.gpu.opened import gone, kept_open, wide_range
from smalti.runtime.gpu.removals import require_usable, unexplained
from smalti.runtime.interface import Program
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
    return kept_open(device, lambda number: open_device(device, usable))


def bare(device: str, names: Collection[str]) -> Gpu:
    """The GPU of this id for a check, without what has these names."""
    return open_device(device, lambda adapter: judged(adapter, map(unexplained, names)))


def usable(adapter: WebAdapter) -> WebAdapter:
    """The same, if it may be used. Raises DeviceError where that check has removed it."""
    found = checked(adapter)
    require_usable(found.name, found.removals)
    return found


def checked(adapter: WebAdapter) -> WebAdapter:
    """An adapter as the check of this machine has left it, if there was one."""
    verdict = kept(adapter.identity)
    return adapter if verdict is None else judged(adapter, verdict.removals)


def compiled(device: str, graph: Graph, **options) -> Program:
    """A program of the GPU of this id."""
    return compile_for(opened(device), graph, **options)


def runs(device: str) -> list[Runnable]:
    """What the GPU of this id runs."""
    gpu = opened(device)
    return [Runnable(gpu.target, gpu.limits, executor(gpu))]


def about(device: Device) -> tuple[tuple[str, str], ...]:
    """The code that a GPU takes, and its driver."""
    return (("code", "WGSL, through wgpu"), ("driver", device.driver),
            ("matrix unit", "out of reach of WGSL"))


when_kept(found.cache_clear)
DRIVER = Driver(found, rate, compiled, PRECISIONS,
                lambda device, precision: wide_range(opened(device), precision), runs,
                opened=opened, bare=bare,
                gone=lambda device: gone(device, opened),
                model=recorded, about=about)
