"""Group programs do what they say, and every way of breaking memory or control flow is found."""

from collections.abc import Callable

import group_programs as programs
import ml_dtypes
import numpy as np
import pytest

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    BOOL,
    F16,
    F32,
    I32,
    GroupProgram,
    Number,
    number,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.instructions import INSTRUCTIONS
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.types import Matrix
from smalti.errors import InputError, VerificationError


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------- values


def test_a_guard_covers_what_lies_behind_the_end() -> None:
    b = Builder("double", 64)
    x, y = b.binding("x", "f32", 250, "read"), b.binding("y", "f32", 250, "write")
    i = b.let(b.group[0] * 64 + b.invocation)
    b.store(y, i, 2.0 * b.load(x, i, where=i < 250), where=i < 250)
    values = random(250)
    assert np.array_equal(run(b.finish((4, 1, 1)), {"x": values})["y"], 2 * values)


def test_only_the_groups_that_are_asked_for_run() -> None:
    b = Builder("place", 2)
    y = b.binding("y", "u32", 24, "write")
    x, down, z = b.group
    place = (z * 2 + down) * 3 + x
    b.store(y, place * 2 + b.invocation, z * 100 + down * 10 + x)
    program = b.finish((3, 2, 2))
    assert run(program, {})["y"][::2].tolist() == [0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111,
                                                  112]
    some = run(program, {}, groups=[5, 6])["y"]
    assert np.flatnonzero(some != 0xDEADBEEF).tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize("dtype,numpy", [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_halves_are_rounded_to_even_when_stored(dtype: str, numpy: type) -> None:
    b = Builder("halves", 64)
    x, y = b.binding("x", dtype, 64, "read"), b.binding("y", dtype, 64, "write")
    b.store(y, b.invocation, b.load(x, b.invocation) * 1.7 + 0.1)
    values = random(64).astype(numpy)
    wide = values.astype(np.float32) * np.float32(1.7) + np.float32(0.1)
    assert np.array_equal(run(b.finish((1, 1, 1)), {"x": values})["y"], wide.astype(numpy))


def test_small_integers_are_widened_with_their_sign() -> None:
    b = Builder("bytes", 4)
    x, z = b.binding("x", "i8", 4, "read"), b.binding("z", "u8", 4, "read")
    y = b.binding("y", "i32", 4, "write")
    b.store(y, b.invocation, b.load(x, b.invocation) * 1000 + b.load(z, b.invocation))
    found = run(b.finish((1, 1, 1)), {"x": np.array([-128, -1, 0, 127], np.int8),
                                      "z": np.array([255, 0, 1, 2], np.uint8)})["y"]
    assert found.tolist() == [-127745, -1000, 1, 127002]


def test_halves_are_computed_as_halves() -> None:
    b = Builder("half", 1)
    y = b.binding("y", "f16", 1, "write")
    b.store(y, 0, Number(2048.0, F16) + 1.0 + 1.0)
    assert run(b.finish((1, 1, 1)), {})["y"].tolist() == [2048.0]


def test_vectors_lane_by_lane() -> None:
    b = Builder("vectors", 2)
    x, y = b.binding("x", "f32", 8, "read", 4), b.binding("y", "f32", 8, "write", 4)
    v = b.let(b.load(x, b.invocation * 4, 4))
    swapped = vector(v.lane(3), v.lane(2), v.lane(1), v.lane(0))
    b.store(y, b.invocation * 4,
            select(b.invocation.equals(0), swapped * 2.0, spread(v.lane(1), 4)))
    found = run(b.finish((1, 1, 1)), {"x": np.arange(8, dtype=np.float32)})["y"]
    assert found.tolist() == [6, 4, 2, 0, 5, 5, 5, 5]


def test_loops_and_branches_by_invocation() -> None:
    b = Builder("triangle", 8)
    y = b.binding("y", "f32", 8, "write")
    total = b.variable(0.0)
    with b.loop(b.invocation + 1) as k:
        with b.branch((k % 2).equals(0)):
            b.set(total, total + k.to("f32"))
        with b.otherwise():
            b.set(total, total - 100.0)
    b.store(y, b.invocation, total)
    expected = [sum(-100 if k % 2 else k for k in range(i + 1)) for i in range(8)]
    assert run(b.finish((1, 1, 1)), {})["y"].tolist() == expected


def test_conversions_and_bits() -> None:
    b = Builder("convert", 1)
    y, z = b.binding("y", "i32", 4, "write"), b.binding("z", "u32", 2, "write")
    for place, value in enumerate((-2.7, 2.7, 1e20)):
        b.store(y, place, Number(value, F32).to("i32"))
    b.store(y, 3, Number(True, BOOL).to("i32"))
    b.store(z, 0, Number(-1.0, F32).bits("u32"))
    b.store(z, 1, Number(-1, I32).to("u32"))
    found = run(b.finish((1, 1, 1)), {})
    assert found["y"].tolist() == [-2, 2, 2**31 - 1, 1]
    assert found["z"].tolist() == [0xBF800000, 2**32 - 1]


@pytest.mark.parametrize("name", [name for name, entry in INSTRUCTIONS.items()
                                  if entry.meaning and "f16" in entry.takes])
def test_instructions_keep_their_type(name: str) -> None:
    b = Builder(name, 4)
    entry = INSTRUCTIONS[name]
    arguments = [b.load(b.binding(f"x{n}", "f16", 4, "read"), b.invocation, scalar="f16")
                 for n in range(entry.arity)]
    if name == "select":
        arguments[0] = arguments[0] < 0.5
    value = op(name, *arguments)
    y = b.binding("y", "f16", 4, "write")
    b.store(y, b.invocation, value.to("f16") if entry.asks else value)
    x = np.array([0.25, 1.0, 2.0, 3.0], np.float16)
    given = [x < 0.5 if name == "select" and n == 0 else x for n in range(entry.arity)]
    found = run(b.finish((1, 1, 1)), {f"x{n}": x for n in range(entry.arity)})["y"]
    assert np.array_equal(found, entry.meaning(*given).astype(np.float16))


# ---------------------------------------------------------------------- groups and subgroups


def sum_in_shared(barriers: bool = True) -> GroupProgram:
    """y[group] = sum of 8 elements of x, by halving."""
    b = Builder("halving", 8)
    x, y = b.binding("x", "f32", 24, "read"), b.binding("y", "f32", 3, "write")
    part = b.shared("part", "f32", 8)
    b.store(part, b.invocation, b.load(x, b.group[0] * 8 + b.invocation))
    for step in (4, 2, 1):
        if barriers:
            b.barrier()
        with b.branch(b.invocation < step):
            b.store(part, b.invocation,
                    b.load(part, b.invocation) + b.load(part, b.invocation + step))
    b.barrier()
    with b.branch(b.invocation.equals(0)):
        b.store(y, b.group[0], b.load(part, 0))
    return b.finish((3, 1, 1))


def test_shared_memory_between_barriers() -> None:
    x = np.arange(24, dtype=np.float32)
    assert run(sum_in_shared(), {"x": x})["y"].tolist() == x.reshape(3, 8).sum(axis=1).tolist()


@pytest.mark.parametrize("subgroup", [4, 8, 16])
def test_subgroup_operations_on_a_partial_last_subgroup(subgroup: int) -> None:
    b = Builder("subgroups", 12)
    names = ("subgroup_add", "subgroup_max", "subgroup_min")
    x = b.load(b.binding("x", "f32", 12, "read"), b.invocation)
    for name in names:
        b.store(b.binding(name, "f32", 12, "write"), b.invocation, op(name, x))
    values = random(12)
    found = run(b.finish((1, 1, 1)), {"x": values}, subgroup=subgroup)
    parts = [values[first:first + subgroup] for first in range(0, 12, subgroup)]
    for name, fold in zip(names, (np.sum, np.max, np.min)):
        expected = np.concatenate([np.full(len(part), fold(part)) for part in parts])
        assert np.allclose(found[name], expected, rtol=1e-6), name


def test_shuffles() -> None:
    b = Builder("shuffle", 16)
    x, y, z = (b.binding(name, "u32", 16, "write") for name in "xyz")
    value = b.let(b.invocation * 10)
    b.store(x, b.invocation, op("subgroup_shuffle_xor", value, 3))
    b.store(y, b.invocation, op("subgroup_shuffle", value, 7 - b.lane))
    b.store(z, b.invocation, b.subgroup * 100 + b.lane)
    found = run(b.finish((1, 1, 1)), {}, subgroup=8)
    lanes = np.arange(16)
    assert np.array_equal(found["x"], (lanes ^ 3) * 10)
    assert np.array_equal(found["y"], (lanes // 8 * 8 + 7 - lanes % 8) * 10)
    assert np.array_equal(found["z"], lanes // 8 * 100 + lanes % 8)


@pytest.mark.parametrize("scalar,tolerance", [("f32", 1e-5), ("f16", 3e-2)])
def test_matrices_of_subgroups(scalar: str, tolerance: float) -> None:
    """Two subgroups make one tile each of a [32, 24] by [24, 16] product."""
    b = Builder("product", 16, 8)
    x, w = b.binding("x", "f16", 32 * 24, "read"), b.binding("w", "f16", 16 * 24, "read")
    y = b.binding("y", scalar, 32 * 16, "write")
    a_type, b_type = Matrix("a", 16, 8, "f16"), Matrix("b", 8, 16, "f16")
    total = b.variable(0.0, type=Matrix("sum", 16, 16, scalar))
    with b.loop(24, step=8) as k:
        b.set(total, op("matrix_multiply_add",
                        b.matrix(x, b.subgroup * (16 * 24) + k, 24, a_type),
                        b.matrix(w, k, 24, b_type, by_columns=True), total))
    b.store_matrix(y, b.subgroup * 256, 16, total * 2.0)
    values, weights = random(32, 24).astype(np.float16), random(16, 24).astype(np.float16)
    found = run(b.finish((1, 1, 1)), {"x": values.ravel(), "w": weights.ravel()})["y"]
    expected = 2 * values.astype(np.float32) @ weights.astype(np.float32).T
    assert np.allclose(found.reshape(32, 16), expected, atol=tolerance, rtol=tolerance)


def test_a_matrix_times_a_number_of_its_subgroup() -> None:
    b = Builder("scaled", 16, 8)
    y = b.binding("y", "f32", 2 * 64, "write")
    factor = b.let(select(b.subgroup.equals(0), number(3.0, F32), 5.0))
    ones = number(1.0, Matrix("sum", 8, 8, "f32"))
    b.store_matrix(y, b.subgroup * 64, 8, op("matrix_times", ones, factor))
    found = run(b.finish((1, 1, 1)), {})["y"]
    assert (found[:64] == 3).all() and (found[64:] == 5).all()


def test_matrices_in_words() -> None:
    """Factors and sums in one array of words, where a matrix by columns is read along them."""
    program = programs.products_in_words(16, 8, 16, "bf16", 8)
    a, w = (random(n, 16).astype(ml_dtypes.bfloat16) for n in (16, 8))
    found = run(program, {"a": a.ravel(), "b": w.ravel()})["c"]
    expected = a.astype(np.float32) @ w.astype(np.float32).T
    assert np.allclose(found.reshape(8, 16).T, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by_columns", [False, True])
def test_matrices_of_bytes_are_exact_and_wrap(by_columns: bool) -> None:
    program = programs.products_of_bytes(8, 16, 32, 16, by_columns)
    rng = np.random.default_rng(0)
    a, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((8, 32), (32, 16)))
    a[0], w[:, 0] = -128, -128  # the largest product there is
    d = rng.integers(-2**31, 2**31, (8, 16)).astype(np.int32)
    d[0, 0] = 2**31 - 1
    words = np.ascontiguousarray(w.T if by_columns else w).view(np.uint32).ravel()
    found = run(program, {"a": a.view(np.uint32).ravel(), "b": words, "d": d.ravel()})["c"]
    expected = (a.astype(np.int64) - 3) @ w.astype(np.int64) + d
    assert expected[0, 0] >= 2**31
    assert np.array_equal(found.reshape(8, 16), expected.astype(np.int32))


# ---------------------------------------------------------------------- what is found


def same_element(b: Builder) -> None:
    b.store(b.bindings[1], 0, Number(1.0, F32))


def read_of_a_neighbour(b: Builder) -> None:
    shared = b.arrays[0]
    b.store(shared, b.invocation, Number(1.0, F32))
    b.store(b.bindings[1], b.invocation + b.group[0] * 8,
            b.load(shared, (b.invocation + 1) % 8))


def write_after_read(b: Builder) -> None:
    shared = b.arrays[0]
    b.store(shared, b.invocation, Number(1.0, F32))
    b.barrier()
    t = b.let(b.load(shared, 7 - b.invocation))
    b.store(shared, b.invocation, t)


def write_of_what_all_read(b: Builder) -> None:
    shared = b.arrays[0]
    b.store(shared, b.invocation, Number(1.0, F32))
    b.barrier()
    b.let(b.load(shared, 3))
    b.store(shared, 3, Number(2.0, F32), where=b.invocation.equals(3))


def subgroups_meet_apart(b: Builder) -> None:
    shared = b.arrays[0]
    b.store(shared, b.invocation, Number(1.0, F32))
    b.barrier(subgroup=True)
    t = b.let(b.load(shared, b.invocation ^ 1))
    b.barrier(subgroup=True)
    b.store(shared, b.invocation, t)
    b.barrier(subgroup=True)
    b.let(b.load(shared, b.invocation ^ 4))


def write_of_what_other_subgroups_read(b: Builder) -> None:
    shared = b.arrays[0]
    b.store(shared, b.invocation, Number(1.0, F32))
    b.barrier()
    b.let(b.load(shared, b.invocation % 4))
    b.barrier(subgroup=True)
    b.store(shared, b.invocation, Number(2.0, F32))


def two_groups_write(b: Builder) -> None:
    b.store(b.bindings[1], b.invocation, Number(1.0, F32))


def two_groups_read_and_write(b: Builder) -> None:
    z = b.binding("z", "f32", 16, "read_write")
    t = b.let(b.load(z, b.invocation))
    b.barrier()
    b.store(z, b.group[0] * 8 + b.invocation, t)


def read_of_another_group(b: Builder) -> None:
    z = b.binding("z", "f32", 16, "read_write")
    b.store(z, b.group[0] * 8 + b.invocation, Number(1.0, F32))
    b.barrier()
    b.let(b.load(z, (1 - b.group[0]) * 8))


def never_written(b: Builder) -> None:
    with b.branch(b.invocation < 7):
        b.store(b.arrays[0], b.invocation, Number(1.0, F32))
    b.barrier()
    b.let(b.load(b.arrays[0], b.invocation))


def barrier_in_a_branch(b: Builder) -> None:
    with b.branch(b.invocation < 3):
        b.barrier()


def barrier_in_a_loop(b: Builder) -> None:
    with b.loop(b.invocation):
        b.barrier()


def subgroup_sum_in_a_branch(b: Builder) -> None:
    with b.branch(b.invocation < 6):
        b.let(op("subgroup_add", b.invocation))


def shuffle_from_beyond(b: Builder) -> None:
    b.let(op("subgroup_shuffle_xor", b.invocation, 4))


def matrix_in_a_branch(b: Builder) -> None:
    with b.branch(b.invocation < 6):
        b.let(b.matrix(b.bindings[0], 0, 4, Matrix("sum", 4, 4, "f32")))


def matrices_at_different_places(b: Builder) -> None:
    b.let(b.matrix(b.bindings[0], b.invocation, 1, Matrix("sum", 4, 4, "f32")))


def matrix_beyond_the_end(b: Builder) -> None:
    b.let(b.matrix(b.bindings[0], 0, 5, Matrix("sum", 4, 4, "f32")))


def matrix_against_invocations(b: Builder) -> None:
    b.store(b.arrays[0], b.invocation, Number(1.0, F32))
    b.let(b.matrix(b.arrays[0], 0, 2, Matrix("sum", 4, 2, "f32")))


def out_of_line(b: Builder) -> None:
    b.let(b.load(b.bindings[0], b.invocation * 2, 4))


def beyond_the_end(b: Builder) -> None:
    b.let(b.load(b.bindings[0], b.group[0] * 8 + b.invocation + 1))


def before_the_start(b: Builder) -> None:
    b.let(b.load(b.bindings[0], b.invocation - 1))


def a_vector_over_the_end(b: Builder) -> None:
    b.let(b.load(b.binding("z", "f32", 15, "read", 2), b.group[0] * 8 + b.invocation // 2 * 2, 2))


def write_to_what_is_read(b: Builder) -> None:
    b.store(b.bindings[0], b.group[0] * 8 + b.invocation, Number(1.0, F32))


def read_of_what_is_written(b: Builder) -> None:
    b.let(b.load(b.bindings[1], b.invocation))


BROKEN = {
    same_element: "race: invocation 0 of group (0, 0, 0) writes y[0], which is written by "
                  "invocation",
    read_of_a_neighbour: "reads part[1], which is written by invocation 1 of group (0, 0, 0) "
                         "without a barrier",
    write_after_read: "race: invocation 0 of group (0, 0, 0) writes part[0], which is read by "
                      "invocation 7",
    write_of_what_all_read: "invocation 3 of group (0, 0, 0) writes part[3], which is read by "
                            "several of the group",
    subgroups_meet_apart: "race: invocation 0 of group (0, 0, 0) reads part[4], which is written "
                          "by invocation 4",
    write_of_what_other_subgroups_read: "writes part[0], which is read by several of the group",
    two_groups_write: "invocation 0 of group (0, 0, 0) writes y[0], which is written by "
                      "invocation 0 of group (1, 0, 0)",
    two_groups_read_and_write: "writes z[0], which is read by several groups",
    read_of_another_group: "reads z[8], which is written by invocation 0 of group (1, 0, 0)",
    never_written: "reads part[7], which was never written",
    barrier_in_a_branch: "invocation 0 of group (0, 0, 0) waits at a barrier that invocation 3 "
                         "does not reach",
    barrier_in_a_loop: "waits at a barrier that invocation 0 does not reach",
    subgroup_sum_in_a_branch: "subgroup 1 of group (0, 0, 0) is not here as a whole",
    shuffle_from_beyond: "asks for a value of lane 4, which its subgroup lacks",
    matrix_in_a_branch: "subgroup 1 of group (0, 0, 0) is not here as a whole",
    matrices_at_different_places: "the index of a matrix differs inside of a subgroup",
    matrix_beyond_the_end: "subgroup 0 of group (0, 0, 0) touches element 16 of x, which has 16",
    matrix_against_invocations: "subgroup 0 of group (0, 0, 0) reads part[0], which is written by "
                                "invocation 0",
    out_of_line: "touches 4 elements of x from 2 on, which is no multiple of 4",
    beyond_the_end: "invocation 7 of group (1, 0, 0) touches element 16 of x, which has 16",
    before_the_start: "touches element 4294967295 of x",
    a_vector_over_the_end: "touches element 15 of z, which has 15",
    write_to_what_is_read: "x is only read, but written here",
    read_of_what_is_written: "y is only written, but read here",
}


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.__name__)
def test_faults_are_found(fault: Callable[[Builder], None]) -> None:
    b = Builder(fault.__name__, 8)
    b.binding("x", "f32", 16, "read", 4)
    b.binding("y", "f32", 16, "write")
    b.shared("part", "f32", 8)
    fault(b)
    program = b.finish((2, 1, 1))
    arrays = {a.name: np.zeros(a.elements, np.float32) for a in program.bindings}
    with pytest.raises(VerificationError) as raised:
        run(program, arrays, subgroup=4)
    assert BROKEN[fault] in str(raised.value)
    assert str(raised.value).startswith(f"program {fault.__name__}: ")


def test_a_sum_without_barriers_is_a_race() -> None:
    with pytest.raises(VerificationError, match="race"):
        run(sum_in_shared(barriers=False), {"x": random(24)})


def test_arrays_that_do_not_fit_are_refused() -> None:
    b = Builder("read", 1)
    b.binding("x", "f16", 4, "read")
    program = b.finish((1, 1, 1))
    for arrays in ({}, {"x": np.zeros(5, np.float16)}, {"x": np.zeros(4, np.float32)}):
        with pytest.raises(InputError, match="'x'"):
            run(program, arrays)


def test_what_is_given_stays_as_it_is() -> None:
    b = Builder("change", 4)
    z = b.binding("z", "f32", 4, "read_write")
    b.store(z, b.invocation, b.load(z, b.invocation) + 1.0)
    given = np.zeros(4, np.float32)
    assert run(b.finish((1, 1, 1)), {"z": given})["z"].tolist() == [1, 1, 1, 1]
    assert not given.any()
