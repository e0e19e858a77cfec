"""Runs kernels as group programs in their interpreter, against the interpreter of kernels.

What lies between the elements of a strided buffer is NaN; the interpreter finds races and accesses
out of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from launches import launched

from smalti.codegen.gpu import lower, run
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.codegen.gpu.lowered import extent, stored_dtype
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.target import WORKSPACE
from smalti.fuse import Region, partition
from smalti.graph import Graph
from smalti.kernel import interpreter
from smalti.kernel.form import ELEMENT_BYTES, Buffer, Kernel
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, GroupSchedule

Arrays = dict[str, np.ndarray]
LIMITS = GroupLimits(shared_bytes=32 << 10, invocations=256, bindings=16)
ERRORS = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
SUBGROUPS = (8, 32, 64)


def regions(graph: Graph) -> list[Region]:
    """The kernels of a graph."""
    return partition(graph, functions=FUNCTIONS).regions


def narrowed(kernel: Kernel, dtype: str) -> Kernel:
    """The kernel with `dtype` for everything of f32 that is no statistic."""
    return replace(kernel, buffers=tuple(
        replace(b, dtype=dtype) if b.dtype == "f32" and b.role != "local"
        and b.name not in ("scale", "shift", "gamma", "beta") else b for b in kernel.buffers))


def strided(memory: np.ndarray, buffer: Buffer) -> np.ndarray:
    """The elements of a buffer, in their logical shape, where they lie."""
    strides = [stride * memory.itemsize for stride in buffer.strides]
    return np.lib.stride_tricks.as_strided(memory, buffer.shape, strides)


def random_array(buffer: Buffer, rng: np.random.Generator) -> np.ndarray:
    """Values of a buffer's dtype: normal ones, or row numbers of any table."""
    if buffer.dtype in ("f32", "f16", "bf16"):
        return rng.standard_normal(buffer.shape)
    return rng.integers(0, 2, buffer.shape)


def execute(kernel: Kernel, schedule: GroupSchedule, arrays: Mapping[str, np.ndarray],
            limits: GroupLimits = LIMITS, subgroup: int = 32,
            gpu: Gpu | None = None) -> tuple[Arrays, Arrays]:
    """The outputs of the group programs and what they should be, each by name.

    Arrays that are missing are random. The programs run in their interpreter, or on `gpu`.
    """
    rng, memory, given = np.random.default_rng(0), {}, {}
    for buffer in kernel.buffers:
        if buffer.role == "local":
            continue
        dtype = STORED_DTYPES[stored_dtype(buffer)]
        hole = 77 if np.issubdtype(dtype, np.integer) else np.nan
        memory[buffer.name] = np.full(extent(buffer), hole, dtype)
        if buffer.role != "output":
            view = strided(memory[buffer.name], buffer)
            view[...] = arrays.get(buffer.name, random_array(buffer, rng))
            given[buffer.name] = view.astype(np.float32) if hole is np.nan else view.copy()
    lowered = lower(kernel, schedule, limits)
    if lowered.packed:
        packed = lowered.packed
        memory[packed.buffer] = np.asarray(packed.pack(given[packed.buffer])).reshape(-1)
    workspace = np.full(lowered.workspace_bytes, 0xFF, np.uint8)
    for step in lowered.steps:
        spaces = {b.name: workspace[:b.elements * ELEMENT_BYTES[b.dtype]].view(
            STORED_DTYPES[b.dtype]) for b in step.bindings if b.name == WORKSPACE}
        bound = {b.name: memory[b.name] for b in step.bindings if b.name != WORKSPACE} | spaces
        found = launched(gpu, step, bound) if gpu else run(step, bound, subgroup=subgroup)
        for name, values in found.items():
            if name == WORKSPACE:
                workspace[:values.nbytes] = values.view(np.uint8)
            else:
                memory[name] = values
    expected = interpreter.run(kernel, given)
    return {name: strided(memory[name], kernel.buffer(name)) for name in expected}, expected


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the Euclidean norm; inf where one of them is NaN."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    found, expected = np.nan_to_num(found), np.nan_to_num(expected)
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))


def check_kernel(kernel: Kernel, schedule: GroupSchedule | None = None,
                 arrays: Mapping[str, np.ndarray] | None = None, limits: GroupLimits = LIMITS,
                 subgroup: int = 32, gpu: Gpu | None = None) -> GroupSchedule:
    """Assert that the group programs of a kernel compute what it means; gives the schedule."""
    schedule = schedule or choose_group(kernel, limits)
    found, expected = execute(kernel, schedule, arrays or {}, limits, subgroup, gpu)
    for name, array in expected.items():
        error = relative_error(found[name], array)
        assert error < ERRORS.get(kernel.buffer(name).dtype, 1e-5), (
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
