"""Programs that keep the rules pass; each broken rule is named with its statement."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from examples import examples
from group_program_strategies import programs
from hypothesis import given

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    F16,
    F32,
    I32,
    U32,
    Barrier,
    Branch,
    GroupLoad,
    Let,
    Loop,
    Name,
    Number,
    Op,
    Set,
    Store,
    Variable,
    op,
    select,
)
from smalti.codegen.gpu.types import Matrix, VectorType
from smalti.codegen.gpu.verifier import verify
from smalti.errors import IllegalSchedule, VerificationError
from smalti.schedule.group import GroupLimits, MatrixShape

ROOMY = GroupLimits(shared_bytes=4096, invocations=256, subgroup_min=8, subgroup_max=32,
                    subgroup_choice=True, subgroup_operations=True, grid=(8, 8, 8), f16=True,
                    matrices=(MatrixShape(16, 16, 8, "f16", "f32"),
                              MatrixShape(8, 8, 8, "i8", "i32")))
SUM = Matrix("sum", 16, 16, "f32")


def start(subgroup: int = 0) -> Builder:
    b = Builder("checked", 64, subgroup)
    b.binding("x", "f32", 64, "read", 4)
    b.binding("y", "f32", 64, "write")
    b.binding("h", "bf16", 64, "read_write")
    b.shared("part", "f32", 64, 4)
    return b


@examples(30)
@given(programs())
def test_programs_that_keep_the_rules_pass(program) -> None:
    verify(program, ROOMY)
    with pytest.raises(IllegalSchedule, match="groups"):
        verify(program, replace(ROOMY, grid=(1, 1, 1)))


# ---------------------------------------------------------------------- form


ONE, WHOLE = Number(1.0, F32), Number(1, U32)
ZEROS = Number(0.0, Matrix("sum", 8, 8, "f32"))
BROKEN = {
    "a name of letters": Let("if", ONE),
    "each name given once": (Let("t", ONE), Let("t", ONE)),
    "t to be known here, of f32, found nothing": Let("u", Name("t", F32)),
    "t to be known here, of f32, found u32": (Let("t", WHOLE), Let("u", Name("t", F32))),
    "w to be known here": (Branch(Number(True, VectorType("bool")), (Let("w", ONE),)),
                           Let("u", Name("w", F32))),
    "a variable that is known here, found t": (Let("t", ONE), Set("t", ONE)),
    "a value of f32, found u32": (Variable("v", ONE), Set("v", WHOLE)),
    "a question, found u32": Branch(WHOLE, ()),
    "a loop over u32, forwards": Loop("k", WHOLE, WHOLE, 0, ()),
    "a buffer that is listed, found z": Store("z", WHOLE, ONE),
    "an index of u32, found i32": Store("y", Number(1, I32), ONE),
    "a value that is stored as f32, found f16": Store("y", WHOLE, Number(1.0, F16)),
    "x to be write, found read": Store("x", WHOLE, ONE),
    "y to be read, found write": Let("t", GroupLoad("y", WHOLE, F32)),
    "f32 read as f32, found i32": Let("t", GroupLoad("x", WHOLE, I32)),
    "at most 1 elements of y at once, found 4":
        Store("y", WHOLE * 4, Number(1.0, VectorType("f32", 4))),
    "one that is 2 more than a multiple of 4":
        Let("t", GroupLoad("x", op("add", op("mul", op("add", Op("select", (
            Number(True, VectorType("bool")), WHOLE, WHOLE), U32), 0), 4), 2),
            VectorType("f32", 4))),
    "at most 1 elements of h at once, found 2": Store("h", WHOLE * 2, WHOLE),
    "bf16 read as f32 or u32, found i32": Let("t", GroupLoad("h", WHOLE, I32)),
    "an instruction and its operands .widen_f16., found widen_f16 of u32x4":
        Let("t", Op("widen_f16", (Number(1, VectorType("u32", 4)),), VectorType("f32", 4))),
    "a question after where": Store("y", WHOLE, ONE, WHOLE),
    "add to give f32, found u32": Let("t", Op("add", (ONE, ONE), U32)),
    "an instruction and its operands .sine., found 'sine'": Let("t", Op("sine", (ONE,), F32)),
    "an instruction and its operands .add., found add of f32, u32":
        Let("t", Op("add", (ONE, WHOLE), F32)),
    "vector to fit, found f32x4 of f32, u32":
        Let("t", Op("vector", (ONE, WHOLE), VectorType("f32", 4))),
    "bits to fit, found u32 of f16": Let("t", Op("bits", (Number(1.0, F16),), U32)),
    "a constant as second operand of subgroup_shuffle_xor":
        Let("t", Op("subgroup_shuffle_xor", (ONE, op("add", Name("t", U32), 1)), F32)),
    "an instruction and its operands .matrix_multiply_add., found .* of f32, f32 and f32":
        Let("t", Op("matrix_multiply_add", (ONE, ONE, ONE), F32)),
    "an instruction and its operands .matrix_times., found .* of f32 and f32":
        Let("t", Op("matrix_times", (ONE, ONE), F32)),
    "an instruction and its operands .less., found .* the matrix sum:f32.8, 8.":
        Let("t", Op("less", (ZEROS, ZEROS), VectorType("bool"))),
    "a lane of the vector, found 4":
        Let("t", Op("component", (Number(1.0, VectorType("f32", 4)), Number(4, U32)), F32)),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rules_are_named(message: str) -> None:
    b = start()
    statements = BROKEN[message]
    if "second operand" in message:
        b.add(Let("t", WHOLE))
        statements = replace(statements, name="u")
    for statement in statements if isinstance(statements, tuple) else (statements,):
        b.add(statement)
    with pytest.raises(VerificationError, match=f"program checked: .*: expected .*{message}"):
        verify(b.finish((1, 1, 1)))


@pytest.mark.parametrize("arguments,message", [
    (("z", "f64", 4, "read"), "a dtype of"), (("z", "i8", 4, "write"), "only read"),
    (("z", "f32", 0, "read"), "elements"), (("z", "f32", 4, "owned"), "read or written"),
    (("part", "f32", 4, "read"), "each buffer listed once"), (("let", "f32", 4, "read"), "a name")])
def test_broken_buffers_are_named(arguments: tuple, message: str) -> None:
    b = start()
    b.binding(*arguments)
    with pytest.raises(VerificationError, match=message):
        verify(b.finish((1, 1, 1)))


# ---------------------------------------------------------------------- control flow


def in_a_branch_by(question: Callable) -> Callable[[Builder, Callable], None]:
    def add(b: Builder, inside: Callable) -> None:
        with b.branch(question(b)):
            inside()
    return add


def in_a_loop_to(stop: Callable) -> Callable[[Builder, Callable], None]:
    def add(b: Builder, inside: Callable) -> None:
        with b.loop(stop(b)):
            inside()
    return add


def in_a_loop_by_what_it_carries(b: Builder, inside: Callable) -> None:
    """A variable that is the same for all at first, but not after the first turn."""
    carried = b.variable(0, type=U32)
    with b.loop(4):
        with b.branch(carried < 3):
            inside()
        b.set(carried, carried + b.lane)


def behind_a_varying_branch(b: Builder, inside: Callable) -> None:
    """The value set is a constant, but whether it is set differs."""
    flag = b.variable(0, type=U32)
    with b.branch(b.lane < 3):
        b.set(flag, Number(1, U32))
    with b.branch(flag.equals(0)):
        inside()


PLACES = {  # control flow: (what a barrier sees, what a subgroup sees)
    "group": (in_a_branch_by(lambda b: b.group[0] < 1), True, True),
    "constant loop": (in_a_loop_to(lambda b: 4), True, True),
    "loop by group": (in_a_loop_to(lambda b: b.group[1] + 1), True, True),
    "table": (in_a_branch_by(lambda b: b.load(b.bindings[0], b.group[0]) < 1.0), True, True),
    "subgroup": (in_a_branch_by(lambda b: b.subgroup < 1), False, True),
    "sum": (in_a_branch_by(lambda b: op("subgroup_add", b.lane) < 1), False, True),
    "invocation": (in_a_branch_by(lambda b: b.invocation < 1), False, False),
    "loop by lane": (in_a_loop_to(lambda b: b.lane), False, False),
    "shared": (in_a_branch_by(lambda b: b.load(b.arrays[0], 0) < 1.0), False, False),
    "element": (in_a_branch_by(lambda b: b.load(b.bindings[0], b.lane) < 1.0), False, False),
    "carried": (in_a_loop_by_what_it_carries, False, False),
    "set in a branch": (behind_a_varying_branch, False, False),
}


@pytest.mark.parametrize("place", PLACES)
def test_barriers_and_subgroups_want_all_of_them(place: str) -> None:
    around, barrier, subgroup = PLACES[place]
    for fits, add, expected in (
            (barrier, lambda b: b.add(Barrier()), "same for the group"),
            (barrier, lambda b: b.add(Barrier(subgroup=True)), "same for the group"),
            (subgroup, lambda b: b.let(op("subgroup_max", b.lane)), "same for the subgroup"),
            (subgroup, lambda b: b.let(b.matrix(b.bindings[0], 0, 16, SUM)), "for the subgroup")):
        b = start(subgroup=32)
        around(b, lambda: add(b))  # noqa: B023
        program = b.finish((1, 1, 1))
        if fits:
            verify(program)
        else:
            with pytest.raises(VerificationError, match=expected):
                verify(program)


def test_a_matrix_is_multiplied_by_one_number_for_its_subgroup() -> None:
    for factor, fits in (("subgroup", True), ("lane", False)):
        b = Builder("scaled", 16, 8)
        y = b.binding("y", "f32", 128, "write")
        number = b.let(select(getattr(b, factor) < 1, ONE, 2.0))
        b.store_matrix(y, b.subgroup * 64, 8, op("matrix_times", ZEROS, number))
        if fits:
            verify(b.finish((1, 1, 1)))
        else:
            with pytest.raises(VerificationError, match="same for the subgroup"):
                verify(b.finish((1, 1, 1)))


def test_a_matrix_lies_at_one_place_for_its_subgroup() -> None:
    for place, fits in ((0, True), (1, False)):
        b = start(subgroup=32)
        b.let(b.matrix(b.bindings[0], (b.subgroup, b.lane)[place] * 4, 16, SUM))
        program = b.finish((1, 1, 1))
        if fits:
            verify(program)
        else:
            with pytest.raises(VerificationError, match="same for the subgroup"):
                verify(program)


# ---------------------------------------------------------------------- limits


def with_matrices(b: Builder) -> None:
    a, w = Matrix("a", 16, 8, "f16"), Matrix("b", 8, 16, "f16")
    total = b.variable(0.0, type=SUM)
    half = b.shared("half", "f16", 128)
    b.set(total, op("matrix_multiply_add", b.matrix(half, 0, 8, a), b.matrix(half, 0, 16, w),
                    total))


def with_bytes(b: Builder) -> None:
    words = b.shared("words", "u32", 16)
    ones = b.let(b.matrix(words, 0, 2, Matrix("b", 8, 8, "i8"), True))
    left, sums = Number(1, Matrix("a", 8, 8, "i8")), Number(0, Matrix("sum", 8, 8, "i32"))
    b.let(op("matrix_multiply_add", left, ones, sums))


def test_bytes_are_added_up_in_integers() -> None:
    left, right = Number(1, Matrix("a", 8, 8, "i8")), Number(1, Matrix("b", 8, 8, "i8"))
    for factor, total in ((right, Number(0.0, Matrix("sum", 8, 8, "f32"))),
                          (Number(1.0, Matrix("b", 8, 8, "f16")),
                           Number(0, Matrix("sum", 8, 8, "i32")))):
        with pytest.raises(TypeError, match="matrix_multiply_add of a:i8"):
            op("matrix_multiply_add", left, factor, total)
    b = start(subgroup=32)
    b.let(b.matrix(b.shared("words", "u32", 16), 0, 2, Matrix("b", 8, 7, "i8")))
    with pytest.raises(VerificationError, match="a line of whole words, found 7"):
        verify(b.finish((1, 1, 1)))


FEATURES = {
    "bytes of shared memory": (lambda b: None, {"shared_bytes": 255}),
    "invocations of a group": (lambda b: None, {"invocations": 32}),
    "groups": (lambda b: None, {"grid": (8, 1, 8)}),
    "bindings": (lambda b: None, {"bindings": 1}),
    "bytes of x": (lambda b: None, {"buffer_range": 255}),
    "arithmetic in f16": (lambda b: b.let(Number(1.0, F16) + 1.0), {"f16": False}),
    "operations of subgroups": (lambda b: b.let(op("subgroup_add", b.lane)),
                                {"subgroup_operations": False}),
    "invocations of a subgroup": (lambda b: None, {"subgroup_choice": False}),
    "matrices": (with_matrices, {"matrices": ()}),
    "matrices of bytes": (with_bytes, {"matrices": (MatrixShape(16, 16, 8, "f16", "f32"),)}),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_what_a_device_lacks_is_illegal(feature: str) -> None:
    add, lacking = FEATURES[feature]
    b = start(subgroup=32)
    add(b)
    program = b.finish((4, 2, 1))
    verify(program, ROOMY)
    said = feature.removesuffix(" of bytes")
    with pytest.raises(IllegalSchedule, match=f"program checked: {said}: .* the device allows"):
        verify(program, replace(ROOMY, **lacking))


@pytest.mark.parametrize(("add", "what"), [
    (with_matrices, "share matrices"), (lambda b: b.barrier(subgroup=True), "have barriers")])
def test_matrices_and_barriers_want_subgroups_of_one_size(add, what: str) -> None:
    b = start(subgroup=0)
    add(b)
    with pytest.raises(IllegalSchedule, match=f"subgroups that {what}: any"):
        verify(b.finish((1, 1, 1)), ROOMY)
