"""What it costs the host to run programs on a GPU through Vulkan, and how fast data come and go.

The programs are of 1,000 launches of a kernel that does next to nothing, each of which depends on
the one before it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from smalti.benchmark.table import Row, duration, show
from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import GroupProgram
from smalti.runtime.gpu.interface import Dispatch, Gpu
from smalti.runtime.vulkan import VulkanGpu, adapters

LAUNCHES, ELEMENTS = 1000, 64
RUN_SECONDS_MAX = 0.3e-3
RUNS = 30
TRANSFER_BYTES = 256 << 20


def increment(elements: int) -> GroupProgram:
    """y[i] = x[i] + 1."""
    b = Builder("increment", 64)
    x, y = b.binding("x", "f32", elements, "read"), b.binding("y", "f32", elements, "write")
    i = b.let(b.group[0] * 64 + b.invocation)
    b.store(y, i, b.load(x, i) + 1.0)
    return b.finish((elements // 64, 1, 1))


def launches(gpu: Gpu, count: int) -> list[Dispatch]:
    """`count` launches that write in turns the first and the second half of a buffer."""
    size, pipeline = 4 * ELEMENTS, gpu.pipeline(increment(ELEMENTS))
    buffer = gpu.buffer(2 * size)
    gpu.write(buffer, 0, np.zeros(2 * ELEMENTS, np.float32))
    return [Dispatch(pipeline, ((buffer, size * (i % 2)), (buffer, size * (1 - i % 2))))
            for i in range(count)]


def seconds(work: Callable[[], object], before: Callable[[], object], runs: int = RUNS) -> float:
    """The median time of `work`, after `before` each time."""
    taken = []
    for _ in range(runs):
        before()
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def rows(gpu: Gpu) -> list[Row]:
    """The measurements on one device."""
    program = launches(gpu, LAUNCHES)
    recording = gpu.record(program)
    data = np.ones(TRANSFER_BYTES, np.uint8)
    buffer = gpu.buffer(TRANSFER_BYTES)

    def whole() -> None:
        gpu.run(recording)
        gpu.wait()

    def write() -> None:
        gpu.write(buffer, 0, data)
        gpu.wait()

    submitted = seconds(lambda: gpu.run(recording), gpu.wait)
    timed = {
        f"recording {LAUNCHES} launches": duration(seconds(lambda: gpu.record(program),
                                                           gpu.wait, 5)),
        f"running {LAUNCHES} launches to the end": duration(seconds(whole, gpu.wait, 10)),
    }
    for name, work in (("writing", write),
                       ("reading", lambda: gpu.read(buffer, 0, TRANSFER_BYTES))):
        rate = TRANSFER_BYTES / seconds(work, gpu.wait, 5) / 1e9
        timed[f"{name} {TRANSFER_BYTES >> 20} MiB"] = f"{rate:.2f} GB/s"
    return [Row.at_most(f"submitting {LAUNCHES} launches", RUN_SECONDS_MAX * 1e3,
                        submitted * 1e3, " ms"),
            *(Row(what, "", measured, None) for what, measured in timed.items())]


def main() -> None:
    """Measure on the device whose number among those of Vulkan is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="vulkan:N, 0 unless given")
    number = parser.parse_args().device
    adapter = adapters()[number]
    with VulkanGpu(adapter, number) as gpu:
        found = rows(gpu)
    print(f"{adapter.name}, {adapter.driver}\n")
    print(show(found))
    sys.exit(any(row.ok is False for row in found))


if __name__ == "__main__":
    main()
