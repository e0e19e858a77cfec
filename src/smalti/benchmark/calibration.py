"""`smalti calibrate`: what this CPU does in a second, and how far the timing model is from it.

First the rates that the model takes for granted (`probes.py`), then some kernels through the
compiler, to which its constants are fitted. All of it takes less than ten seconds.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date

import numpy as np

from smalti import machine, nn
from smalti.compiler.prediction import launches
from smalti.errors import DeviceError
from smalti.graph import Graph, Value
from smalti.machine import cpu
from smalti.machine.cpu.fitting import Sample, fitted
from smalti.machine.detection import at_level
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu import probes
from smalti.runtime.cpu.adapter import cpu as processor
from smalti.runtime.cpu.adapter import feature_level
from smalti.runtime.cpu.model import modelled_code
from smalti.runtime.cpu.program import NativeProgram

ROUNDS, SECONDS_EACH, RUNS_MIN = 3, 0.02, 3
"""Each kernel is timed in three rounds, for 20 ms or three runs each: all together then take less
than ten seconds, which the command promises."""
FASTEST = 10
"""The time that counts is that of the fastest tenth of the runs: others disturb a run, and nothing
makes it faster than it is."""
MEMORY_BYTES_MIN = 64 << 20
"""Bytes that are read to measure main memory, at least; four times the last cache, if that is more,
so that little of them is still there."""
PRECISIONS = ("f32", "bf16")
WINOGRAD = "conv 3x3, "
"""Kernels whose products are f32 in both precisions."""
Progress = Callable[[str], None]


def image(graph: Graph, channels: int, side: int) -> Value:
    """A square image, as a kernel leaves it."""
    return nn.conv2d(graph.input("x", (1, 8, side, side)), "first", channels, 1)


def rows(graph: Graph, count: int, width: int) -> Value:
    """Tokens, as a kernel leaves them."""
    return nn.linear(graph.input("x", (1, count, 64)), "first", width)


def attended(graph: Graph, count: int, heads: int, depth: int) -> Value:
    """Self-attention without its projections."""
    x = rows(graph, count, heads * depth)
    return graph.apply("attention", x, x, x, num_heads=heads)


KERNELS: dict[str, Callable[[Graph], Value]] = {
    "conv 3x3, 64 of 64": lambda g: nn.conv2d(image(g, 64, 64), "w", 64, 3),
    "conv 3x3, 320 of 32": lambda g: nn.conv2d(image(g, 320, 32), "w", 320, 3),
    "conv 3x3, 640 of 16": lambda g: nn.conv2d(image(g, 640, 16), "w", 640, 3),
    "conv 3x3, 1280 of 8": lambda g: nn.conv2d(image(g, 1280, 8), "w", 1280, 3),
    "conv 3x3, 256 of 64": lambda g: nn.conv2d(image(g, 256, 64), "w", 256, 3),
    "conv 3x3, 512 of 64": lambda g: nn.conv2d(image(g, 512, 64), "w", 512, 3),
    "conv 3x3, 1920 of 32": lambda g: nn.conv2d(image(g, 1920, 32), "w", 640, 3),
    "conv 3x3 behind an enlargement": lambda g: nn.conv2d(
        nn.upsample_nearest(image(g, 256, 32)), "w", 256, 3),
    "conv 3x3 in steps of 2": lambda g: nn.conv2d(image(g, 320, 32), "w", 320, 3, stride=2),
    "conv 1x1, 16 of 112": lambda g: nn.conv2d(image(g, 16, 112), "w", 96, 1),
    "conv 1x1, 960 of 7": lambda g: nn.conv2d(image(g, 960, 7), "w", 320, 1),
    "depthwise, 96 of 112": lambda g: nn.conv2d(image(g, 96, 112), "w", 96, 3, groups=96),
    "depthwise, 576 of 14": lambda g: nn.conv2d(image(g, 576, 14), "w", 576, 3, groups=576),
    "product 4096 x 320 x 1280": lambda g: nn.linear(rows(g, 4096, 320), "w", 1280),
    "product 1024 x 640 x 640": lambda g: nn.linear(rows(g, 1024, 640), "w", 640),
    "product 77 x 768 x 3072": lambda g: nn.linear(rows(g, 77, 768), "w", 3072),
    "product 77 x 1280 x 10240": lambda g: nn.linear(rows(g, 77, 1280), "w", 10240),
    "product 1 x 1280 x 1000": lambda g: nn.linear(rows(g, 1, 1280), "w", 1000),
    "attention 2048, 8 x 40": lambda g: attended(g, 2048, 8, 40),
    "attention 512, 8 x 80": lambda g: attended(g, 512, 8, 80),
    "attention 77, 12 x 64": lambda g: attended(g, 77, 12, 64),
    "normalised image": lambda g: nn.conv2d(
        nn.silu(nn.group_norm(image(g, 320, 64), "n", 32, 1e-5)), "w", 4, 1),
    "normalised rows": lambda g: nn.linear(nn.layer_norm(rows(g, 4096, 320), "n"), "w", 32),
}
"""Kernels of all kinds at sizes that models have, each behind a first one that leaves its input
where kernels do, and is not counted."""


def calibrated(target: str, threads: int, progress: Progress) -> cpu.CpuCalibration:
    """Measure this CPU with `threads` threads and code of the feature level `target`."""
    rates = measured_rates(target, threads, progress)
    timed = measured_kernels(target, threads, progress)
    rates = better(rates, measured_rates(target, threads, progress))
    progress("fitting")
    chosen = feature_level(target)
    device = at_level(rates.applied(machine.detect(processor()), ""), chosen.lanes, chosen.pairs)
    samples = [sample for program, seconds in timed
               for sample in counted(device, program, seconds)]
    constants, before, after = fitted(samples)
    return replace(rates, constants=dict(constants), error=(before, after))


def better(one: cpu.CpuCalibration, other: cpu.CpuCalibration) -> cpu.CpuCalibration:
    """Of two measurements the larger rates and the shorter times: what disturbs only slows down."""
    return replace(
        one, **{name: max(getattr(one, name), getattr(other, name))
                for name in ("clock", "f32", "bf16", "l2", "l3", "memory", "reach")},
        launch=min(one.launch, other.launch),
        latency={name: min(seconds, other.latency[name]) for name, seconds in one.latency.items()})


def measured_rates(target: str, threads: int, progress: Progress) -> cpu.CpuCalibration:
    """The rates of this CPU, with no constants yet."""
    chosen, found = feature_level(target), processor()
    progress("clock, multiply-adds, barriers")
    clock, flops = probes.clock(chosen), probes.flops(chosen, False, threads)
    pairs = probes.flops(chosen, True, threads) if chosen.pairs else 0.0
    launch = probes.barrier(chosen, threads)
    progress("caches and memory")
    near = probes.bandwidth(chosen, found.l2_bytes // 2, threads)
    last = probes.bandwidth(chosen, max(2 * found.l2_bytes, found.l3_bytes // (4 * threads)),
                            threads)
    far = max(MEMORY_BYTES_MIN, 4 * found.l3_bytes // threads)
    memory = probes.bandwidth(chosen, far, threads)
    alone = probes.bandwidth(chosen, far, 1) if threads > 1 else memory
    latency = {name: probes.latency(chosen, size) for name, size in (
        ("l1", found.l1_bytes // 2), ("l2", found.l2_bytes // 2), ("l3", found.l3_bytes // 2),
        ("memory", max(MEMORY_BYTES_MIN, 4 * found.l3_bytes)))}
    return cpu.CpuCalibration(
        found.name, threads, platform.release(), modelled_code(), date.today().isoformat(),
        clock=clock, f32=flops, bf16=pairs, l2=near, l3=min(last, near), memory=min(memory, last),
        reach=min(alone, memory), launch=max(launch, 1e-8), latency=latency)


def measured_kernels(target: str, threads: int,
                     progress: Progress) -> list[tuple[NativeProgram, np.ndarray]]:
    """Small programs and the seconds of their kernels; they run in turns.

    What counts is the median of the fastest runs: what else this machine does only adds to a run,
    but within one, what one kernel seems to save the next may have lost.
    """
    programs = []
    for name, build in KERNELS.items():
        for precision in PRECISIONS[:1 if name.startswith(WINOGRAD) else None]:
            progress(f"compiling {name}, {precision}")
            programs.append(prepared(name, build, precision, target, threads))
    taken: list[list[np.ndarray]] = [[] for _ in programs]
    for turn in range(ROUNDS):
        for number, (program, inputs) in enumerate(programs):
            progress(f"turn {turn + 1} of {ROUNDS}, {program.name}")
            program.run(inputs)
            started, most = time.perf_counter(), len(taken[number]) + RUNS_MIN
            while len(taken[number]) < most or time.perf_counter() - started < SECONDS_EACH:
                program.run(inputs)
                taken[number].append(program.kernel_seconds())
    return [(program, typical(runs)) for (program, _), runs in zip(programs, taken, strict=True)]


def typical(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Seconds of each kernel: the median of the fastest tenth of the runs.

    >>> typical([np.array(run) for run in ([1.0, 2.0], [9.0, 9.0], [1.0, 8.0])]).tolist()
    [1.0, 2.0]
    """
    fastest = sorted(runs, key=np.sum)[:-(-len(runs) // FASTEST)]
    return np.median(fastest, axis=0)


def counted(device: machine.DeviceModel, program: NativeProgram,
            seconds: np.ndarray) -> Iterator[Sample]:
    """Counts and seconds of the kernels of a program but the first."""
    found = launches(program.module)
    counts = cpu.program_counts(cpu.core_of(device), list(found.values()), program.crew,
                                program.module.arena_bytes)
    for number, steps in list(zip(found, counts, strict=True))[1:]:
        yield steps, float(seconds[number])


def prepared(name: str, build: Callable[[Graph], Value], precision: str, target: str,
             threads: int) -> tuple[NativeProgram, dict[str, np.ndarray]]:
    """A small program with random weights, and its input."""
    graph, random = Graph(name), np.random.default_rng(0)
    graph.output("y", build(graph))
    program = compile_graph(graph, precision=precision, threads=threads, target=target)
    if not isinstance(program, NativeProgram):
        raise DeviceError(f"this CPU does not run {target}, so no kernels can be measured")
    program.bind(lambda name: random.standard_normal(
        graph.parameters[name].shape, np.float32) * np.float32(0.05))
    return program, {"x": random.standard_normal(graph.inputs["x"].shape, np.float32)}
