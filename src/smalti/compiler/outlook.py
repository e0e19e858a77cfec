"""What a program would be, and how long a run would take, on a device that is not here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from smalti import machine
from smalti.compiler.arena import arranged
from smalti.compiler.kernel_table import KernelRow, KernelTable
from smalti.compiler.strips import LaunchOrder, RegionGroup
from smalti.dataclass import dataclass
from smalti.fuse import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.kernel.traffic import touched
from smalti.machine import cpu
from smalti.machine.cores import LANES as NEON_LANES
from smalti.machine.device import GUESSED, DeviceModel
from smalti.schedule.choose import WINOGRAD_MAX
from smalti.schedule.merge import contraction_extents, weights_batched
from smalti.schedule.schedule import Limits
from smalti.settings import THREADS_MAX
from smalti.tune.algorithms import REFERENCE_THREADS, planned
from smalti.tune.objective import Objective

VECTORS = {16: 32, 8: 16, NEON_LANES: 32}
"""Vector registers by the lanes of one: AVX-512, AVX2, NEON."""
COPY_COLUMNS = 1024
ASSUMED_OF_GPUS = ("assumed: the same kernels as here, each in a launch of its own and as fast as "
                   "the vendor's library computes it; operations on the host are left out")
ASSUMED_OF_CPUS = ("assumed: Smalti's first schedules for {threads} threads and these caches; "
                   "a run that follows another; operations on the host are left out")


@dataclass(frozen=True)
class Expected:
    """A kernel on a device: what it is, and what it is expected to cost."""

    region: Region
    seconds: float
    joules: float
    binds: str
    how: str


def outlook(name: str, found: Partition, growth: int, precision: str, device: DeviceModel,
            objective: str = "latency") -> KernelTable:
    """The kernels of a partition on a device; `growth` bounds the bytes that transformed weights
    may add to plain ones. For throughput it is one of as many programs as a CPU has cores."""
    threads = 1 if objective == "throughput" else min(device.units, THREADS_MAX)
    if device.kind == "cpu":
        aim = Objective.on(device, threads, objective)
        kernels = list(on_cpu(found, growth, precision, aim))
        assumed = ASSUMED_OF_CPUS.format(threads=threads) + f"; objective {objective}" + (
            f", {device.units} programs at once" * (objective == "throughput"))
    else:
        kernels = list(on_gpu(running(found).values(), precision, device))
        assumed = ASSUMED_OF_GPUS
    hosted = sum(isinstance(region, HostRegion) for region in found.regions)
    seconds, joules = (sum(getattr(k, field) for k in kernels) for field in ("seconds", "joules"))
    guessed = [field for field, origin in device.origin.items() if origin == GUESSED]
    title = (f"{name} on {device.name}: {len(kernels)} kernels in a run, "
             + f"{hosted} operations on the host, " * bool(hosted) + f"precision {precision}")
    facts = [assumed, *([f"guessed of this device: {', '.join(guessed)}"] if guessed else [])]
    rows = [KernelRow(number, k.region.kernel.form, k.region.scope, expected=k.seconds,
                      limit=k.binds, details=(k.how,)) for number, k in enumerate(kernels)]
    return KernelTable(title, facts, rows,
                       f"expected of a run: {1e3 * seconds:.3f} ms, {joules:.3g} J")


def running(found: Partition) -> dict[int, Region]:
    """The kernels that each run computes, by the numbers of their regions."""
    return {number: region for number, region in enumerate(found.regions)
            if isinstance(region, Region) and region.when == When.RUN}


def arena_bytes(found: Partition) -> int:
    """Bytes of what lies between the kernels of a partition that run one after the other."""
    count = len(found.regions)
    course = LaunchOrder(found, [None] * count, [RegionGroup((n,)) for n in range(count)])
    return arranged(course, [0] * count).bytes


# ---------------------------------------------------------------------- another CPU


def limits_of(device: DeviceModel, threads: int) -> Limits:
    """What a CPU means for schedules."""
    lanes = max(each for each in VECTORS if each <= device.wave)
    core = cpu.core_of(device)
    return Limits(lanes, VECTORS[lanes], int(core.l1_bytes), int(core.l2_bytes), threads,
                  core.pairs > 0, core.by_lane, blocks=core.by_lane and core.pairs > 0)


def on_cpu(found: Partition, growth: int, precision: str, aim: Objective) -> Iterator[Expected]:
    """The kernels of a run on a CPU, under the first schedules for an objective."""
    kernels = [None if isinstance(region, HostRegion) else region.kernel
               for region in found.regions]
    schedules = planned(kernels, limits_of(aim.device, aim.threads), precision, growth,
                        [WINOGRAD_MAX] * len(kernels), aim.cost,
                        replace(aim, threads=REFERENCE_THREADS).cost)
    course = LaunchOrder(found, list(schedules),
                         [RegionGroup((n,)) for n in range(len(found.regions))])
    arena = arranged(course, [0] * len(found.regions))
    running = [(region, schedule) for region, schedule in zip(found.regions, schedules, strict=True)
               if isinstance(region, Region) and region.when == When.RUN]
    launches = []
    for region, schedule in running:
        places = {name: (cpu.ARENA, arena.place(view).offset)
                  if view.storage.kind in ("arena", "input") else ((id(view.storage), name), 0)
                  for name, view in region.views.items()}
        launches.append(cpu.TimedLaunch(region.kernel, schedule, places))
    estimate = cpu.estimate_program(aim.device, launches, aim.threads, arena.bytes)
    for (region, schedule), kernel in zip(running, estimate.kernels, strict=True):
        yield Expected(region, kernel.seconds, kernel.energy_joules, kernel.binds, str(schedule))


# ---------------------------------------------------------------------- a GPU


def on_gpu(regions: Iterable[Region], precision: str, device: DeviceModel) -> Iterator[Expected]:
    """Kernels as the library of a GPU's vendor computes them."""
    known: dict[Kernel, Sequence[machine.Estimate]] = {}
    for region in regions:
        if region.kernel not in known:
            known[region.kernel] = _library_calls(region.kernel, precision, device)
        found = known[region.kernel]
        longest = max(found, key=lambda one: one.microseconds)
        yield Expected(region, sum(1e-6 * one.microseconds for one in found),
                       sum(one.joules for one in found), longest.binds, longest.algorithm)


def _library_calls(kernel: Kernel, dtype: str, device: DeviceModel) -> Sequence[machine.Estimate]:
    if kernel.form == "contraction":
        return [_contraction(kernel, dtype, device)]
    if kernel.form == "attention":
        return _attention(kernel, dtype, device)
    return [_moving(kernel, device)]


def _contraction(kernel: Kernel, dtype: str, device: DeviceModel) -> machine.Estimate:
    e = contraction_extents(kernel)
    filters = e.o * e.parts
    if weights_batched(kernel):
        return machine.estimate(device, "mat_mul", dtype, batch=e.b * e.y, m=e.x, n=filters, k=e.c)
    if e.r == e.s == 1:
        return machine.estimate(device, "mat_mul", dtype, m=e.b * e.y * e.x, n=filters, k=e.c)
    height = (e.y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1
    width = (e.x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1
    return machine.estimate(
        device, "conv", dtype, x=(e.b, e.c, height, width), w=(filters, e.c, e.r, e.s),
        strides=(e.stride_y, e.stride_x), dilations=(e.dilation_y, e.dilation_x))


def _attention(kernel: Kernel, dtype: str, device: DeviceModel) -> Sequence[machine.Estimate]:
    """One kernel where queries and keys are as many, else two products."""
    batch, queries, heads, depth = kernel.buffer("q").shape
    keys, width = kernel.buffer("k").shape[1], kernel.buffer("v").shape[3]
    if queries == keys and depth == width:
        return [machine.estimate(device, "attention", dtype, batch=batch, sequence=queries,
                                 heads=heads, head_dim=depth)]
    return [machine.estimate(device, "mat_mul", dtype, batch=batch * heads, m=queries, n=n, k=k)
            for n, k in ((keys, depth), (width, keys))]


def _moving(kernel: Kernel, device: DeviceModel) -> machine.Estimate:
    """A copy of as many bytes."""
    moved = sum(ELEMENT_BYTES[kernel.buffer(name).dtype] * count
                for name, count in touched(kernel).items())
    return machine.estimate(device, "copy", rows=max(1.0, moved / 8 / COPY_COLUMNS),
                            columns=COPY_COLUMNS)
