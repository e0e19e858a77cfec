"""Maps, reductions, statistics and windows on drivers, against the interpreter of kernels.

Schedules are those first chosen for the device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from group_kernels import check_kernel, narrowed, regions, relative_error
from launches import launched
from webgpu_devices import webgpu  # noqa: F401

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.graph import OPERATIONS, Graph, Value
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.group import GroupMoments, GroupReduction

DEVICES = pytest.mark.parametrize("device", ["vulkan", "webgpu"])


def normalized(g: Graph, kind: str, shape: tuple[int, ...], channels: int, **more: int) -> Value:
    names = "s" if kind == "rms_normalization" else "sb"
    return g.apply(kind, g.input("x", shape), *(g.parameter(n, (channels,)) for n in names), **more)


def windowed(g: Graph, channels: int, behind: bool) -> Value:
    x = g.input("x", (2, channels, 9, 11))
    y = g.apply("conv", x, g.parameter("w", (channels, 1, 3, 3)), g.parameter("b", (channels,)),
                pads=(1, 1, 1, 1), group=channels)
    return g.apply("silu", y + g.input("r", y.shape)) if behind else y


GRAPHS: dict[str, Callable[[Graph], Value]] = {
    "pointwise": lambda g: g.apply("gelu", g.input("x", (3, 70)) * g.parameter("s", (70,))),
    "wide": lambda g: g.apply("silu", g.input("x", (700, 256))) + g.parameter("b", (256,)),
    "transpose": lambda g: g.input("x", (5, 7, 12)).transpose(2, 0, 1) * 2.0,
    "across": lambda g: g.input("x", (2, 40, 36)).transpose(0, 2, 1) + g.input("y", (36, 40)),
    "resize": lambda g: g.apply("resize", g.input("x", (1, 8, 3, 4)), scales=(1, 1, 2, 2)) + 1.0,
    "gather": lambda g: g.apply("gather", g.parameter("t", (9, 20)), g.input("i", (5,), "i32")),
    "concat": lambda g: g.apply("concat", g.input("x", (3, 9)), g.input("y", (3, 4)), axis=1) * 2.0,
    "rows": lambda g: g.apply("reduce_sum", g.input("x", (70, 203)), axes=(1,), keepdims=0),
    "columns": lambda g: g.apply("reduce_max", g.input("x", (203, 72)), axes=(0,), keepdims=0),
    "all": lambda g: g.apply("reduce_mean", g.input("x", (64, 64, 33)), axes=(0, 1, 2),
                             keepdims=0),
    "group": lambda g: normalized(g, "group_normalization", (2, 64, 5, 7), 64, num_groups=8),
    "large group": lambda g: normalized(g, "group_normalization", (1, 64, 48, 48), 64,
                                        num_groups=4),
    "layer": lambda g: normalized(g, "layer_normalization", (77, 320), 320),
    "rms": lambda g: normalized(g, "rms_normalization", (77, 48), 48),
    "depthwise": lambda g: windowed(g, 12, True), "odd depthwise": lambda g: windowed(g, 5, False),
    "pool": lambda g: g.apply("max_pool", g.input("x", (2, 19, 13, 17)), kernel_shape=(3, 3),
                              pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1), ceil_mode=1),
}


@DEVICES
@pytest.mark.parametrize("name, dtype", [
    *((name, "f32") for name in GRAPHS),
    *((name, "f16") for name in ("pointwise", "columns", "group", "layer", "depthwise")),
    ("wide", "bf16"), ("odd depthwise", "bf16")])
def test_kernels(name: str, dtype: str, device: str, request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(device)
    g = Graph(name)
    g.output("y", GRAPHS[name](g))
    for region in regions(g):
        check_kernel(narrowed(region.kernel, dtype), limits=gpu.limits, gpu=gpu)


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


