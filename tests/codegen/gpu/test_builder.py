"""Programs are built as they are meant, and types that do not fit are refused."""

import pytest

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    BOOL,
    F32,
    U32,
    Branch,
    Builtin,
    Loop,
    Name,
    Number,
    Set,
    expressions,
    op,
    select,
    spread,
    statements,
)
from smalti.codegen.gpu.types import Matrix, VectorType


def test_a_loop_that_runs_once_is_none() -> None:
    b = Builder("once", 32)
    y = b.binding("y", "f32", 32, "write")
    with b.loop(8, step=8) as k:
        b.store(y, b.invocation + k, Number(1.0, F32))
    assert [type(s).__name__ for s in b.finish((1, 1, 1)).body] == ["Store"]


def test_blocks_nest() -> None:
    b = Builder("nested", 32)
    total = b.variable(0.0)
    with b.loop(4) as k:
        with b.branch(k < b.lane):
            b.set(total, total + 1.0)
        with b.otherwise():
            b.set(total, total - 1.0)
    variable, loop = b.finish((1, 1, 1)).body
    assert isinstance(loop, Loop) and isinstance(loop.body[0], Branch)
    assert [s.value.instruction for s in statements((loop,)) if isinstance(s, Set)] == [
        "add", "sub"]
    assert sum(isinstance(e, Builtin) for e in expressions((variable, loop))) == 1


def test_index_arithmetic_on_constants_is_done() -> None:
    k = Name("k", U32)
    assert (k * 0 + 3) * 2 == Number(6, U32)
    assert (k * 1 + 0) // 1 == k
    assert Number(1, U32) - 2 == Number(2**32 - 1, U32)


def test_types_follow() -> None:
    x = Name("x", VectorType("f32", 4))
    assert (x < 0).type == VectorType("bool", 4)
    assert select(Name("c", BOOL), x, 0.0).type == x.type
    assert spread(x.lane(2), 4).type == x.type
    a, c = Matrix("a", 16, 8, "f16"), Matrix("sum", 16, 16, "f32")
    total = op("matrix_multiply_add", Name("a", a), Name("b", Matrix("b", 8, 16, "f16")),
               Name("c", c))
    assert total.type == c


def test_what_does_not_fit_is_refused() -> None:
    x, k = Name("x", F32), Name("k", U32)
    for wrong in (lambda: x + k, lambda: op("floor", k), lambda: op("not", x),
                  lambda: op("rem", x, x)):
        with pytest.raises(TypeError):
            wrong()
