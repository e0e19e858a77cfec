"""What drivers of GPUs have in common, whatever language their devices take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from smalti.codegen.target import Target
from smalti.compiler.options import ALL_ROUNDED
from smalti.errors import DeviceError
from smalti.graph import Graph
from smalti.runtime.device import Device
from smalti.runtime.driver import Driver, Runnable
from smalti.runtime.gpu.check import executor
from smalti.runtime.gpu.compilation import PRECISIONS, compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.model import rate, recorded
from smalti.runtime.gpu.opened import gone, wide_range
from smalti.runtime.gpu.recipe import recipe_for
from smalti.runtime.gpu.removals import DEVICE, Removal, removal_of
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe


class Judged(Protocol):
    """An adapter, and what it is not used for."""

    @property
    def name(self) -> str:
        """What the driver calls it."""

    @property
    def removals(self) -> Sequence[Removal]:
        """What is not used of it."""


Adapter = TypeVar("Adapter", bound=Judged)


def usable(adapter: Adapter) -> Adapter:
    """The same adapter, where it may be used. Raises DeviceError, which says why, for one that is
    removed itself."""
    removed = removal_of(DEVICE, adapter.removals)
    if removed is not None:
        raise DeviceError(f"{adapter.name} is not used: {removed.why} {removed.instead}")
    return adapter


def gpu_driver(found: Callable[[], tuple[Device | str, ...]], opened: Callable[[str], Gpu],
               bare: Callable[[str, Collection[str]], Gpu] | None = None,
               about: Callable[[Device], Sequence[tuple[str, str]]] = lambda device: ()) -> Driver:
    """The record of a driver whose devices are `Gpu`s: `found`, `opened`, `bare` and `about` are
    its fields of these names, and all others follow from them."""

    def compiled(device: str, graph: Graph, **options) -> Program:
        """A program of the GPU of this id."""
        return compile_for(opened(device), graph, **options)

    def recipe(device: str, graph: Graph, kept: Mapping[str, str] = ALL_ROUNDED, **options
               ) -> tuple[Recipe, Target | None]:
        """What such a program is made by, and its target."""
        gpu = opened(device)
        return recipe_for(gpu, graph, **options), gpu.target

    def runs(device: str) -> list[Runnable]:
        """What the GPU of this id runs."""
        gpu = opened(device)
        return [Runnable(gpu.target, gpu.limits, executor(gpu))]

    return Driver(found, rate, compiled, PRECISIONS,
                  lambda device, precision: wide_range(opened(device), precision), runs,
                  opened=opened, bare=bare, gone=lambda device: gone(device, opened), recipe=recipe,
                  model=recorded, about=about)
