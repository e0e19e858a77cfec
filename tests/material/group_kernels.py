"""Runs kernels as group programs in their interpreter, against the interpreter of kernels.

What lies between the elements of a strided buffer is NaN; the interpreter finds races and accesses
out of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.target import ran
from smalti.compiler.check import TOLERANCES, narrowed, operands, relative_error, strided
from smalti.compiler.targets import TARGETS
from smalti.fuse import Region, partition
from smalti.graph import Graph
from smalti.kernel import interpreter
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, GroupSchedule

Arrays = dict[str, np.ndarray]
LIMITS = GroupLimits(shared_bytes=32 << 10, invocations=256, bindings=16)
SUBGROUPS = (8, 32, 64)


def regions(graph: Graph) -> list[Region]:
    """The kernels of a graph."""
    return partition(graph, functions=FUNCTIONS).regions


def execute(kernel: Kernel, schedule: GroupSchedule, arrays: Mapping[str, np.ndarray],
            limits: GroupLimits = LIMITS, subgroup: int = 32,
            gpu: Gpu | None = None) -> tuple[Arrays, Arrays]:
    """The outputs of the group programs and what they should be, each by name.

    Arrays that are missing are random. The programs run in their interpreter, or on `gpu`.
    """
    memory, given = operands(kernel, TARGETS["spirv"])
    for name in memory.keys() & arrays.keys():
        view = strided(memory[name], kernel.buffer(name))
        view[...] = arrays[name]
        given[name] = view.astype(given[name].dtype)
    lowered = lower(kernel, schedule, limits)
    memory = ran(lowered, kernel, memory, lambda step, bound: launched(gpu, step, bound)
                 if gpu else run(step, bound, subgroup=subgroup))
    expected = interpreter.run(kernel, given)
    return {name: strided(memory[name], kernel.buffer(name)) for name in expected}, expected


def check_kernel(kernel: Kernel, schedule: GroupSchedule | None = None,
                 arrays: Mapping[str, np.ndarray] | None = None, limits: GroupLimits = LIMITS,
                 subgroup: int = 32, gpu: Gpu | None = None) -> GroupSchedule:
    """Assert that the group programs of a kernel compute what it means; gives the schedule."""
    schedule = schedule or choose_group(kernel, limits)
    found, expected = execute(kernel, schedule, arrays or {}, limits, subgroup, gpu)
    for name, array in expected.items():
        error = relative_error(found[name], array)
        assert error < TOLERANCES.get(kernel.buffer(name).dtype, 1e-5), (
            f"{name} is off by {error:.3g} with {schedule}\n{kernel}")
    return schedule


def check_graph(graph: Graph, form: str, dtype: str = "f32", subgroup: int = 32,
                limits: GroupLimits = LIMITS) -> list[GroupSchedule]:
    """Assert it of all kernels of a graph that are of one form, and that there are some."""
    found = [check_kernel(narrowed(region.kernel, dtype), limits=limits, subgroup=subgroup)
             for region in regions(graph)
             if isinstance(region, Region) and region.kernel.form == form]
    assert found, graph
    return found
