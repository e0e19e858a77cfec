"""Places and values of expressions: indices that divide, wrap and look up, lanes, sharing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from group_kernels import LIMITS, check_kernel

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_all, together, unravel, work_groups
from smalti.codegen.gpu.form import GroupLoad, Op, expressions
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.kernel.build import map_over
from smalti.kernel.form import Buffer, Call, Const, Index, Kernel, Load, axis
from smalti.schedule.group import GroupMap
from smalti.schedule.merge import Access, access

ALONG = axis("i")


def mapped(value, *inputs: Buffer, extent: int = 24) -> Kernel:
    out = Buffer("out", "output", (extent,), (1,))
    return map_over([("i", extent)], value, [*inputs, out])


def instructions(kernel: Kernel, lanes: int = 1) -> list[str]:
    body = lower(kernel, GroupMap(32, lanes), LIMITS).steps[0].body
    return [e.instruction for e in expressions(body) if isinstance(e, Op)]


@pytest.mark.parametrize("index, extent", [
    (ALONG.plus(3), 27), (Index((("i", 2),), 1), 48), (Index((("i", -1),), 23), 24),
    (Index((("i", 1),), 0, 3), 8), (Index((("i", 2),), 5, 4), 13), (Index((), 4), 5)], ids=str)
@pytest.mark.parametrize("stride", [1, 3])
def test_affine_indices(index: Index, extent: int, stride: int) -> None:
    x = Buffer("x", "input", (extent,), (stride,))
    for lanes in (1, 4) if index.divisor == 1 else (1,):
        check_kernel(mapped(Load("x", (index,)), x), GroupMap(32, lanes))


def test_rows_of_tables() -> None:
    table = Buffer("t", "parameter", (7, 5), (5, 1))
    for dtype in ("i32", "i64"):
        rows = Buffer("r", "input", (24,), (1,), dtype)
        value = Load("t", (Load("r", (ALONG,)), Index((("i", 1),), 0, 8)))
        numbers = np.random.default_rng(0).integers(0, 7, 24)
        check_kernel(mapped(value, table, rows), GroupMap(32), {"r": numbers})


def test_lanes_lie_together_where_every_other_step_is_a_multiple_of_them() -> None:
    base = Access("x", (("y", 8), ("x", 1)), 4)
    assert together(base, "x", 4) and not together(base, "y", 4)
    assert not together(replace(base, offset=2), "x", 4) and together(
        replace(base, offset=2), "x", 2)
    assert not together(replace(base, strides=(("y", 6), ("x", 1))), "x", 4)
    divided = replace(base, divided=((4, Index((("x", 1),), 0, 2)),))
    assert not together(divided, "x", 4) and together(
        replace(base, divided=((4, Index((("y", 1),), 0, 2)),)), "x", 4)
    assert not together(replace(base, indirect=((8, base),)), "x", 4)


def test_what_occurs_twice_is_computed_once() -> None:
    x = Buffer("x", "input", (24,), (1,))
    root = Call("sqrt", (Call("abs", (Load("x", (ALONG,)),)),))
    kernel = mapped(Call("mul", (root, Call("add", (root, Load("x", (ALONG,)))))), x)
    found = instructions(kernel)
    assert found.count("sqrt") == 1 and found.count("abs") == 1
    body = lower(kernel, GroupMap(32), LIMITS).steps[0].body
    assert sum(isinstance(e, GroupLoad) for e in expressions(body)) == 1
    check_kernel(kernel, GroupMap(32))


def test_what_lies_as_the_result_does_is_read_at_its_number() -> None:
    x = Buffer("x", "input", (4, 6), (6, 1))
    y = Buffer("y", "input", (6,), (1,))
    out = Buffer("out", "output", (4, 6), (6, 1))
    r, c = axis("r"), axis("c")
    plain = map_over([("r", 4), ("c", 6)], Load("x", (r, c)), [x, out])
    both = map_over([("r", 4), ("c", 6)], Call("add", (Load("x", (r, c)), Load("y", (c,)))),
                    [x, y, out])
    assert not {"div", "rem"} & set(instructions(plain))
    assert instructions(both).count("rem") == 1
    assert instructions(both).count("mul") == 1  # the first element of the work-group


def test_a_product_and_a_sum_are_one_instruction() -> None:
    x = Buffer("x", "input", (24,), (1,))
    product = Call("mul", (Load("x", (ALONG,)), Const(3.0)))
    assert "fma" in instructions(mapped(Call("add", (product, Const(1.0))), x))


def test_guards_hold_where_all_of_them_do() -> None:
    b = Builder("guards", 16)
    y = b.binding("y", "i32", 16, "write")
    kernel = mapped(Const(0.0))
    values = Values(b, kernel, {}, {"i": b.invocation})
    inside = values.inside([(ALONG.plus(-3), 9), (Index((("i", 1),), -1, 2), 4)])
    b.store(y, b.invocation, inside.to("i32"))
    found = run(b.finish((1, 1, 1)), {})["y"]
    assert found.tolist() == [int(0 <= i - 3 < 9 and 0 <= (i - 1) // 2 < 4) for i in range(16)]
    assert values.inside([]) is None


def test_points_are_numbered_with_the_last_axis_fastest() -> None:
    b = Builder("points", 24)
    y = b.binding("y", "u32", 24, "write")
    at = unravel(b, b.invocation, (("z", 2), ("y", 3), ("x", 4)))
    b.store(y, b.invocation, at["z"] * 100 + at["y"] * 10 + at["x"])
    expected = [z * 100 + y * 10 + x for z, y, x in np.ndindex(2, 3, 4)]
    assert run(b.finish((1, 1, 1)), {})["y"].tolist() == expected


@pytest.mark.parametrize("count, grid", [(5, (5, 1, 1)), (7, (7, 1, 1)), (8, (4, 2, 1)),
                                         (50, (7, 8, 1))])
def test_grids_that_fold(count: int, grid: tuple[int, int, int]) -> None:
    b = Builder("grid", 1)
    y = b.binding("y", "u32", 56, "write")
    number, groups = work_groups(b, count, replace(LIMITS, grid=(7, 65535, 65535)))
    b.store(y, number, number + 1)
    assert groups == grid
    assert run(b.finish(groups), {})["y"][:count].tolist() == list(range(1, count + 1))


def test_bindings_are_wide_where_something_is_read_at_once() -> None:
    x = Buffer("x", "input", (24,), (1,))
    y, byte = Buffer("y", "input", (24,), (2,)), Buffer("b", "parameter", (24,), (1,), "u8")
    kernel = mapped(Call("add", (Load("x", (ALONG,)), Load("y", (ALONG,)))), x, y, byte)
    found = bind_all(Builder("wide", 32), kernel, [
        access(kernel, Load(name, (ALONG,))) for name in ("x", "y", "b")], "i", 4)
    assert {name: binding.lanes for name, binding in found.items()} == {"x": 4, "y": 1, "b": 1}
