"""Products and parts of Stable Diffusion 1.5 on a GPU, beside PyTorch on the same GPU.

    python bench/gpu.py [--device vulkan:0] [--precision f16] [--works matmul,unet,decode,compile]
        [--size 4096] [--runs 20] [--json FILE]

PyTorch runs where it has CUDA: eagerly, in halves, channels-last. Weights are seeded numbers. Of a
product the device's clock is taken; of a model the whole call, which brings latents and context to
the device and the result back, against PyTorch with everything on the device. "compile" is the time
from the graph of the UNet to its code, without what the driver makes of that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from report import finish

import smalti
from smalti.benchmark import cuda
from smalti.benchmark.suite import CASES, Case, normal
from smalti.benchmark.table import Row, duration
from smalti.compiler.passes import compiled
from smalti.graph import Graph
from smalti.runtime.gpu.compilation import recipe_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.vulkan import driver as vulkan
from smalti.runtime.webgpu import driver as webgpu

WORKS = ("matmul", "unet", "decode", "compile")
COMPILE_SECONDS_MAX = 10.0
OVER_TORCH = {"matmul": 2.0, "unet": 1.5, "decode": 1.5}
"""Our time over PyTorch's, at most: for a product that is half of what cuBLAS reaches."""


@dataclass(frozen=True)
class Time:
    """Median seconds of a call, and those that the device's clock counts of one; operations."""

    call: float
    device: float
    flops: int


def product_graph(size: int) -> Graph:
    """A square matrix times a weight."""
    g = Graph("matmul")
    g.output("y", g.apply("mat_mul", g.input("x", (size, size)), g.parameter("w", (size, size))))
    return g


def ours(graph: Graph, inputs: Mapping[str, np.ndarray], read: Callable[[str], np.ndarray],
         device: str, precision: str, runs: int) -> Time:
    """How long a graph takes on a device."""
    program = smalti.compile(graph, device=device, precision=precision)
    program.bind({name: read(name) for name in graph.parameters})
    program.run(inputs)
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        program.run(inputs)
        taken.append(time.perf_counter() - started)
    each = [float(program.profile(inputs).sum()) for _ in range(max(1, runs // 4))]
    return Time(statistics.median(taken), statistics.median(each),
                sum(region.flops for region in program.module.regions))


def cuda_seconds(work: Callable[[], object], runs: int) -> float:
    """Median seconds of `work` in PyTorch, by the device's clock."""
    import torch

    taken = []
    with torch.inference_mode():
        for run in range(runs + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            taken += [start.elapsed_time(end) / 1e3] if run >= 3 else []
    return statistics.median(taken)


def torch_product(size: int) -> Callable[[], object]:
    """The product in PyTorch."""
    import torch

    x, w = (cuda.tensor(normal(seed, size, size), "f16") for seed in (1, 2))
    return lambda: torch.matmul(x, w)


def row(work: str, title: str, found: Time, peer: float | None) -> Row:
    """One line of the table."""
    seconds = found.device if work == "matmul" else found.call
    said = (f"{duration(seconds)}, {duration(found.device)} on the device, "
            f"{found.flops / found.device / 1e12:.2f} TFLOP/s")
    if peer is None:
        return Row(title, "", said, None)
    bound, over = OVER_TORCH[work], seconds / peer
    return Row(title, f"<= {bound:g} x torch", f"{over:.2f} x ({said}; torch {duration(peer)})",
               over <= bound)


def opened(device: str) -> Gpu:
    """The GPU of this id."""
    return (vulkan if device.startswith("vulkan") else webgpu).opened(device)


def compile_row(case: Case, device: str, precision: str) -> Row:
    """How long it takes from a graph to code for a device."""
    gpu, graph = opened(device), case.graph()
    started = time.perf_counter()
    recipe = recipe_for(gpu, graph, precision=precision, held=case.held)
    module = compiled(graph, gpu.target, gpu.limits, recipe.options)
    seconds = time.perf_counter() - started
    return Row(f"compile {case.title}, {precision}", f"<= {duration(COMPILE_SECONDS_MAX)}",
               f"{duration(seconds)}, {len(module.functions)} programs of {len(module.launches)} "
               f"launches", seconds <= COMPILE_SECONDS_MAX)


def rows(works: Mapping[str, Case | int], device: str, precision: str, runs: int) -> list[Row]:
    """All measurements: the size of a product, or a model of the suite, by name."""
    found, has_torch = [], not cuda.absence(opened(device).device.name)
    for work, what in works.items():
        if work == "compile":
            found.append(compile_row(what, device, precision))
            continue
        if isinstance(what, int):
            graph, inputs = product_graph(what), {"x": normal(1, what, what)}
            read, title = partial(lambda n, _: normal(2, n, n), what), f"matmul {what}"
            peer = partial(torch_product, what)
        else:
            graph, inputs, read, title = what.graph(), what.inputs(), what.read(), what.title
            peer = partial(cuda.call, what, "f16")
        time_ = ours(graph, inputs, read, device, precision, runs)
        found.append(row(work, f"{title}, {precision}", time_,
                         cuda_seconds(peer(), runs) if has_torch else None))
    return found


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="vulkan:0")
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--works", default=",".join(WORKS), help="of " + ", ".join(WORKS))
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    works = {name: given.size if name == "matmul" else
             CASES["unet" if name == "compile" else name] for name in given.works.split(",")}
    return finish(rows(works, given.device, given.precision, given.runs), given.json)


if __name__ == "__main__":
    raise SystemExit(main())
