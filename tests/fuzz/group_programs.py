"""Random kernels with random schedules as group programs, against the interpreter of kernels.

    python tests/fuzz/group_programs.py --minutes 20 [--seed 0]

Kernels of every form, of any shape and dtype, are lowered for devices of several kinds: with the
schedule that is chosen, and with others that a device may refuse. The interpreter of group programs
runs them, and raises at races, accesses out of bounds, and barriers that not all reach. A case that
fails is made smaller, and shown as text.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, note, seed, settings

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "material")]
import integer_graphs  # noqa: E402
from attention_kernels import attention  # noqa: E402
from contraction_graphs import CONV_CASES, fitting, linear  # noqa: E402
from graph_strategies import graphs  # noqa: E402
from group_kernels import execute, narrowed, regions, relative_error  # noqa: E402

from smalti.codegen.gpu.lower import FORMS  # noqa: E402
from smalti.compiler.targets import TARGETS  # noqa: E402
from smalti.errors import IllegalSchedule  # noqa: E402
from smalti.fuse import partition  # noqa: E402
from smalti.graph import Graph  # noqa: E402
from smalti.kernel.form import Kernel  # noqa: E402
from smalti.schedule.choose_group import choose_group  # noqa: E402
from smalti.schedule.group import GroupLimits, GroupSchedule, MatrixShape  # noqa: E402
from smalti.schedule.merge import integer_sums  # noqa: E402

MATRICES = tuple(MatrixShape(*shape, factors, "f32") for shape in ((8, 8, 8), (16, 16, 16))
                 for factors in ("f16", "bf16"))
OF_BYTES = tuple(MatrixShape(*shape, "i8", "i32") for shape in ((8, 8, 8), (16, 16, 32)))
DEVICES = {
    "least": GroupLimits(bindings=8),
    "software": GroupLimits(32 << 10, 1024, 8, 8, subgroup_operations=True, bindings=16, f16=True),
    "large": GroupLimits(48 << 10, 1024, 32, 32, subgroup_operations=True, bindings=16, f16=True,
                         bf16=True, subgroup_choice=True, matrices=(*MATRICES, *OF_BYTES),
                         units=132),
    "wide": GroupLimits(64 << 10, 1024, 32, 64, subgroup_operations=True, bindings=16, f16=True,
                        subgroup_choice=True, matrices=MATRICES[2:3], units=60),
    "few registers": GroupLimits(48 << 10, 1024, 8, 32, subgroup_operations=True, bindings=16,
                                 f16=True, subgroup_choice=True, units=32, registers=128,
                                 matrices=(MatrixShape(8, 8, 16, "f16", "f32"),
                                           MatrixShape(8, 8, 32, "i8", "i32"))),
    "short grid": GroupLimits(bindings=16, grid=(3, 65535, 65535)),
}
ERRORS = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
CHUNK = 100
"""Cases between two looks at the clock."""


@st.composite
def reductions(draw: st.DrawFn) -> Graph:
    """A sum, mean or maximum over some axes."""
    g, shape = Graph("reduction"), draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    name = draw(st.sampled_from(("reduce_sum", "reduce_mean", "reduce_max")))
    g.output("y", g.apply(name, g.input("x", tuple(shape)), axes=tuple(sorted(axes)),
                          keepdims=draw(st.integers(0, 1))))
    return g


@st.composite
def normalizations(draw: st.DrawFn) -> Graph:
    """A normalisation of groups of channels, or of rows."""
    g, kind = Graph("normalization"), draw(st.sampled_from(("group", "layer", "rms")))
    if kind == "group":
        groups, each = draw(st.integers(1, 8)), draw(st.integers(1, 12))
        x = g.input("x", (draw(st.integers(1, 2)), groups * each, *draw(
            st.lists(st.integers(1, 12), min_size=1, max_size=2))))
        weights = (g.parameter(n, (groups * each,)) for n in "sb")
        g.output("y", g.apply("group_normalization", x, *weights, num_groups=groups))
        return g
    shape = tuple(draw(st.lists(st.integers(1, 70), min_size=1, max_size=3)))
    weights = (g.parameter(n, shape[-1:]) for n in ("sb" if kind == "layer" else "s"))
    g.output("y", g.apply(f"{kind}_normalization", g.input("x", shape), *weights, axis=-1))
    return g


@st.composite
def windows(draw: st.DrawFn) -> Graph:
    """A convolution of each channel by itself, or the mean or maximum of windows."""
    g, channels = Graph("windows"), draw(st.integers(1, 40))
    x = g.input("x", (draw(st.integers(1, 2)), channels, *(draw(st.integers(4, 12))
                                                           for _ in range(2))))
    rows, columns = (draw(st.integers(1, 4)) for _ in range(2))
    pads = tuple(draw(st.integers(0, n - 1)) for n in (rows, columns, rows, columns))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    kind = draw(st.sampled_from(("conv", "max_pool", "average_pool")))
    if kind == "conv":
        y = g.apply(kind, x, g.parameter("w", (channels, 1, rows, columns)), group=channels,
                    pads=pads, strides=strides)
    else:
        counted = {"count_include_pad": 1} if kind == "average_pool" else {}
        y = g.apply(kind, x, kernel_shape=(rows, columns), pads=pads, strides=strides,
                    dilations=(1, 1), ceil_mode=0, **counted)
    g.output("y", g.apply("relu", y))
    return g


def _signs(zero: int, dtypes: tuple[str, str]) -> tuple[tuple[str, str], tuple[int, int]]:
    """Dtypes of both factors of a product of bytes, and their zero points."""
    return dtypes, (zero + 128 * (dtypes[0] == "u8"), 128 * (dtypes[1] == "u8"))


LINEAR = st.builds(
    linear, st.tuples(st.integers(1, 3), st.integers(1, 30)), st.integers(1, 70),
    st.integers(1, 35).map(lambda half: 2 * half),
    st.sampled_from(["", "normalized", "gathered", "resized", "geglu", "embedded", "residual"]),
    st.booleans())
ATTENTION = st.builds(
    attention, st.integers(1, 40), st.integers(1, 90), st.integers(1, 2), st.integers(1, 40),
    st.sampled_from([0, 0, 1, 9, 24]), st.integers(1, 2), st.booleans(),
    st.sampled_from(["", "", "s", "st", "nhst"]), apart=st.sampled_from([0, 0, 1, 4]))
POINTS = st.tuples(st.integers(-128, 127), st.sampled_from([("u8", "i8"), ("i8", "u8")]))
INTEGERS = st.builds(
    lambda size, images, point: integer_graphs.convolution(
        4 * size[0], 1 + size[1] // 8, size[2], *_signs(*point), "f32", window=3) if images else
    integer_graphs.product(size[1], 4 * size[0], size[2], *_signs(*point), "f32"),
    st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 80)), st.booleans(), POINTS)
GRAPHS = {"map": graphs(), "reduction": reductions(), "normalization": normalizations(),
          "contraction": CONV_CASES.map(lambda case: fitting(case).graph()), "linear": LINEAR,
          "windows": windows()}


@st.composite
def kernels(draw: st.DrawFn) -> Kernel | None:
    """A kernel of a form that GPUs compute, of f32 or halves; None where a graph has none."""
    kind = draw(st.sampled_from([*GRAPHS, "attention", "integers"]))
    if kind == "integers":
        found = partition(draw(INTEGERS), (), TARGETS["spirv"].functions).regions
        return next((p.kernel for p in found if getattr(p, "kernel", None)
                     and p.kernel.form == "contraction"), None)
    if kind == "attention":
        kernel = draw(ATTENTION)
    else:
        known = [p.kernel for p in regions(draw(GRAPHS[kind])) if p.kernel.form in FORMS]
        if not known:
            return None
        kernel = draw(st.sampled_from(known))
    return narrowed(kernel, draw(st.sampled_from(("f32", "f16", "bf16"))))


@st.composite
def changed(draw: st.DrawFn, schedule: GroupSchedule, limits: GroupLimits) -> GroupSchedule:
    """A schedule with one or two other decisions, which may be impossible."""
    for field in draw(st.lists(st.sampled_from([f.name for f in fields(schedule)]), min_size=1,
                               max_size=2)):
        value = getattr(schedule, field)
        if field == "matrix":
            others = ["", *(m.text for m in limits.matrices)]
        elif isinstance(value, bool):
            others = [not value]
        elif isinstance(value, str):
            others = ["f32", "f16", "bf16", "i8"]
        else:
            others = [max(1, value // 2), value * 2, value + 4, 1, 2, 3, 8, 32]
        schedule = replace(schedule, **{field: draw(st.sampled_from(others))})
    return schedule


def check(kernel: Kernel, schedule: GroupSchedule, limits: GroupLimits, subgroup: int) -> None:
    """Assert that a schedule of a kernel computes what the kernel means."""
    arrays = {}
    if kernel.form == "contraction" and not integer_sums(kernel):  # sums keep a size of one
        shape = kernel.buffer("weight").shape
        arrays["weight"] = np.random.default_rng(1).standard_normal(shape) / np.sqrt(
            np.prod(shape[-3:]))
    found, means = execute(kernel, schedule, arrays, limits, subgroup)
    dtypes = {"f32", *(b.dtype for b in kernel.buffers),
              *(getattr(schedule, name, "f32") for name in ("dtype", "weights"))}
    allowed = max(ERRORS.get(dtype, 0.0) for dtype in dtypes)
    for name, expected in means.items():
        close = np.allclose(found[name].astype(np.float64), expected.astype(np.float64), allowed,
                            allowed, equal_nan=True)
        error = relative_error(found[name], expected)
        assert close or error < allowed, f"{name} is off by {error:.3g}"


@st.composite
def cases(draw: st.DrawFn) -> tuple[Kernel, GroupSchedule, GroupLimits, int] | None:
    """A kernel, a schedule, a device, and the size of its subgroups."""
    kernel, limits = draw(kernels()), DEVICES[draw(st.sampled_from(sorted(DEVICES)))]
    if kernel is None:
        return None
    precision = draw(st.sampled_from(("f32", "f16", "bf16")))
    schedule = choose_group(kernel, limits, precision)
    if draw(st.booleans()):
        schedule = draw(changed(schedule, limits))
    subgroup = draw(st.sampled_from([n for n in (8, 16, 32, 64)
                                     if limits.subgroup_min <= n <= limits.subgroup_max]))
    return kernel, schedule, limits, getattr(schedule, "subgroup", 0) or subgroup


def explore(number: int, examples: int) -> Counter[tuple[str, str]]:
    """How the cases of a seed ended, by the form of the kernel; raises at one that fails."""
    counts: Counter[tuple[str, str]] = Counter()

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(cases())
    def all_agree(case: tuple[Kernel, GroupSchedule, GroupLimits, int] | None) -> None:
        if case is None:
            return
        kernel, schedule, limits, subgroup = case
        note(f"{schedule}\n{limits}\nin subgroups of {subgroup}\n{kernel}")
        try:
            check(kernel, schedule, limits, subgroup)
        except IllegalSchedule:
            counts[kernel.form, "refused"] += 1
            return
        counts[kernel.form, "agreed"] += 1

    all_agree()
    return counts


def main() -> None:
    """Explore until the time is over; a failure ends it, with the smallest case."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, number, end = Counter(), given.seed, time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        print(f"seed {number}", flush=True)
        counts += explore(number, CHUNK)
        number += 1
    for (form, how), count in sorted(counts.items()):
        print(f"{count:8d} {form} {how}")


if __name__ == "__main__":
    main()
