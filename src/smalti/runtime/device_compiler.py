"""A graph becomes a program of a GPU.

    graph --rewrite--> graph --partition--> regions
          --choose, lower--> group programs --plan--> recordings

The graph, its partition and the kernels are those of the CPU (`compiler.py`); what differs is what
a kernel is lowered to. Kernels that are equal are lowered once, programs that are equal are given
to the driver once, several at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from smalti import settings
from smalti.codegen.gpu import GroupProgram, Lowered
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.codegen.gpu.lower import lower
from smalti.compiler.front import prepared, show_regions
from smalti.errors import IllegalSchedule, InputError, UnsupportedError, UnsupportedNode
from smalti.fuse import Partition, Region, narrowed, partition
from smalti.fuse import held as with_halves
from smalti.graph import Graph
from smalti.graph.operation import HALVES
from smalti.graph.text import show
from smalti.kernel import verify
from smalti.kernel.form import Kernel
from smalti.runtime import cache
from smalti.runtime.device_plan import DevicePlan, planned
from smalti.runtime.device_program import DeviceProgram
from smalti.runtime.gpu import Gpu, Module
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits

PRECISIONS = ("auto", "f32", "f16", "bf16")
NO_WEIGHTS: Mapping[str, str] = {}


@dataclass(frozen=True)
class DeviceRecipe:
    """What a program is made from; `weights` are names and dtypes of parameters held as halves."""

    graph: Graph
    precision: str
    held: tuple[str, ...]
    limits: GroupLimits
    weights: tuple[tuple[str, str], ...] = ()
    threads: int = 1
    objective: str = "latency"

    def partition(self) -> tuple[Partition, int]:
        """The regions of a program, and the bytes that packed weights add to plain ones: none."""
        return regions_of(self.graph, self.precision, self.held, dict(self.weights)), 0


def compile_for(gpu: Gpu, graph: Graph, *, precision: str = "auto", held: Collection[str] = (),
                weights: Mapping[str, str] = NO_WEIGHTS,
                progress: Callable[[int, int], None] | None = None) -> DeviceProgram:
    """A program that computes `graph` on `gpu`.

    `precision` "f16" stores values between kernels and weights of products as f16, "bf16" as that,
    where the device stores 16 bits; sums, statistics, softmax, inputs and outputs are f32. "auto"
    is f16 where the device has it, else f32. `held`, `weights` and `progress` are as for
    `compile_graph`; quantised weights are held as f16. Raises InputError for an unknown precision
    or one that the device lacks, UnsupportedError for what it has no room for.
    """
    precision = known_precision(precision, gpu)
    if unknown := sorted(set(held) - set(graph.inputs)):
        raise InputError(f"there is no input {', '.join(unknown)} to hold; the graph has "
                         f"{', '.join(graph.inputs)}")
    halves = gpu.limits.storage16
    weights = {name: dtype if dtype in HALVES else "f16" for name, dtype in weights.items()
               if halves}
    recipe = DeviceRecipe(graph, precision, tuple(held), gpu.limits, tuple(sorted(weights.items())))
    plan = kept_plan(recipe, gpu, progress)
    with ThreadPoolExecutor(settings.threads()) as pool:
        pipelines = list(pool.map(gpu.build, plan.programs))
    return DeviceProgram(plan, gpu, pipelines, recipe)


def kept_plan(recipe: DeviceRecipe, gpu: Gpu,
              progress: Callable[[int, int], None] | None) -> DevicePlan:
    """The plan of a program for a device, from the cache or new. Raises as `compile_for` does."""
    digest = hashlib.sha256(f"{show(recipe.graph)} {recipe.weights}".encode()).hexdigest()
    key = f"{digest} {gpu.dialect} {recipe.limits} {recipe.precision} {sorted(recipe.held)}"
    stored = None if any(map(settings.show, settings.STAGES)) else cache.get(key)
    if stored is not None:
        return DevicePlan.from_bytes(stored)
    plan = plan_of(recipe, gpu.emit, progress)
    cache.put(key, plan.to_bytes())
    return plan


def plan_of(recipe: DeviceRecipe, emit: Callable[[GroupProgram], Module],
            progress: Callable[[int, int], None] | None = None) -> DevicePlan:
    """All of a program but what its driver makes of it, without looking at the cache; `emit` is
    that of a device. Raises as `compile_for` does."""
    regions, _ = recipe.partition()
    lowering = Lowering(recipe.limits, recipe.precision, progress, len(regions.regions))
    parameters = {name: value.shape for name, value in recipe.graph.parameters.items()}
    return planned(regions, lowering, emit, recipe.limits, recipe.precision, parameters)


def known_precision(precision: str, gpu: Gpu) -> str:
    """The precision that is meant. Raises InputError where the device lacks it."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown; {gpu.device.id} has "
                         f"{', '.join(PRECISIONS)}")
    if precision == "auto":
        return "f16" if gpu.limits.storage16 else "f32"
    if precision != "f32" and not gpu.limits.storage16:
        raise InputError(f"{gpu.device.name} ({gpu.device.id}) does not store 16 bits, which "
                         f"precision {precision!r} needs; use f32")
    if precision == "bf16" and gpu.language == "wgsl":
        raise InputError(f"{gpu.device.id} speaks WGSL, which has no bf16; use f16 or f32")
    return precision


def regions_of(graph: Graph, precision: str, held: Collection[str],
              weights: Mapping[str, str]) -> Partition:
    """The partition of a graph as devices compute it. Raises InputError for a value that is larger
    than any memory."""
    graph, halves = prepared(graph, FUNCTIONS)
    regions = with_halves(partition(graph, held, FUNCTIONS), {**halves, **weights})
    if precision != "f32":
        regions = narrowed(regions, dtype=precision)
    show_regions(regions)
    return regions


class Lowering:
    """Gives the schedule and the programs of each region, made once for equal kernels."""

    def __init__(self, limits: GroupLimits, precision: str,
                 progress: Callable[[int, int], None] | None, count: int) -> None:
        self.limits, self.precision = limits, precision
        self.progress, self.count, self.done = progress, count, 0
        self.known: dict[Kernel, tuple[str, Lowered]] = {}

    def __call__(self, region: Region) -> tuple[str, Lowered]:
        """The schedule of a region, in words, and its programs. Raises UnsupportedError."""
        kernel = region.kernel
        if kernel not in self.known:
            verify(kernel, "the partition")
            try:
                schedule = choose_group(kernel, self.limits, self.precision)
                low = lower(kernel, schedule, self.limits)
            except (IllegalSchedule, OverflowError) as error:
                raise UnsupportedError("the device has no room for:", [UnsupportedNode(
                    region.scope, kernel.form, f"{error}; choose smaller sizes or device='cpu'")
                ]) from None
            self.known[kernel] = str(schedule), low
            for stage, text in (("kernel", kernel), ("schedule", schedule)):
                if settings.show(stage):
                    print(text)
            if settings.show("asm"):
                for step in low.steps:
                    print(step)
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.count)
        return self.known[kernel]


