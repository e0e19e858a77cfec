"""The last level: products on the CPU that this runs on, every schedule measured.

A program of the one kernel is compiled; each of its schedules takes the kernel's place in turn, and
counts with its fastest run. All of it takes seconds, so sizes and spaces are small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smalti.dojo.space import Space
from smalti.dojo.task import Task, described
from smalti.errors import DeviceError, IllegalSchedule
from smalti.graph import Graph
from smalti.kernel.text import parse as parse_kernel
from smalti.machine.cpu import estimate_kernel
from smalti.runtime import compile_graph
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.model import modelled
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.cpu.trials import CpuTrials
from smalti.runtime.tuner import thinned
from smalti.schedule import Schedule, parse
from smalti.schedule.decisions import numbered

CANDIDATES_MAX = 96
"""Schedules of a product that are measured, so that it takes seconds; spaces have thousands."""
RUNS = 5
"""Runs of each schedule, of which the fastest counts."""


def on_this_cpu(m: int, n: int, k: int, threads: int = 1,
                candidates_max: int = CANDIDATES_MAX) -> Task:
    """A [m, k] times [k, n] product in f32 with `threads` threads here, as a task.

    At most so many schedules, all over the space that `smalti tune` searches, the first choice in
    front. Raises DeviceError on a CPU without code generator.
    """
    graph = Graph("product")
    x = graph.input("x", (m, k))
    graph.output("y", graph.apply("mat_mul", x, graph.parameter("w", (k, n))))
    program = compile_graph(graph, threads=threads)
    if not isinstance(program, NativeProgram):
        raise DeviceError("there is no code generator for this CPU, so nothing to measure")
    random = np.random.default_rng(0)
    weight = random.standard_normal((k, n)).astype(np.float32)
    program.bind({"w": weight})
    (region,) = (number for number, each in enumerate(program.module.regions)
                if each.form == "contraction")
    kernel = parse_kernel(program.module.kernels[program.module.regions[region].kernel])
    first = parse(program.module.regions[region].schedule)
    inputs = {"x": random.standard_normal((m, k)).astype(np.float32)}
    members, alternatives = [], []
    for member in thinned(CpuTrials(program).candidates(kernel, first), candidates_max):
        try:
            alternatives.append(Alternative(program.module, region, kernel, member,
                                            lambda name: weight))
        except IllegalSchedule:
            continue
        members.append(member)
    seconds = np.full(len(members), np.inf)
    for _ in range(RUNS):  # in turns, so that what else runs meanwhile hurts all alike
        for number, alternative in enumerate(alternatives):
            program.run(inputs, {region: alternative})
            seconds[number] = min(seconds[number], program.kernel_seconds()[region])
    device = modelled(program.module.target)
    expected = np.array([estimate_kernel(device, kernel, member, threads).seconds
                         for member in members])
    return Task(f"here {m}x{n}x{k}", space_of(members), described(device, m, n, k), expected,
                seconds)


def space_of(members: Sequence[Schedule]) -> Space:
    """Schedules of one kind as a space: the decisions in which they differ.

    >>> from smalti.schedule import MapSchedule
    >>> space_of([MapSchedule(8, 2), MapSchedule(4, 2)]).candidates.tolist()
    [[8], [4]]
    """
    rows = numbered(members)
    differing = [name for name, value in rows[0].items()
                 if any(row[name] != value for row in rows)]
    fields = differing or list(rows[0])[:1]
    return Space("cpu", tuple(fields),
                 np.array([[row[name] for name in fields] for row in rows]))
