"""Devices of the timing model's library as a driver: what a program would take there, of memory and
of time, for computers that need not be here. Nothing is compiled to code, and nothing runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, cached_property, partial

import numpy as np

from smalti import machine
from smalti.compiler.kernel_table import KernelTable
from smalti.compiler.options import ALL_F32
from smalti.compiler.outlook import arena_bytes, outlook
from smalti.errors import InputError
from smalti.fuse import HostRegion, Partition, Region
from smalti.graph import Graph
from smalti.kernel.form import ELEMENT_BYTES
from smalti.machine import DeviceModel
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.device import LIBRARY, Device
from smalti.runtime.driver import Driver
from smalti.runtime.gpu.compilation import PRECISIONS
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe
from smalti.runtime.sources import Done, Weights, nothing
from smalti.schedule.merge import contraction_extents

CPU_PRECISIONS = ("auto", "f32", "bf16")
WINDOWS_SHARE = {"cpu": 1.8, "gpu": 1.35}
"""What compiled programs with convolutions compute in, over what lies between their kernels: those
transform and pad their inputs. The model for 128x128 that shipped before at 512x512: 1.77 and 1.02
for UNet and decoder on a CPU with AVX-512, 1.31 and 1.25 on a GPU; Z-Image's transformer 1.0."""
POOL_HALVES = 2
"""Of a CPU, what streamed weights are read into: each holds those of a kernel at least."""


class ForetoldProgram(Program):
    """What a graph would be on a device of the library: memory and time by the kernels that it is
    divided into here."""

    def __init__(self, model: DeviceModel, recipe: Recipe, precision: str) -> None:
        graph = recipe.graph
        self.model, self.recipe, self.precision = model, recipe, precision
        self.name, self.device = graph.name, f"{LIBRARY}:{model.id}"
        self.inputs = {name: value.shape for name, value in graph.inputs.items()}
        self.outputs = {name: value.shape for name, value in graph.outputs.items()}
        sizes = [size for _, size in _sizes(recipe, precision)]
        self.weights_bytes, self._largest = sum(sizes), max(sizes, default=0)
        self.bound = False

    @cached_property
    def _partition(self) -> tuple[Partition, int]:
        assert self.recipe is not None
        return self.recipe.partition()

    @property
    def arena_bytes(self) -> int:
        return self._arena_bytes

    @cached_property
    def _arena_bytes(self) -> int:
        found, _ = self._partition
        share = WINDOWS_SHARE[self.model.kind] if any(map(_windowed, found.regions)) else 1.0
        return int(share * arena_bytes(found))

    def held_bytes(self, bytes_max: int) -> int:
        least = POOL_HALVES * self._largest
        if self.model.kind == "cpu" and bytes_max < min(least, self.weights_bytes):
            raise InputError(f"{self.name}: the weights need about {least / 1e9:.2f} GB at a time, "
                             f"and may take {max(bytes_max, 0) / 1e9:.2f} GB; give more memory")
        return max(0, min(self.weights_bytes, bytes_max))

    def kernels(self) -> KernelTable:
        assert self.recipe is not None
        return outlook(self.name, *self._partition, self.precision, self.model,
                       self.recipe.options.objective)

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        raise self._absent()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise self._absent()

    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        raise self._absent()

    def _explained(self, all: bool, columns: int) -> str:
        return self.kernels().text(all, columns)

    def _absent(self) -> InputError:
        return InputError(f"{self.model.name} is a device of the library, and nothing runs on it; "
                          f"give one of `smalti devices`")


def _windowed(region: Region | HostRegion) -> bool:
    """Whether it is a convolution of more than one pixel."""
    if isinstance(region, HostRegion) or region.kernel.form != "contraction":
        return False
    extents = contraction_extents(region.kernel)
    return extents.r * extents.s > 1


def _sizes(recipe: Recipe, precision: str) -> list[tuple[str, int]]:
    """Each weight of a graph, and the bytes that it is held in."""
    held, usual = dict(recipe.options.weights), "f32" if precision == "f32" else "bf16"
    return [(name, int(value.type.size * ELEMENT_BYTES[held.get(name, usual)]))
            for name, value in recipe.graph.parameters.items()]


def foretold(model: DeviceModel, device: str, graph: Graph, *, precision: str = "auto",
             threads: int | None = None, held: Collection[str] = (),
             weights: Mapping[str, str] = ALL_F32, objective: str = "latency",
             **others: object) -> ForetoldProgram:
    """What `graph` would be on a device, with the keywords of `compile_graph`, of which the others
    do not matter; the kernels are those of this computer's CPU, in as many bytes."""
    cpu = model.kind == "cpu"
    stored = precision if precision != "auto" else "f32" if cpu else "f16"
    recipe = recipe_of(graph, "f32" if stored == "f32" else "bf16", held, threads, weights,
                       objective)
    return ForetoldProgram(model, recipe, stored)


def _wide_range(model: DeviceModel, device: str, precision: str) -> str:
    """The precision for what overflows in f16: bf16 where matrix units multiply it, else f32."""
    if model.kind == "cpu" or precision in ("f32", "bf16"):
        return precision
    return "bf16" if "bf16" in model.matrix else "f32"


@cache
def driver(name: str) -> Driver:
    """A device of the library by its id, as a driver that has it alone. Raises UnknownDeviceError.

    >>> [device] = driver("rtx_3060_12_gb").found()
    >>> device.kind, device.memory_bytes
    ('discrete', 12000000000)
    """
    model = machine.device(name)
    cpu = model.kind == "cpu"
    device = Device(f"{LIBRARY}:{model.id}", model.name,
                    "cpu" if cpu else "integrated" if model.integrated else "discrete",
                    int(model.memory), (), model.units)
    return Driver(found=lambda: (device,), rate=lambda device: max(model.vector.values()),
                  compiled=partial(foretold, model),
                  precisions=CPU_PRECISIONS if cpu else PRECISIONS,
                  wide_range=partial(_wide_range, model), runs=lambda device: [],
                  computes_in_main_memory=cpu, model=lambda device: model)
