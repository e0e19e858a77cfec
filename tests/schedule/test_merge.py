"""Merged axes visit the same addresses, in the same pairs, as the axes of the kernel do."""

from __future__ import annotations

import itertools

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel import build
from smalti.kernel.form import Buffer, Call, Index, Kernel, Load, loads
from smalti.schedule import merge
from smalti.schedule.merge import Access, access, contraction_extents, map_axes, store

EXAMPLES = 100
ROWS = 7


def table(number: int) -> int:
    """What a lookup finds at an address: any function will do."""
    return (5 * number + 3) % ROWS


def address(a: Access, point: dict[str, int]) -> int:
    """Where an access goes at a point of the axes."""
    at = a.offset + sum(stride * point.get(name, 0) for name, stride in a.strides)
    for stride, index in a.divided:
        inner = index.offset + sum(c * point.get(name, 0) for name, c in index.terms)
        at += stride * (inner // index.divisor)
    return at + sum(stride * table(address(inner, point)) for stride, inner in a.indirect)


def element(kernel: Kernel, load: Load, point: dict[str, int]) -> int:
    """The same, straight from the kernel's own form."""
    total = 0
    for index, stride in zip(load.index, kernel.buffer(load.buffer).strides, strict=True):
        if isinstance(index, Load):
            total += stride * table(element(kernel, index, point))
        else:
            inner = index.offset + sum(c * point[name] for name, c in index.terms)
            total += stride * (inner // index.divisor)
    return total


def visited(axes, accesses) -> list[tuple[int, ...]]:
    """The addresses of all accesses at every point, sorted."""
    names = [name for name, _ in axes]
    return sorted(tuple(address(a, dict(zip(names, point, strict=True))) for a in accesses)
                  for point in itertools.product(*(range(n) for _, n in axes)))


def strides_of(draw: st.DrawFn, extents: list[int]) -> tuple[int, ...]:
    """Dense strides in some order, some of them 0, or with gaps."""
    order = draw(st.permutations(range(len(extents))))
    strides, step = [0] * len(extents), 1
    for axis in order:
        strides[axis] = 0 if draw(st.integers(0, 4)) == 0 else step
        step *= extents[axis] + draw(st.sampled_from([0, 0, 0, 1]))
    return tuple(strides)


@st.composite
def maps(draw: st.DrawFn) -> Kernel:
    extents = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    axes = [(f"i{k}", n) for k, n in enumerate(extents)]
    value, buffers = None, []
    for number in range(draw(st.integers(1, 3))):
        name, kind = f"x{number}", draw(st.sampled_from(["plain", "plain", "divided", "lookup"]))
        index = [Index(((axis, 1),), draw(st.integers(0, 2))) for axis, _ in axes]
        strides = strides_of(draw, [n + 2 for n in extents])
        if kind == "divided" and axes:
            k = draw(st.integers(0, len(axes) - 1))
            index[k] = Index(index[k].terms, index[k].offset, draw(st.integers(2, 3)))
        if kind == "lookup" and axes:
            inner = [Index(((axis, 1),)) for axis, _ in axes[:-1]]
            buffers.append(Buffer(f"r{number}", "input", tuple(extents[:-1]),
                                  strides_of(draw, extents[:-1]), "i32"))
            index = [Load(f"r{number}", tuple(inner)), index[-1]]
            strides = (17, strides[-1])
        buffers.append(Buffer(name, "input", (9,) * len(index), strides[:len(index)]))
        load = Load(name, tuple(index))
        value = load if value is None else Call("add", (value, load))
    dense = strides_of(draw, extents)
    step = 1
    order = sorted(range(len(extents)), key=lambda k: dense[k])
    out = [0] * len(extents)
    for k in order:  # a result has a place of its own for every point
        out[k] = step
        step *= extents[k]
    buffers.append(Buffer("out", "output", tuple(extents), tuple(out)))
    return build.map_over(axes, value, buffers)


@examples(EXAMPLES)
@given(maps())
def test_merged_maps_visit_the_same_addresses(kernel: Kernel) -> None:
    (stage,) = kernel.stages
    axes, accesses = map_axes(kernel)
    out = store(kernel, stage.axes, "out")
    wanted = list(dict.fromkeys(loads(stage.value)))
    names = [name for name, _ in stage.axes]
    strides = dict(zip(names, kernel.buffer("out").strides, strict=True))
    expected = []
    for point in itertools.product(*(range(n) for _, n in stage.axes)):
        at = dict(zip(names, point, strict=True))
        expected.append((sum(strides[n] * i for n, i in at.items()),
                         *(element(kernel, load, at) for load in wanted)))
    assert visited(axes, [out, *accesses]) == sorted(expected)


@examples(EXAMPLES)
@given(maps())
def test_the_vector_axis_is_neither_divided_nor_looked_up(kernel: Kernel) -> None:
    axes, accesses = map_axes(kernel)
    vector = axes[-1][0]
    for a in accesses:
        assert all(index.coefficient(vector) == 0 for _, index in a.divided)
        assert all(inner.stride(vector) == 0 for _, inner in a.indirect)


def test_dense_axes_become_one() -> None:
    g = Graph("dense")
    g.output("y", g.input("x", (2, 6, 4, 5)) * g.input("z", (2, 6, 4, 5)))
    axes, _ = map_axes(partition(g).regions[0].kernel)
    assert axes == (("i1", 240),)  # channels lie innermost
    g = Graph("long")
    g.output("y", g.input("x", (2, 320, 64, 8)) * g.input("z", (2, 320, 64, 8)))
    assert map_axes(partition(g).regions[0].kernel)[0] == (("i3", 1024), ("i1", 320)), "to be tiled"
    g = Graph("rows")
    g.output("y", g.input("x", (2, 3, 4)) + g.input("z", (4,)))
    assert map_axes(partition(g).regions[0].kernel)[0] == (("i1", 6), ("i2", 4))


@examples(EXAMPLES)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]),
       st.sampled_from(["", "slice", "residual", "time", "resize"]))
def test_merged_contractions_visit_the_same_addresses(b: int, y: int, x: int, window: int,
                                                      kind: str) -> None:
    g = Graph("conv")
    image = g.input("x", (b, 6, y, x))
    if kind == "slice":
        image = g.apply("slice", image, axis=3, start=0, end=max(1, x - 1))
    if kind == "resize":
        image = g.apply("resize", image, scales=(1, 1, 2, 2))
    side = window // 2
    out = g.apply("conv", image, g.parameter("w", (5, 6, window, window)), pads=(side,) * 4)
    if kind == "residual":
        out = out + g.input("r", out.shape)
    if kind == "time":
        out = out + g.input("t", (b, 5)).reshape(b, 5, 1, 1)
    g.output("y", out)
    kernel = partition(g).regions[0].kernel
    e = contraction_extents(kernel)
    patch, _, last = kernel.stages
    assert e.b * e.y * e.x == int(np.prod([n for _, n in last.axes[:3]]))
    merged = [("b", e.b), ("y", e.y), ("x", e.x)]
    plain = list(last.axes[:3])
    accesses = [store(kernel, last.axes, "out")]
    accesses += [access(kernel, load) for load in loads(last.value) if load.buffer != "sum"]
    if window == 1:
        accesses += [access(kernel, load) for load in loads(patch.value)]
    if (e.b, e.y) == (1, 1) and kind != "resize":
        assert visited(merged, accesses) == visited(plain, accesses)
    else:
        assert merged == plain or visited(merged, accesses) == visited(plain, accesses)
    if window == 1 and kind in ("", "residual") and x > 1:
        assert (e.b, e.y) == (1, 1), "one pixel at a time, dense: a matrix"


def test_what_is_kept_of_kernels_is_bounded() -> None:
    """A server compiles for other sizes as long as it runs."""
    kept = [each for each in vars(merge).values() if hasattr(each, "cache_parameters")]
    assert contraction_extents in kept
    assert {each.cache_parameters()["maxsize"] for each in kept} == {merge.KEPT_MAX}
