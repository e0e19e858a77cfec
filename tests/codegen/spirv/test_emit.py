"""Modules are valid, and say what programs mean."""

from __future__ import annotations

import struct
from dataclasses import replace

import group_programs as programs
import pytest

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import F32, GroupProgram, Number
from smalti.codegen.gpu.types import Matrix
from smalti.codegen.spirv.emit import emit
from smalti.codegen.spirv.text import listing
from smalti.errors import IllegalSchedule, VerificationError
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.group import GroupLimits

PLAIN = GroupLimits(storage16=True)
RICH = GroupLimits(storage16=True, storage8=True, f16=True, keeps_nan=True, exact_f16=True,
                   int16=True, dot_i8=True)


@pytest.mark.parametrize(("limits", "environment"), [(PLAIN, "vulkan1.1"), (RICH, "vulkan1.3")])
def test_modules_are_valid(validate, limits: GroupLimits, environment: str) -> None:
    for program in programs.all_without_matrices(limits.f16):
        validate(emit(program, limits), environment)


@pytest.mark.parametrize("stored", programs.LOADS)
def test_elements_are_one_load_of_memory(stored: str) -> None:
    text = listing(emit(programs.copy(stored, programs.LOADS[stored][0], 4, 4), RICH))
    block = next(line for line in text.splitlines() if "ArrayStride" in line)
    assert int(block.split()[-1]) == {"f16": 8, "bf16": 8, "i8": 4, "u8": 4}.get(stored, 16)


def lines(text: str, *words: str) -> list[str]:
    """The lines of a listing that hold these words."""
    return [line for line in text.splitlines() if all(word in line for word in words)]


def uses(text: str, name: str) -> list[str]:
    """The lines of a listing's body that take a value, besides the one that makes it."""
    _, body = text.split("= Function")
    return [line for line in body.splitlines() if name in line.replace(",", "").split()[1:]]


def test_constants_keep_their_bits() -> None:
    module = emit(programs.constants(), RICH)
    words = struct.unpack(f"<{len(module) // 4}I", module)
    wanted = {0, 0x80000000, 0x3F800000, 0x7FC00000, 0x7F800000, 0xFF800000, 1, 0x3DCCCCCD,
              0xFFFFFFFF}
    assert wanted <= set(words)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("factors", ["f16", "bf16"])
def test_matrices_are_the_matrix_unit_s(factors: str, shared: bool) -> None:
    limits = GroupLimits(storage16=True, f16=True, bf16=True)
    text = listing(emit(programs.products(16, 8, 16, factors, "f32", shared), limits))
    assert text.startswith("SPIR-V 1.6") and lines(text, "MemoryModel 0, 3")
    assert lines(text, "Capability CooperativeMatrixKHR")
    assert bool(lines(text, "Capability BFloat16TypeKHR")) == (factors == "bf16")
    matrix = f"TypeCooperativeMatrixKHR {factors}, 3, "
    assert lines(text, matrix + "16, 16, 0") and lines(text, matrix + "16, 8, 1")
    assert lines(text, "TypeCooperativeMatrixKHR f32, 3, 16, 8, 2")
    loads = lines(text, "CooperativeMatrixLoadKHR")
    strides = {line.split(", ")[2] for line in loads}
    assert strides == ({"4", "48", "8"} if shared else {"48", "8"})  # shared elements are vectors
    assert sum(line.split(", ")[1] == "1" for line in loads) == 1  # by columns
    assert len(lines(text, "CooperativeMatrixMulAddKHR")) == 1
    assert len(lines(text, "CooperativeMatrixStoreKHR")) == 2
    assert len(lines(text, "= FConvert %")) == 1


@pytest.mark.parametrize("shape", [(16, 16, 16), (8, 16, 32), (16, 8, 32), (8, 8, 8)])
def test_bytes_of_matrices_have_a_sign(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    text = listing(emit(programs.products_of_bytes(*shape), GroupLimits()))
    assert lines(text, "Capability Int8") and lines(text, "= TypeInt 8, 1")
    assert lines(text, f"TypeCooperativeMatrixKHR i8, 3, {rows}, {depth}, 0")
    assert lines(text, f"TypeCooperativeMatrixKHR i8, 3, {depth}, {columns}, 1")
    assert lines(text, f"TypeCooperativeMatrixKHR i32, 3, {rows}, {columns}, 2")
    products = lines(text, "CooperativeMatrixMulAddKHR")
    assert len(products) == 2 and all(line.endswith(", 15") for line in products)
    assert lines(text, "ConstantComposite", " -3")


def test_modules_of_the_matrix_unit_are_valid(validate, vulkan: Gpu) -> None:
    """By a validator that knows matrices, as it comes with a driver that has them."""
    for shape in vulkan.limits.matrices:
        if shape.factors == "i8":
            validate(emit(programs.products_of_bytes(shape.rows, shape.columns, shape.depth),
                          vulkan.limits), "vulkan1.3")
        elif shape.sums == "f32":
            validate(emit(programs.products_in_words(shape.rows, shape.columns, shape.depth,
                                                     shape.factors), vulkan.limits), "vulkan1.3")


@pytest.mark.parametrize(("subgroup", "by_columns", "loads"), [
    (8, True, 1), (8, False, 2), (16, True, 2)])
def test_lines_that_invocations_hold_are_read_as_vectors(
        subgroup: int, by_columns: bool, loads: int) -> None:
    """8 columns of 16 halves in 8 invocations: two vectors of 16 bytes each, whose halves are put
    in their places."""
    limits = GroupLimits(storage16=True, f16=True, right_lines="columns")
    program = programs.products_in_words(8, 8, 16, "f16", subgroup, by_columns)
    text = listing(emit(program, limits))
    assert len(lines(text, "CooperativeMatrixLoadKHR")) == loads
    assert len(lines(text, "= CompositeInsert")) == (16 if loads == 1 else 0)


def test_what_others_see_is_not_private_under_the_vulkan_memory_model() -> None:
    limits = GroupLimits(storage16=True, f16=True)
    text = listing(emit(programs.products(16, 8, 16, "f16", "f32", True), limits))
    arrays = [line.split()[0] for line in lines(text, "Variable", "Workgroup")]
    pointers = [line.split()[0] for name in arrays for line in uses(text, name)]
    accesses = [line for name in pointers for line in uses(text, name)]
    assert len(accesses) == 2 and all(line.endswith(", 32") for line in accesses)
    assert lines(text, "ControlBarrier 2, 2, 24840")  # made available and visible


def test_barriers_wait_for_memory_of_the_device_only_where_it_is_read_back() -> None:
    assert lines(listing(emit(programs.sums(), PLAIN)), "ControlBarrier 2, 2, 264")
    text = listing(emit(programs.meeting(), PLAIN))
    assert lines(text, "ControlBarrier 2, 2, 328") and lines(text, "Coherent")


@pytest.mark.parametrize(("before", "constants"), [(0, ["2"]), (-8, [])])
def test_vectors_beside_each_other_are_a_constant_apart(before: int, constants: list[str]) -> None:
    """What may wrap is not taken apart: 2**32 is no place in a buffer."""
    b = Builder("beside", 64)
    x, y = b.binding("x", "f32", 1024, "read", 4), b.binding("y", "f32", 1024, "write", 4)
    at = b.let(b.invocation * 4 + before)
    b.store(y, b.invocation * 4, b.load(x, at + 8, 4))
    text = listing(emit(b.finish((1, 1, 1)), RICH))
    behind = [line.split()[-1] for line in lines(text, "= IAdd") if line.endswith(", 2")]
    assert behind == constants


def test_addresses_advance_in_loops() -> None:
    """Who adds to a place that is known before a loop does not divide in it, but by constants."""
    b = Builder("advance", 64)
    x, y = b.binding("x", "f32", 4096, "read", 4), b.binding("y", "f32", 64, "write")
    base, total = b.let(b.invocation // 3 + 4), b.variable(0.0)
    with b.loop(8) as turn:
        at = b.let(base + b.let(turn * 256))
        b.set(total, total + b.load(x, at, 4).lane(0) + b.load(x, at + 4, 4).lane(1))
    b.store(y, b.invocation, total)
    text = listing(emit(b.finish((1, 1, 1)), RICH))
    assert lines(text, "= IMul", ", 64")
    divided = [line.split()[4].rstrip(",") for line in lines(text, "ShiftRightLogical")]
    assert divided and not any(f"{each} = IMul" in text or "Phi" in line
                               for each in divided for line in lines(text, f"{each} ="))


def test_barriers_of_subgroups_wait_for_nobody_else() -> None:
    b = Builder("subgroups", 64, 32)
    b.barrier(subgroup=True)
    assert lines(listing(emit(b.finish((1, 1, 1)), RICH)), "ControlBarrier 3, 3, 264")


def test_what_is_only_read_may_be_read_early() -> None:
    text = listing(emit(programs.sums(), PLAIN))
    assert len(lines(text, "Decorate", "Restrict")) == len(lines(text, "NonWritable")) == 1
    assert len(lines(text, "Decorate", "NonReadable")) == 1


def test_stores_of_halves_round_to_even() -> None:
    text = listing(emit(programs.copy("f16", "f32", 1, 1), PLAIN))
    (said,) = lines(text, "FPRoundingMode, 0")
    assert lines(text, said.split()[1].rstrip(","), "= FConvert")


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_bf16_that_is_moved_is_not_rounded(lanes: int) -> None:
    text = listing(emit(programs.copy("bf16", "f32", lanes, 4), RICH))
    assert not lines(text, "IsNan") and lines(text, "UConvert")


@pytest.mark.parametrize("program, lacking, capability", [
    (programs.instructions("f16", 1), "f16", "Float16"),
    (programs.copy("bf16", "f32", 1, 1), "storage16", "StorageBuffer16BitAccess"),
    (programs.products(8, 8, 8, "bf16", "f32", True), "bf16", "BFloat16TypeKHR")],
    ids=["f16", "storage16", "bf16"])
def test_what_the_device_lacks_is_refused(program: GroupProgram, lacking: str,
                                          capability: str) -> None:
    limits = replace(RICH, bf16=True)
    assert capability in listing(emit(program, limits))
    with pytest.raises(IllegalSchedule, match=f"{program.name} needs {capability}"):
        emit(program, replace(limits, **{lacking: False}))


def test_arithmetic_of_halves_is_specified_where_the_device_can() -> None:
    half, single = (listing(emit(programs.instructions(dtype, 1), RICH))
                    for dtype in ("f16", "f32"))
    for mode in ("DenormPreserve", "RoundingModeRTE"):
        assert len(lines(half, "ExecutionMode", f"{mode}, 16")) == 1
        assert mode not in single
        assert mode not in listing(emit(programs.instructions("f16", 1),
                                        replace(RICH, exact_f16=False)))
    assert half.count("SPV_KHR_float_controls") <= 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_halves_in_shared_memory_are_words_without_integers_of_16(dtype: str, lanes: int,
                                                                  validate) -> None:
    b = Builder("staged", 64)
    x, y = b.binding("x", "f32", 256, "read"), b.binding("y", "f32", 256, "write")
    kept = b.shared("kept", dtype, 256, lanes)
    i = b.invocation * lanes
    b.store(kept, i, b.load(x, i, lanes))
    b.barrier()
    b.store(y, i, b.load(kept, i, lanes))
    program = b.finish((1, 1, 1))
    plain, with_them = (emit(program, GroupLimits(int16=has)) for has in (False, True))
    assert "Int16" not in listing(plain) and "Int16" in listing(with_them)
    for code in (plain, with_them):
        validate(code, "vulkan1.1")


def test_matrices_across_vectors_are_refused() -> None:
    b = Builder("across", 32)
    kind = Matrix("sum", 8, 8, "f32")
    array = b.shared("array", "f32", 96, 4)
    b.store_matrix(array, 0, 8, b.matrix(array, 0, 10, kind))
    with pytest.raises(VerificationError, match="10 elements apart"):
        emit(b.finish((1, 1, 1)), RICH)


@pytest.mark.parametrize(("at", "stride", "seen"), [(16, 16, "2"), (16, 24, "3"), (16, 20, "20"),
                                                    (20, 16, "16")])
def test_matrices_of_a_weight_are_read_in_whole_vectors(at: int, stride: int, seen: str) -> None:
    """Halves whose lines begin at multiples of 16 bytes are seen as four words each."""
    b = Builder("placed", 64, 32)
    w = b.binding("w", "f16", 1024, "read", 8)
    kind = Matrix("b", 16, 16, "f16")
    right = b.let(b.matrix(w, b.subgroup * at, stride, kind, by_columns=True))
    array = b.shared("array", "f16", 512, 4)
    b.store_matrix(array, b.subgroup * 256, 16, right)
    text = listing(emit(b.finish((1, 1, 1)), RICH))
    (load,) = lines(text, "= CooperativeMatrixLoadKHR")
    assert load.split(", ")[2] == seen


def test_bytes_are_not_stored() -> None:
    b = Builder("bytes", 1)
    b.store(b.binding("y", "u8", 4, "write"), 0, Number(1.0, F32))
    with pytest.raises(VerificationError, match="only read"):
        emit(b.finish((1, 1, 1)), RICH)


def test_steps_that_round_are_not_rearranged() -> None:
    b = Builder("steps", 1)
    y = b.binding("y", "f32", 1, "read_write")
    b.store(y, 0, b.load(y, 0) + 1.0 - 1.0)
    text = listing(emit(b.finish((1, 1, 1)), PLAIN))
    made = [line.split()[0] for name in ("FAdd", "FSub") for line in lines(text, f"= {name}")]
    assert len(made) == 2 and {f"Decorate {name}, NoContraction" for name in made} <= {
        *text.splitlines()}


def test_what_lies_over_another_is_said_to_be() -> None:
    b = Builder("over", 32)
    x, y = b.binding("x", "f32", 32, "read_write"), b.binding("y", "f32", 32, "write")
    b.store(y, b.invocation, b.load(x, b.invocation))
    assert len(lines(listing(emit(b.finish((1, 1, 1)), RICH)), "Decorate", "Aliased")) == 2


def test_loops_ask_before_their_turns_where_registers_are_few(validate) -> None:
    """What a loop carries has two registers where it asks behind its turns."""
    b = Builder("sum", 64)
    x, y = b.binding("x", "f32", 64, "read"), b.binding("y", "f32", 64, "write")
    total = b.variable(0.0)
    with b.loop(b.let(b.invocation // 3)) as turn:
        b.set(total, total + b.load(x, turn))
    b.store(y, b.invocation, total)
    program = b.finish((1, 1, 1))
    for limits, asked in ((RICH, 2), (replace(RICH, registers=128), 1)):
        text = listing(emit(program, limits))
        assert len(lines(text, "= ULessThan")) == asked
        validate(emit(program, limits), "vulkan1.3")
