"""What is alive in group programs, and where most is."""

from __future__ import annotations

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import F32, Number, number, op
from smalti.codegen.gpu.registers import kept, registers, shared_bytes
from smalti.codegen.gpu.types import Matrix
from smalti.schedule.compute_units import compute_unit
from smalti.schedule.residency import RIGHT_EARLY, KeptWords


def test_values_are_alive_to_their_last_use() -> None:
    b = Builder("p", 64)
    x, y = b.binding("x", "f32", 256, "read", 4), b.binding("y", "f32", 256, "write", 4)
    at = b.let(b.invocation * 4)
    first, second = b.let(b.load(x, at, 4)), b.let(b.load(x, at, 4))
    b.store(y, at, first + second)
    assert kept(b.finish((1, 1, 1))) == (KeptWords(values=8, places=1),)


def test_what_a_turn_leaves_to_the_next_is_alive_in_all_of_the_loop() -> None:
    b = Builder("p", 64)
    x, y = b.binding("x", "f32", 4096, "read"), b.binding("y", "f32", 64, "write")
    total = b.variable(0.0)
    with b.loop(64) as k:
        b.set(total, total + b.let(b.load(x, k * 64 + b.invocation)))
    b.store(y, b.invocation, total)
    (most,) = kept(b.finish((1, 1, 1)))
    assert most == KeptWords(values=2, uniform=1)


def test_drivers_unroll_short_loops() -> None:
    def program(turns: int) -> tuple[KeptWords, ...]:
        b = Builder("p", 64)
        x, y = b.binding("x", "f32", 1 << 16, "read", 4), b.binding("y", "f32", 1 << 16, "write", 4)
        with b.loop(turns) as k:
            at = b.let((k * 64 + b.invocation) * 4)
            b.store(y, at, b.let(b.load(x, at, 4)) * 2.0)
        return kept(b.finish((1, 1, 1)))

    turn = KeptWords(values=4, places=1, uniform=1)
    assert program(8) == (turn, KeptWords(unrolled=8 * 4))
    assert program(64) == (turn,)


def test_branches_are_alive_one_or_the_other() -> None:
    b = Builder("p", 64)
    y = b.binding("y", "f32", 256, "write", 4)
    wide = b.let(b.invocation.to("f32"))
    with b.branch(b.invocation < 3):
        b.store(y, b.invocation, b.let(wide + 1.0))
    with b.otherwise():
        b.store(y, b.invocation, b.let(wide + 2.0) + wide)
    assert kept(b.finish((1, 1, 1))) == (KeptWords(values=2),)


def matrices() -> Builder:
    """A product of matrices, whose sums stay."""
    b = Builder("p", 128, 32)
    a, y = b.shared("a", "f16", 512, 4), b.shared("y", "f32", 512, 4)
    total = b.variable(Number(0.0, Matrix("sum", 16, 16, "f32")))
    with b.loop(32, step=16) as k:
        at = b.let(b.subgroup * 16 + k)
        left = b.let(b.matrix(a, at, 16, Matrix("a", 16, 16, "f16")))
        right = b.let(b.matrix(a, at, 16, Matrix("b", 16, 16, "f16")))
        b.set(total, type(left + left)("matrix_multiply_add", (left, right, total), total.type))
    b.store_matrix(y, 0, 16, total)
    return b


def test_a_subgroup_shares_matrices() -> None:
    program = matrices().finish((1, 1, 1))
    right = 4 * RIGHT_EARLY
    assert kept(program) == (KeptWords(sums=8, factors=8, uniform=1),
                             KeptWords(sums=8, factors=4, uniform=2, early=right),
                             KeptWords(sums=8, uniform=2, early=4 + right))
    assert shared_bytes(program) == 512 * 2 + 512 * 4


def test_factors_that_were_loaded_before_a_loop_are_held() -> None:
    b = Builder("p", 128, 32)
    a, y = b.shared("a", "f16", 512, 4), b.shared("y", "f32", 512, 4)
    total = b.variable(Number(0.0, Matrix("sum", 16, 16, "f32")))
    left = b.let(b.matrix(a, 0, 16, Matrix("a", 16, 16, "f16")))
    with b.loop(32, step=16) as k:
        right = b.let(b.matrix(a, k, 16, Matrix("b", 16, 16, "f16")))
        b.set(total, type(left + left)("matrix_multiply_add", (left, right, total), total.type))
    b.store_matrix(y, 0, 16, total)
    assert KeptWords(sums=8, factors=4, uniform=1, held=4) in kept(b.finish((1, 1, 1)))


def test_compilers_take_what_their_unit_says() -> None:
    program, unit = matrices().finish((1, 1, 1)), compute_unit("rdna3_big")
    assert registers(program, unit) == unit.held(KeptWords(sums=8, factors=8, uniform=1))


def test_sums_that_are_taken_one_by_one_load_late() -> None:
    early = {}
    for one_by_one in (False, True):
        b = Builder("sums", 32, 32)
        x, y = b.binding("x", "f16", 4096, "read"), b.binding("y", "f32", 1024, "write")
        factor = b.let(b.matrix(x, 0, 16, Matrix("a", 16, 16, "f16")))
        for n in range(4):
            total = b.variable(0.0, "sum", Matrix("sum", 16, 16, "f32"))
            right = b.let(b.matrix(x, 256 * n, 16, Matrix("b", 16, 16, "f16")))
            b.set(total, op("matrix_multiply_add", factor, right, total))
            if one_by_one:
                b.set(total, op("matrix_times", total, number(1.0, F32)))
            b.store_matrix(y, 256 * n, 16, total)
        early[one_by_one] = max(each.early for each in kept(b.finish((1, 1, 1))))
    assert early[True] < early[False]
