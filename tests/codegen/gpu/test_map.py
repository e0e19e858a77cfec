"""Maps as group programs: pointwise operations and data movement, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from group_kernels import LIMITS, check_graph, check_kernel, execute, regions
from hypothesis import given
from hypothesis import strategies as st

from smalti.codegen.gpu.form import GroupLoad, Store, expressions, statements
from smalti.codegen.gpu.lower import lower
from smalti.errors import IllegalSchedule
from smalti.graph import Graph, Value
from smalti.kernel.build import map_over
from smalti.kernel.form import Buffer, Call, Kernel, Load, axis
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupMap

SHAPES = [(1,), (7,), (8,), (16,), (33,), (3, 5), (2, 1, 40), (4, 70), (2, 3, 4, 5), (1, 20, 7, 3),
          (2, 16, 1, 1), (3, 1, 6, 2), ()]


def only(graph: Graph) -> Kernel:
    (region,) = regions(graph)
    return region.kernel


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pointwise_of_any_shape(shape: tuple[int, ...], dtype: str) -> None:
    g = Graph("pointwise")
    x, y = g.input("x", shape), g.parameter("y", shape[-1:])
    g.output("z", g.apply("silu", x * y + 0.5) - x)
    check_graph(g, "map", dtype)


MOVES: dict[str, Callable[[Graph], Value]] = {
    "transpose": lambda g: g.input("x", (5, 7, 3)).transpose(2, 0, 1) * 2.0,
    "image to tokens": lambda g: g.input("x", (2, 3, 4, 5)).transpose(0, 2, 3, 1) + 1.0,
    "tokens to image": lambda g: g.input("x", (2, 20, 3)).transpose(0, 2, 1).reshape(2, 3, 4, 5)
    * 2.0,
    "slice": lambda g: g.apply("slice", g.apply("silu", g.input("x", (3, 40))), axis=1, start=3,
                               end=20) * 2.0,
    "slice of an image": lambda g: g.apply("slice", g.input("x", (1, 20, 3, 3)), axis=1, start=7,
                                           end=16) + 1.0,
    "expand": lambda g: g.apply("expand", g.apply("silu", g.input("x", (3, 1))), shape=(2, 3, 40)),
    "broadcast": lambda g: g.input("x", (4, 1, 8)) + g.input("y", (3, 1)),
    "broadcast of a pixel": lambda g: g.input("x", (2, 20, 1, 1)) * g.input("y", (2, 20, 3, 5)),
    "reshape that needs a copy": lambda g: g.input("x", (2, 3, 4)).transpose(0, 2, 1).reshape(24),
    "concat of channels": lambda g: g.apply("concat", g.input("x", (2, 3, 4, 5)),
                                            g.input("y", (2, 7, 4, 5)), axis=1),
    "concat of the last": lambda g: g.apply("concat", g.apply("sin", g.input("x", (3, 9))),
                                            g.apply("cos", g.input("y", (3, 2))), axis=-1),
    "resize": lambda g: g.apply("resize", g.input("x", (1, 8, 3, 4)), scales=(1, 1, 2, 2)),
    "resize of channels": lambda g: g.apply("resize", g.input("x", (2, 3, 4, 5)),
                                            scales=(1, 2, 1, 1)),
    "resize of the last axis": lambda g: g.apply("resize", g.input("x", (2, 3, 4)),
                                                 scales=(2, 1, 3)) + 1.0,
    "slice of a resize": lambda g: g.apply("slice", g.apply("resize", g.apply(
        "silu", g.input("x", (1, 4, 6, 6))), scales=(1, 1, 2, 2)), axis=3, start=3, end=8) + 1.0,
    "gather": lambda g: g.apply("gather", g.parameter("t", (9, 20)), g.input("i", (5,), "i32")),
    "gather by i64": lambda g: g.apply("gather", g.parameter("t", (9, 5)), g.input(
        "i", (5,), "i64")),
    "gather in two axes": lambda g: g.apply("gather", g.parameter("t", (9, 17)),
                                            g.input("i", (2, 5), "i32"))
    + g.parameter("p", (5, 17)),
    "gather of one column": lambda g: g.apply("gather", g.parameter("t", (9, 1)),
                                              g.input("i", (5,), "i32")),
    "rotary": lambda g: g.apply("rotary_embedding", g.input("x", (2, 7, 24)), g.input(
        "cos", (2, 7, 4)), g.input("sin", (2, 7, 4)), interleaved=0, num_heads=3),
    "rotary of pairs": lambda g: g.apply("rotary_embedding", g.input("x", (2, 7, 24)), g.input(
        "cos", (2, 7, 4)), g.input("sin", (2, 7, 4)), interleaved=1, num_heads=3),
}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("lanes", [0, 2, 4])
@pytest.mark.parametrize("move", MOVES)
def test_movement(move: str, lanes: int, dtype: str) -> None:
    g = Graph(move)
    g.output("y", MOVES[move](g))
    if not lanes:
        check_graph(g, "map", dtype)
        return
    for region in regions(g):
        try:
            lower(region.kernel, GroupMap(64, lanes), LIMITS)
        except IllegalSchedule as refused:
            assert f"{lanes} lanes along an axis of" in str(refused)
        else:
            check_kernel(region.kernel, GroupMap(64, lanes))


@examples(40)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 8, 12]), min_size=1, max_size=4), st.data())
def test_random_layouts(shape: list[int], data: st.DataObject) -> None:
    """Any order of the axes in each operand, and any of them broadcast."""
    g, results = Graph("layouts"), []
    for name in "xyz":
        order = data.draw(st.permutations(range(len(shape))))
        own = [1 if data.draw(st.booleans()) and name != "x" else shape[k] for k in order]
        results.append(g.input(name, tuple(own)).transpose(*np.argsort(order)))
    x, y, z = results
    g.output("out", g.apply("max", x * y, z))
    for region in regions(g):
        for lanes in (1, 2, 4):
            try:
                check_kernel(region.kernel, GroupMap(32, lanes))
            except IllegalSchedule:
                assert lanes > 1


def test_lanes_are_read_and_written_at_once() -> None:
    g = Graph("wide")
    g.output("z", g.input("x", (40, 320)) * g.input("y", (40, 1)) + g.parameter("b", (320,)))
    program = lower(only(g), GroupMap(64, 4), LIMITS).steps[0]
    (stored,) = [s for s in statements(program.body) if isinstance(s, Store)]
    lanes = sorted(e.type.lanes for e in expressions(program.body) if isinstance(e, GroupLoad))
    assert stored.value.type.lanes == 4 and lanes == [1, 4, 4]
    assert {b.name: b.lanes for b in program.bindings}["out"] == 4


def test_the_first_choice_is_wide_where_that_leaves_enough_work_groups() -> None:
    lanes = []
    for rows in (8, 4096):
        g = Graph("choice")
        g.output("z", g.input("x", (rows, 320)) * 2.0)
        lanes.append(choose_group(only(g), LIMITS).lanes)
    assert lanes == [1, 4]


def test_more_work_groups_than_an_axis_of_the_grid_has() -> None:
    g = Graph("grid")
    g.output("z", g.input("x", (11, 7)) * 2.0)
    limits = replace(LIMITS, grid=(4, 65535, 65535))
    check_kernel(only(g), GroupMap(8), limits=limits)
    assert lower(only(g), GroupMap(8), limits).steps[0].groups == (4, 3, 1)


@pytest.mark.parametrize("dtype", ["i32", "u8", "i8", "bool"])
@pytest.mark.parametrize("role", ["input", "parameter"])
def test_integers_are_read_and_written(role: str, dtype: str) -> None:
    at = (axis("i"),)
    kernel = map_over([("i", 50)], Call("add", (Load("x", at), Load("y", at))), [
        Buffer("x", role, (50,), (1,), dtype), Buffer("y", "input", (50,), (1,)),
        Buffer("out", "output", (50,), (1,), "i32")])
    whole = np.round(10 * np.random.default_rng(0).standard_normal(50))
    check_kernel(kernel, arrays={"y": whole})


@pytest.mark.parametrize("dtype, expected", [("u8", [44, 255, 3]), ("i8", [44, -1, 3])])
def test_what_bytes_do_not_hold_wraps(dtype: str, expected: list[int]) -> None:
    kernel = map_over([("i", 3)], Load("x", (axis("i"),)), [
        Buffer("x", "input", (3,), (1,)), Buffer("out", "output", (3,), (1,), dtype)])
    memory = {"x": np.float32([300, -1, 3])}
    with np.errstate(invalid="ignore"):
        found, _ = execute(kernel, GroupMap(8), memory)
    assert found["out"].tolist() == expected


@pytest.mark.parametrize("schedule, why", [
    (GroupMap(64, 4), "4 lanes along an axis of 6"), (GroupMap(0), "a work-group of 0"),
    (GroupMap(64, 3), "3 lanes, of 1, 2, 4"), (GroupMap(512), "of 256 at most")])
def test_impossible_schedules_are_refused(schedule: GroupMap, why: str) -> None:
    g = Graph("impossible")
    g.output("z", g.input("x", (6,)) * 2.0)
    with pytest.raises(IllegalSchedule, match=why):
        lower(only(g), schedule, LIMITS)


def test_what_the_device_lacks_is_refused() -> None:
    g = Graph("limits")
    g.output("z", g.input("x", (4, 6)) * g.input("y", (4, 6)))
    kernel = only(g)
    with pytest.raises(IllegalSchedule, match="bindings: 3, the device allows 2"):
        lower(kernel, GroupMap(8), replace(LIMITS, bindings=2))
    with pytest.raises(IllegalSchedule, match="no lowering of the form 'sort'"):
        lower(replace(kernel, form="sort"), GroupMap(8), LIMITS)
    with pytest.raises(IllegalSchedule, match="no GPU schedule for the form 'sort'"):
        choose_group(replace(kernel, form="sort"), LIMITS)
