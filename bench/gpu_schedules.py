"""Schedules of products on a GPU, measured: how good is the one that is chosen?

    python bench/gpu_schedules.py [--device 0] [--precision f16] [--kernels matmul,unet,decode]
        [--size 4096] [--most 24] [--longest 8]

For each kernel the schedules that the model of `schedule/space_group.py` finds fastest, up to
`--most` of them, are timed by the device's clock. Of a model the kernels with most operations are
taken, `--longest` of them. A line says what was chosen, what is best, and how the model ranks them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from gpu import product_graph

from smalti.benchmark.suite import CASES
from smalti.codegen.gpu.lower import lower
from smalti.compiler.options import Options
from smalti.compiler.passes import partitioned
from smalti.compiler.targets import TARGETS
from smalti.errors import IllegalSchedule
from smalti.fuse import Region
from smalti.graph import Graph
from smalti.graph.operation import DTYPES
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.interface import DeviceBuffer, Dispatch, Gpu
from smalti.runtime.vulkan import VulkanGpu, adapters
from smalti.schedule.group import GroupContraction, GroupLimits
from smalti.schedule.space_group import GroupWork, schedules

RUNS = 5


def kernels(graph: Graph, precision: str, longest: int) -> Iterator[tuple[Kernel, int]]:
    """The contractions of a graph that have most operations, each once, and their operations."""
    weights = dict.fromkeys(graph.parameters, precision) if precision != "f32" else {}
    target, options = TARGETS["spirv"], Options(precision, weights=tuple(weights.items()))
    found = {region.kernel: region.flops
             for region in partitioned(graph, target, GroupLimits(), options)[0].regions
             if isinstance(region, Region) and region.kernel.form == "contraction"}
    yield from sorted(found.items(), key=lambda pair: -pair[1])[:longest]


def filled(gpu: Gpu, dtype: str, elements: int) -> DeviceBuffer:
    """A buffer with normal numbers of a dtype."""
    kind = np.dtype(DTYPES[dtype])
    values = np.resize(np.random.default_rng(0).standard_normal(1 << 16), elements).astype(kind)
    data = np.zeros(-(-values.nbytes // 16) * 16, np.uint8)
    data[:values.nbytes] = values.view(np.uint8)
    buffer = gpu.buffer(data.nbytes)
    gpu.write(buffer, 0, data)
    return buffer


def seconds(gpu: Gpu, kernel: Kernel, schedule: GroupContraction) -> float:
    """The shortest of a few runs of a kernel under a schedule."""
    buffers: dict[str, DeviceBuffer] = {}
    launches = []
    for step in lower(kernel, schedule, gpu.limits).steps:
        for binding in step.bindings:
            if binding.name not in buffers:
                buffers[binding.name] = filled(gpu, binding.dtype, binding.elements)
        operands = tuple((buffers[binding.name], 0) for binding in step.bindings)
        launches.append(Dispatch(gpu.pipeline(step), operands))
    recording = gpu.record(launches, timed=True)
    taken = []
    for _ in range(RUNS):
        gpu.run(recording)
        gpu.wait()
        taken.append(sum(recording.seconds()))
    recording.close()
    for buffer in buffers.values():
        buffer.close()
    return min(taken)


def measured(gpu: Gpu, kernel: Kernel, precision: str,
             most: int) -> list[tuple[GroupContraction, float]]:
    """The schedules that should be fastest, best first by the model, and their times."""
    found, work = [], GroupWork.of(kernel, gpu.limits)
    for schedule in sorted(schedules(kernel, gpu.limits, precision), key=work.rank):
        if len(found) == most:
            break
        try:
            found.append((schedule, seconds(gpu, kernel, schedule)))
        except IllegalSchedule:
            continue
    return found


def line(kernel: Kernel, flops: int, found: list[tuple[GroupContraction, float]]) -> str:
    """What was chosen for a kernel, and what is best."""
    times = [took for _, took in found]
    (_, chosen), (best, least) = found[0], min(found, key=lambda pair: pair[1])
    places = np.argsort(np.argsort(times))
    ranks = float(np.corrcoef(np.arange(len(times)), places)[0, 1]) if len(times) > 2 else 1.0
    b, y, x, o = (n for _, n in kernel.stages[1].axes)
    depth = " x ".join(str(n) for _, n in kernel.stages[1].reduced)
    return (f"{b} x {y} x {x} x {o} over {depth}: chosen {1e3 * chosen:.3f} ms "
            f"({flops / chosen / 1e12:.2f} TFLOP/s), best {1e3 * least:.3f} ms "
            f"({chosen / least:.2f} x), rank correlation {ranks:.2f}\n"
            f"    {found[0][0]}\n    {best}")


def main() -> None:
    """Read the command line, measure, print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0, help="vulkan:N, 0 unless given")
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--kernels", default="matmul,unet,decode")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--most", type=int, default=24)
    parser.add_argument("--longest", type=int, default=8)
    given = parser.parse_args()
    adapter = adapters()[given.device]
    print(f"{adapter.name}, {adapter.driver}, {given.precision}")
    with VulkanGpu(adapter, given.device) as gpu:
        for name in given.kernels.split(","):
            graph = product_graph(given.size) if name == "matmul" else CASES[name].graph()
            for kernel, flops in kernels(graph, given.precision, given.longest):
                found = measured(gpu, kernel, given.precision, given.most)
                print(line(kernel, flops, found), flush=True)


if __name__ == "__main__":
    main()
