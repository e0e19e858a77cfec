"""Maps as machine code: pointwise operations and data movement, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from native_regions import LEVELS, check_graph

from smalti.codegen.cpu.lower import lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph, Value
from smalti.schedule import MapSchedule

SHAPES = [(1,), (7,), (8,), (16,), (33,), (3, 5), (2, 1, 40), (4, 70), (2, 3, 4, 5), (1, 20, 7, 3),
          (2, 16, 1, 1), (3, 1, 6, 2), ()]


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pointwise_of_any_shape(name: str, shape: tuple[int, ...], precision: str) -> None:
    g = Graph("pointwise")
    x, y = g.input("x", shape), g.parameter("y", shape[-1:])
    g.output("z", g.apply("silu", x * y + 0.5) - x)
    runner = check_graph(g, name, precision)
    assert [type(s) for s in runner.schedules] == [MapSchedule]


MOVES: dict[str, Callable[[Graph], Value]] = {
    "transpose": lambda g: g.input("x", (5, 7, 3)).transpose(2, 0, 1) * 2.0,
    "transpose in front": lambda g: g.apply("relu", g.input("x", (5, 7))).transpose(1, 0) + 1.0,
    "image to tokens": lambda g: g.input("x", (2, 3, 4, 5)).transpose(0, 2, 3, 1) + 1.0,
    "tokens to image": lambda g: g.input("x", (2, 20, 3)).transpose(0, 2, 1).reshape(2, 3, 4, 5)
    * 2.0,
    "slice": lambda g: g.apply("slice", g.apply("silu", g.input("x", (3, 40))), axis=1, start=3,
                               end=20) * 2.0,
    "slice of an image": lambda g: g.apply("slice", g.input("x", (1, 20, 3, 3)), axis=1, start=7,
                                           end=16) + 1.0,
    "expand": lambda g: g.apply("expand", g.apply("silu", g.input("x", (3, 1))), shape=(2, 3, 40)),
    "broadcast": lambda g: g.input("x", (4, 1, 7)) + g.input("y", (3, 1)),
    "broadcast of a pixel": lambda g: g.input("x", (2, 20, 1, 1)) * g.input("y", (2, 20, 3, 5)),
    "reshape that needs a copy": lambda g: g.input("x", (2, 3, 4)).transpose(0, 2, 1).reshape(24),
    "copied, then computed": lambda g: g.apply("tanh", g.input("x", (4, 6))).transpose(1, 0)
    .reshape(8, 3) * 2.0,
    "concat of channels": lambda g: g.apply("concat", g.input("x", (2, 3, 4, 5)),
                                            g.input("y", (2, 7, 4, 5)), axis=1),
    "concat of rows": lambda g: g.apply("concat", g.apply("silu", g.input("x", (2, 9))),
                                        g.input("y", (1, 9)), axis=0),
    "concat of the last": lambda g: g.apply("concat", g.apply("sin", g.input("x", (3, 9))),
                                            g.apply("cos", g.input("y", (3, 2))), axis=-1),
    "concat with itself": lambda g: (lambda x: g.apply("concat", x, x, axis=1))(
        g.apply("relu", g.input("x", (2, 5)))),
    "concat of a concat": lambda g: g.apply("concat", g.apply(
        "concat", g.input("x", (2, 5)), g.input("y", (2, 3)), axis=1), g.input("z", (2, 1)),
        axis=1) * 2.0,
    "resize": lambda g: g.apply("resize", g.input("x", (1, 5, 3, 4)), scales=(1, 1, 2, 2)),
    "resize of one channel": lambda g: g.apply("resize", g.input("x", (2, 1, 3, 4)),
                                               scales=(1, 1, 2, 3)),
    "resize of channels": lambda g: g.apply("resize", g.input("x", (2, 3, 4, 5)),
                                            scales=(1, 2, 1, 1)),
    "resize of the last axis": lambda g: g.apply("resize", g.input("x", (2, 3, 4)),
                                                 scales=(2, 1, 3)) + 1.0,
    "resize of a resize": lambda g: g.apply("resize", g.apply(
        "resize", g.input("x", (1, 4, 2, 2)), scales=(1, 1, 2, 2)), scales=(1, 1, 3, 1)),
    "slice behind a resize": lambda g: g.apply("resize", g.apply("slice", g.apply(
        "silu", g.input("x", (1, 4, 6, 6))), axis=2, start=1, end=4), scales=(1, 1, 2, 2)),
    "slice of a resize": lambda g: g.apply("slice", g.apply("resize", g.apply(
        "silu", g.input("x", (1, 4, 6, 6))), scales=(1, 1, 2, 2)), axis=3, start=3, end=8) + 1.0,
    "gather": lambda g: g.apply("gather", g.parameter("t", (9, 20)), g.input("i", (5,), "i32")),
    "gather in two axes": lambda g: g.apply("gather", g.parameter("t", (9, 17)),
                                            g.input("i", (2, 5), "i32"))
    + g.parameter("p", (5, 17)),
    "gather of one column": lambda g: g.apply("gather", g.parameter("t", (9, 1)),
                                              g.input("i", (5,), "i32")),
    "gather by reshaped rows": lambda g: g.apply("gather", g.parameter("t", (9, 4)),
                                                 g.input("i", (6,), "i32").reshape(2, 3)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("move", MOVES)
def test_movement(name: str, move: str, precision: str) -> None:
    g = Graph(move)
    g.output("y", MOVES[move](g))
    check_graph(g, name, precision)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("grain, unroll", [(1, 1), (3, 2), (10, 5)])
def test_any_grain_and_unrolling_gives_the_same(name: str, grain: int, unroll: int) -> None:
    g = Graph("grain")
    g.output("z", g.input("x", (4, 10, 1)) * g.input("y", (10, 77)) + 1.0)
    runner = check_graph(g, name, pick=lambda *_: MapSchedule(grain, unroll))
    assert runner.schedules == [MapSchedule(grain, unroll)]


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("schedule", [MapSchedule(1, inner=2), MapSchedule(3, inner=2),
                                      MapSchedule(1, inner=3)], ids=str)
def test_whole_axes_inside_of_a_tile(name: str, schedule: MapSchedule) -> None:
    g = Graph("inner")
    g.output("z", g.input("x", (4, 10, 1)) * g.input("y", (10, 77)) + 1.0)
    runner = check_graph(g, name, pick=lambda *_: schedule)
    assert runner.schedules == [schedule]


@pytest.mark.parametrize("inner", [0, 4])
def test_more_axes_inside_than_there_are_is_illegal(inner: int) -> None:
    g = Graph("inner")
    g.output("z", g.input("x", (4, 10, 1)) * g.input("y", (10, 77)))
    with pytest.raises(IllegalSchedule, match=f"{inner} axes inside of a tile, there are 4"):
        lower(partition(g).regions[0].kernel, MapSchedule(1, inner=inner), level(LEVELS[0]))


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("heads, half, batch, tables", [
    (3, 32, 1, 1), (2, 20, 2, 1), (1, 5, 2, 2), (5, 1, 2, 1), (4, 4, 3, 3), (0, 6, 2, 2)])
@pytest.mark.parametrize("angles", [1, 2])
def test_rotary_embedding(name: str, interleaved: int, heads: int, half: int, batch: int,
                          tables: int, angles: int) -> None:
    g = Graph("rotary")
    x = g.input("x", (batch, 7, 2 * heads * half) if heads else (batch, 3, 7, 2 * half))
    cos, sin = (g.input(n, (tables, 7, angles * half)) for n in ("cos", "sin"))
    g.output("y", g.apply("rotary_embedding", x, cos, sin, interleaved=interleaved,
                          num_heads=heads))
    assert [type(s) for s in check_graph(g, name).schedules] == [MapSchedule]


@examples(40)
@given(st.integers(1, 70), st.sampled_from([2, 3, 4, 8]), st.permutations("xyz"),
       st.sampled_from(LEVELS))
def test_a_short_last_axis(rows: int, short: int, order: list[str], name: str) -> None:
    """Vectors run over the last two axes, whatever the operands look like there."""
    g = Graph("short")
    shapes = {"x": (rows, 1), "y": (1, short), "z": (rows, short)}
    a, b, c = (g.input(n, shapes[n]) for n in order)
    turned = g.input("t", (short, rows)).transpose(1, 0)
    g.output("out", a * b + c + turned + g.input("row", (5, 1, short)))
    check_graph(g, name)


@pytest.mark.parametrize("grain", [0, 11])
def test_a_grain_outside_the_axis_is_illegal(grain: int) -> None:
    g = Graph("grain")
    g.output("z", g.input("x", (4, 10, 1)) * g.input("y", (10, 77)))
    with pytest.raises(IllegalSchedule, match=f"a grain of {grain} in an axis of 10"):
        lower(partition(g).regions[0].kernel, MapSchedule(grain), level(LEVELS[0]))


def test_more_than_a_million_tiles() -> None:
    """The numbers of the tiles are taken apart by multiplication: see Assembler.divide."""
    g = Graph("tiles")
    rows = g.input("x", (1100, 1, 2, 1)) + g.input("y", (1, 1000, 1, 2))
    g.output("z", rows.transpose(1, 0, 2, 3))
    check_graph(g, LEVELS[-1], pick=lambda *_: MapSchedule(1))

