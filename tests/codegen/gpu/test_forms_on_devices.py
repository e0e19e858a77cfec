"""Reductions, statistics and functions on drivers, under schedules besides the first ones, which
`tests/runtime/test_check.py` runs."""

from __future__ import annotations

import numpy as np
import pytest
from group_kernels import check_kernel, regions, relative_error
from webgpu_devices import webgpu  # noqa: F401

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.graph import OPERATIONS, Graph, Value
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.group import GroupMoments, GroupReduction

DEVICES = pytest.mark.parametrize("device", ["vulkan", "webgpu"])


def normalized(g: Graph, kind: str, shape: tuple[int, ...], channels: int, **more: int) -> Value:
    names = "s" if kind == "rms_normalization" else "sb"
    return g.apply(kind, g.input("x", shape), *(g.parameter(n, (channels,)) for n in names), **more)


@DEVICES
@pytest.mark.parametrize("reducer", ["reduce_sum", "reduce_max"])
def test_sums_through_shared_memory_and_subgroups(reducer: str, device: str,
                                                  request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(device)
    g = Graph("rows")
    g.output("y", g.apply(reducer, g.input("x", (9, 203)), axes=(1,), keepdims=0))
    (region,) = regions(g)
    sizes = [0, gpu.limits.subgroup_max] if gpu.limits.subgroup_operations else [0]
    known = gpu.limits.subgroup_choice or gpu.limits.subgroup_min == gpu.limits.subgroup_max
    for subgroup in sizes if known else [0]:
        for share, parts in ((4, 1), (64, 3)):
            check_kernel(region.kernel, GroupReduction(64, share, 1, parts, subgroup),
                         limits=gpu.limits, gpu=gpu)


@DEVICES
def test_statistics_in_parts(device: str, request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(device)
    g = Graph("group")
    g.output("y", normalized(g, "group_normalization", (2, 12, 5, 7), 12, num_groups=3))
    kernel = regions(g)[0].kernel
    for parts in (1, 3):
        check_kernel(kernel, GroupMoments(64, 8, 4, parts), limits=gpu.limits, gpu=gpu)


@DEVICES
@pytest.mark.parametrize("lanes", [1, 4])
def test_functions(lanes: int, device: str, request: pytest.FixtureRequest) -> None:
    """All functions in one program, far out too; NaN stays NaN where the device keeps it."""
    gpu: Gpu = request.getfixturevalue(device)
    wide = np.concatenate([np.linspace(-80, 80, 200), np.linspace(-3, 3, 190), [
        0, 1, -1, 1e30, -1e30, 1e-30, 120, -120, np.inf, -np.inf]]).astype(np.float32)
    names = [n for n in FUNCTIONS if OPERATIONS[n].inputs[0] < 3 and n not in ("and", "or", "xor")]
    b = Builder("functions", 64)
    x, y = (b.binding(n, "f32", len(wide), "read", lanes) for n in "xy")
    out = b.binding("z", "f32", len(names) * len(wide), "write", lanes)
    i = b.let((b.group[0] * 64 + b.invocation) * lanes)
    with b.branch(i < len(wide)):
        operands = [b.let(b.load(source, i, lanes)) for source in (x, y)]
        for number, name in enumerate(names):
            made = FUNCTIONS[name](b, *operands[:OPERATIONS[name].inputs[0]])
            b.store(out, i + number * len(wide), made)
    program = b.finish((-(-len(wide) // (64 * lanes)), 1, 1))
    values = {"x": wide, "y": np.roll(wide, 7)}
    found = launched(gpu, program, values)["z"].reshape(len(names), -1)
    for name, row in zip(names, found, strict=True):
        operands = [values[n] for n in "xy"][:OPERATIONS[name].inputs[0]]
        with np.errstate(all="ignore"):
            exact = np.asarray(OPERATIONS[name].meaning(*operands), np.float64)
        usual = np.isfinite(exact) & (np.abs(exact) < 1e37) & (np.abs(operands[0]) < 8000)
        usual &= (exact == 0) | (np.abs(exact) > 1e-37)
        np.testing.assert_allclose(row[usual], exact[usual], rtol=1e-4 if name in (
            "silu", "sigmoid", "quick_gelu", "gelu_tanh", "pow") else 1e-5, atol=3e-7,
            err_msg=name)
        assert relative_error(row[usual][:200], exact[usual][:200]) < 1e-5, name


