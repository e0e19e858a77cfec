"""How fast a GPU is: measured by the host's clock, in some tenths of a second.

Sizes grow until a run takes long enough to be timed, so that a slow device is never kept busy for
long: a driver may reset it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.lower import lower
from smalti.codegen.target import Target
from smalti.compiler.check import kernels, narrowed
from smalti.compiler.samples import product
from smalti.errors import DeviceMemoryError
from smalti.fuse import HostRegion, partition
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.runtime.doctor.bench import Bench, Guarded
from smalti.runtime.doctor.found import GpuRates
from smalti.runtime.gpu.interface import Dispatch
from smalti.runtime.gpu.pacing import MEASURED
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import BYTES, GroupLimits

SPENT_SECONDS = 4e-3
"""A run that takes so long is timed well: a hundred times what a submission costs."""
NO_TIME = 50
"""A run that takes so many times less is far too short."""
TURNS = 3
"""Runs of which the fastest counts: what disturbs only slows down."""
EXTENT_MIN, EXTENT_MAX = 128, 4096
"""Rows, columns and depth of products."""
MOVED_MIN, MOVED_MAX = 4 << 20, 256 << 20
"""Bytes that a copy on the device reads; it writes as many."""
LAUNCHES = 128
"""Launches of which each depends on the one before."""
SENT_BYTES = 32 << 20
"""Bytes that go to the device, and back."""


def measured(bench: Bench, target: Target) -> GpuRates:
    """The rates of a device. Raises DeviceError where it fails."""
    precisions = target.precisions if target.halves(bench.limits) else ("f32",)
    products = {precision: product_rate(bench, target, precision) for precision in precisions}
    launch, submission = launch_seconds(bench)
    upload, download = link_rates(bench)
    return GpuRates(products, memory_rate(bench), launch, submission, upload, download)


def product_programs(target: Target, limits: GroupLimits, precision: str, extent: int
                     ) -> tuple[GroupProgram, ...]:
    """A product of `extent` rows, columns and depth as programs would compute it, in floats or, of
    precision "i8", in bytes."""
    if precision == BYTES:
        kernel = byte_product(target, extent)
    else:
        graph = {"product": lambda: product((extent,), extent, extent)}
        (kernel,) = [each for each in kernels(target, limits, graph)
                     if each.form == "contraction"]
        kernel = narrowed(kernel, precision)
    return lower(kernel, choose_group(kernel, limits, precision), limits).steps


def byte_product(target: Target, extent: int) -> Kernel:
    """A product of bytes, whatever a device would compute it in."""
    g, shape = Graph("product"), (extent, extent)
    g.output("y", g.apply("mat_mul_integer", g.input("x", shape, "i8"), g.parameter(
        "w", shape, "i8"), g.constant(0, "i8"), g.constant(0, "i8")))
    (kernel,) = [each.kernel for each in partition(g, (), target.functions).regions
                 if not isinstance(each, HostRegion)]
    return kernel


def product_rate(bench: Bench, target: Target, precision: str) -> float:
    """FLOP/s of products, at a size that keeps the device busy."""
    def seconds(extent: int) -> float:
        return run_seconds(bench, product_programs(target, bench.limits, precision, extent))

    extent, took = grown(seconds, EXTENT_MIN, EXTENT_MAX)
    return 2 * extent ** 3 / took


def memory_rate(bench: Bench) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    def seconds(size: int) -> float:
        return run_seconds(bench, [copying(size // 4, min(256, bench.limits.invocations))])

    most = min(MOVED_MAX, bench.limits.buffer_range, bench.limits.buffer_bytes // 4,
               bench.gpu.free_bytes() // 8)
    size, took = grown(seconds, min(MOVED_MIN, most), most)
    return 2 * size / took


def grown(seconds: Callable[[int], float], first: int, last: int) -> tuple[int, float]:
    """A size at which a run takes long enough, from the first one on, and what that takes: twice
    the last size, or four times where that was over in no time."""
    size, took = first, seconds(first)
    while took < SPENT_SECONDS and 2 * size <= last:
        larger = min(last, size * (4 if NO_TIME * took < SPENT_SECONDS else 2))
        try:
            size, took = larger, seconds(larger)
        except DeviceMemoryError:
            break
    return size, took


def run_seconds(bench: Bench, programs: Sequence[GroupProgram]) -> float:
    """How long programs take, one after the other, on a device that has run them before."""
    with Guarded(bench, programs) as guarded:
        for _ in range(MEASURED):
            bench.gpu.run(guarded.recording)
        return min(bench.seconds(lambda: bench.gpu.run(guarded.recording)) for _ in range(TURNS))


def copying(elements: int, size: int) -> GroupProgram:
    """y = x, four elements at once."""
    b = Builder("copying", size)
    x = b.binding("x", "f32", elements, "read", 4)
    y = b.binding("y", "f32", elements, "write", 4)
    groups = -(-elements // (4 * size))
    across = min(groups, 1 << 15)
    i = b.let(((b.group[1] * across + b.group[0]) * size + b.invocation) * 4)
    b.store(y, i, b.load(x, i, 4, where=i < elements), where=i < elements)
    return b.finish((across, -(-groups // across), 1))


def launch_seconds(bench: Bench) -> tuple[float, float]:
    """Seconds from a small launch to the next, and of a run of a single one."""
    (pipeline,) = bench.pipelines([copying(256, 64)])
    buffer = bench.gpu.buffer(4096)
    found = []
    for count in (LAUNCHES + 1, 1):
        recording = bench.gpu.record([Dispatch(pipeline, (
            (buffer, 2048 * (turn % 2)), (buffer, 2048 * (1 - turn % 2))))
            for turn in range(count)])
        for _ in range(MEASURED):
            bench.gpu.run(recording)
        run = partial(bench.gpu.run, recording)
        found.append(min(bench.seconds(run) for _ in range(TURNS)))
        recording.close()
    buffer.close()
    return max((found[0] - found[1]) / LAUNCHES, 0.0), found[1]


def link_rates(bench: Bench) -> tuple[float, float]:
    """Bytes a second to the device, and back."""
    gpu, data = bench.gpu, np.zeros(SENT_BYTES, np.uint8)
    buffer = gpu.buffer(SENT_BYTES)
    gpu.write(buffer, 0, data)
    upload = min(bench.seconds(lambda: gpu.write(buffer, 0, data)) for _ in range(TURNS))
    download = min(bench.seconds(lambda: gpu.read(buffer, 0, SENT_BYTES)) for _ in range(TURNS))
    buffer.close()
    return SENT_BYTES / max(upload, 1e-9), SENT_BYTES / max(download, 1e-9)
