"""Attention as group programs, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_kernels import attention
from examples import examples
from gpu_devices import absent
from group_kernels import (
    LIMITS,
    SUBGROUPS,
    check_kernel,
    execute,
    narrowed,
    relative_error,
)
from hypothesis import given, note
from hypothesis import strategies as st

from smalti.codegen.gpu.form import (
    Branch,
    GroupLoad,
    Loop,
    MatrixLoad,
    Number,
    Op,
    Set,
    Store,
    Variable,
    expressions,
    statements,
)
from smalti.codegen.gpu.lower import lower
from smalti.compiler.check import TOLERANCES
from smalti.errors import IllegalSchedule
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupAttention, GroupLimits, GroupMatrixAttention, MatrixShape
from smalti.schedule.space_attention import AttentionWork, matrix_schedules
from smalti.schedule.space_group import best_matrix, matrix_subgroup

EXAMPLES = 15
HALVES = replace(LIMITS, f16=True)


CASES = {
    "one": attention(1, 1, 1, 1), "odd": attention(5, 3, 2, 7), "plain": attention(64, 64, 2, 40),
    "wide": attention(6, 33, 1, 160), "batch": attention(9, 70, 1, 64, batch=2),
    "causal": attention(77, 77, 2, 24, causal=True), "values": attention(31, 57, 2, 3, width=9),
    "more keys": attention(9, 20, 2, 8, causal=True), "apart": attention(17, 40, 2, 8, apart=4),
    "fewer keys": attention(20, 9, 2, 8, causal=True), "between": attention(17, 40, 2, 8, apart=3),
    "mask": attention(37, 77, 2, 24, mask="st"), "keys masked": attention(20, 57, 2, 8, mask="s"),
    "all": attention(33, 70, 2, 8, batch=2, mask="nhst", causal=True),
    "negative": attention(16, 50, 1, 5, scale=-0.5, causal=True),
    "vae": attention(5, 9, 1, 512),
    "groups": attention(45, 45, 6, 16, batch=2, causal=True, group=3),
}


@pytest.mark.parametrize("name, dtype", [
    pytest.param(name, ("f32", "f16", "bf16")[(n + more) % 3],
                 marks=pytest.mark.sweep if more else ())
    for n, name in enumerate(CASES) for more in range(2)])
def test_attention(name: str, dtype: str) -> None:
    kernel = CASES[name]
    kernel = replace(kernel, buffers=tuple(replace(b, dtype=dtype) if b.name in (*"qkv", "out")
                                           else b for b in kernel.buffers))
    schedule = check_kernel(kernel, limits=HALVES)
    assert schedule.dtype == ("f16" if dtype == "f16" else "f32")


MATRICES = {
    "one": GroupMatrixAttention(1, 1, 16, "16x16x16", 32),
    "held": GroupMatrixAttention(1, 1, 16, "16x16x16", 32, held=True),
    "blocks": GroupMatrixAttention(2, 2, 32, "16x16x16", 32, columns=2),
    "small": GroupMatrixAttention(2, 1, 24, "8x8x8", 8),
    "ahead": GroupMatrixAttention(1, 1, 32, "16x16x16", 64, held=True, ahead=True),
    "uneven": GroupMatrixAttention(2, 1, 16, "8x16x16", 16),
    "bf16": GroupMatrixAttention(2, 1, 32, "16x16x16", 32, "bf16"),
    "across": GroupMatrixAttention(4, 1, 64, "16x16x16", 32, across=4),
    "sets": GroupMatrixAttention(6, 2, 32, "16x16x16", 32, across=2),
    "ways": GroupMatrixAttention(8, 2, 16, "8x8x8", 8, across=4, channels=32),
    "idle subgroups": GroupMatrixAttention(16, 1, 32, "8x8x8", 8, across=16, channels=128),
    "last chunk": GroupMatrixAttention(2, 1, 16, "8x8x8", 8, across=2, channels=16),
    "chunks": GroupMatrixAttention(4, 2, 64, "8x8x8", 8, across=4, columns=2, channels=32),
    "one tile": GroupMatrixAttention(2, 1, 80, "16x16x16", 32, held=True),
    "one tile across": GroupMatrixAttention(8, 1, 80, "8x8x8", 8, across=2, channels=0),
}
SHAPES = ((16, 16, 16), (8, 8, 8), (8, 16, 16))
UNIT = replace(HALVES, shared_bytes=48 << 10, subgroup_min=8, subgroup_max=64,
               subgroup_operations=True, subgroup_choice=True,
               matrices=tuple(MatrixShape(*shape, factors, "f32") for shape in SHAPES
                              for factors in ("f16", "bf16")))


@pytest.mark.sampled
@pytest.mark.parametrize("case", ["odd", "all", "between", "plain", "causal", "values", "groups",
                                  "negative"])
@pytest.mark.parametrize("name", MATRICES)
def test_attention_in_the_matrix_unit(name: str, case: str) -> None:
    dtype = MATRICES[name].dtype
    kernel = narrowed(CASES[case], dtype)
    found, expected = execute(kernel, MATRICES[name], {}, UNIT)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES[dtype]


@pytest.mark.sampled
@pytest.mark.parametrize("case", ["all", "plain", "causal", "values"])
@pytest.mark.parametrize("name", ["held", "sets", "chunks", "last chunk", "ways", "across",
                                  "idle subgroups"])
def test_loops_end_where_no_driver_sees_it_if_registers_are_few(name: str, case: str) -> None:
    kernel, few = narrowed(CASES[case], "f16"), replace(UNIT, registers=128)
    found, expected = execute(kernel, MATRICES[name], {}, few)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]
    (program,) = lower(kernel, MATRICES[name], few).steps
    ends = [each.stop for each in statements(program.body)
            if isinstance(each, Loop) and each.counter.startswith("key")]
    assert (ends or kernel.buffer("k").shape[1] <= MATRICES[name].keys) and not any(
        isinstance(end, Number) for end in ends)


@pytest.mark.parametrize("name", ["plain", "odd", "values"])
def test_keys_and_values_are_loaded_without_a_decision(name: str) -> None:
    for schedule in (GroupAttention(4, 8, 1, 12), MATRICES["blocks"], MATRICES["ahead"]):
        for step in lower(narrowed(CASES[name], "f16"), schedule, UNIT).steps:
            read = [each for each in expressions(step.body)
                    if isinstance(each, GroupLoad) and each.buffer in ("k", "v")]
            assert read and all(each.where is None for each in read)


def test_the_last_tile_ends_with_the_last_key() -> None:
    kernel = narrowed(attention(64, 77, 2, 40), "f16")
    for schedule, most in ((GroupAttention(4, 8, 1, 40), 1), (MATRICES["blocks"], 1),
                           (MATRICES["ahead"], 3)):  # the next tile of each begins somewhere, too
        (program,) = lower(kernel, schedule, UNIT).steps
        limited = [each for each in expressions(program.body)
                   if isinstance(each, Op) and each.instruction == "min"]
        assert len(limited) == most, "each place that is read was kept in front of the last key"


def test_queries_that_are_held_lie_elsewhere_than_weights_if_registers_are_few() -> None:
    kernel = narrowed(CASES["plain"], "f16")
    (program,) = lower(kernel, MATRICES["held"], replace(UNIT, registers=128)).steps
    loop = next(each for each in statements(program.body)
                if isinstance(each, Loop) and each.counter.startswith("key"))
    inside = set(map(id, expressions(loop.body)))
    strides: dict[bool, set[int]] = {True: set(), False: set()}
    for each in expressions(program.body):
        if isinstance(each, MatrixLoad) and each.buffer.startswith("weight"):
            strides[id(each) in inside].add(each.stride)
    assert strides[True] and strides[False] and not strides[True] & strides[False]


@pytest.mark.parametrize("name", ["uneven", "sets"])
def test_one_sum_at_a_time_is_a_product_if_registers_are_few(name: str) -> None:
    kernel = narrowed(CASES["plain"], "f16")
    (program,) = lower(kernel, MATRICES[name], replace(UNIT, registers=128)).steps
    loop = next(each for each in statements(program.body)
                if isinstance(each, Loop) and each.counter.startswith("key"))
    products: set[str] = set()
    for each in statements(loop.body):
        if isinstance(each, Set) and each.name.startswith("sum") and isinstance(each.value, Op):
            if each.value.instruction == "matrix_times":
                products.remove(each.name)
            elif each.value.instruction == "matrix_multiply_add":
                products.add(each.name)
                assert len(products) <= MATRICES[name].blocks
    assert not products


def test_one_tile_has_no_top_of_earlier_keys() -> None:
    kernel = narrowed(attention(40, 77, 1, 40), "f16")
    (program,) = lower(kernel, MATRICES["one tile"], UNIT).steps
    names = {each.name for each in statements(program.body) if isinstance(each, Variable)}
    assert not any(name.startswith(("top", "total")) for name in names)
    assert MATRICES["one tile"] in {
        replace(each, subgroups=2, blocks=1) for each in matrix_schedules(
            kernel, replace(UNIT, subgroup_min=32), MatrixShape(16, 16, 16, "f16", "f32"))}


@pytest.mark.parametrize("name, width, counts", [
    ("held", 40, True), ("held", 48, False), ("sets", 40, True), ("sets", 64, False),
    ("across", 40, True), ("chunks", 40, False), ("one tile", 40, False)])
def test_weights_are_counted_by_a_channel_that_nobody_has(name: str, width: int,
                                                          counts: bool) -> None:
    """As far as matrices reach behind the last: an instruction less for each weight."""
    kernel, schedule = narrowed(attention(40, 77, 1, 40, width=width), "f16"), MATRICES[name]
    (program,) = lower(kernel, schedule, UNIT).steps
    assert schedule.counts(77, width) is counts
    assert any(isinstance(each, Variable) and each.name.startswith("total")
               for each in statements(program.body)) is not (counts or schedule.keys > 77)
    found, expected = execute(kernel, schedule, {}, UNIT)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]


@pytest.mark.parametrize("tokens, keys, depth, apart, few, read", [
    (64, 70, 32, 0, False, True), (65, 70, 32, 0, False, False), (64, 70, 40, 0, False, False),
    (64, 70, 32, 3, False, False), (64, 70, 32, 0, True, False), (64, 90, 32, 0, False, False)])
def test_whole_queries_that_are_held_are_read_where_they_are(
        tokens: int, keys: int, depth: int, apart: int, few: bool, read: bool) -> None:
    kernel = narrowed(attention(tokens, keys, 2, depth, apart=apart), "f16")
    limits = replace(UNIT, registers=128) if few else UNIT
    schedule = GroupMatrixAttention(2, 1, 80, "16x16x16", 32, across=1, held=True)
    (program,) = lower(kernel, schedule, limits).steps
    assert read is any(isinstance(each, MatrixLoad) and each.buffer == "q"
                       for each in expressions(program.body))
    found, expected = execute(kernel, schedule, {}, limits)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]


def test_who_brings_a_vector_is_asked_once_for_several() -> None:
    """128 invocations bring 6 rows of 20 vectors of keys at a time, 64 rows in 11 turns, and 12
    rows of 40 blocks of values in 6: 8 invocations bring nothing."""
    kernel = narrowed(attention(64, 64, 1, 160), "f16")
    schedule = GroupMatrixAttention(4, 1, 64, "16x16x16", 32, across=4, held=True)
    (program,) = lower(kernel, schedule, replace(UNIT, shared_bytes=64 << 10)).steps
    loads: list[set[str]] = []
    for each in statements(program.body):
        if isinstance(each, Branch):
            loads.append({store.buffer for store in statements(each.then)
                          if isinstance(store, Store)})
    assert sum(any(name.startswith("key") for name in names) for names in loads) == 3 + 1
    assert sum(any(name.startswith("value") for name in names) for names in loads) == 2 + 1


def test_one_tile_is_loaded_once() -> None:
    kernel = narrowed(attention(40, 64, 1, 40), "f16")
    schedule = GroupMatrixAttention(2, 1, 64, "16x16x16", 32, held=True)
    programs = [lower(kernel, replace(schedule, ahead=ahead), UNIT).steps for ahead in (0, 1)]
    assert programs[0] == programs[1]
    assert not any(each.ahead and each.keys >= 64 for each in matrix_schedules(
        kernel, replace(UNIT, subgroup_min=32), MatrixShape(16, 16, 16, "f16", "f32")))


def test_matrices_of_scores_are_not_more_than_keys() -> None:
    with pytest.raises(IllegalSchedule, match="4 matrices at a time of 32 keys"):
        GroupMatrixAttention(4, 1, 32, "16x16x16", 32, across=4, columns=4, channels=128).check(
            UNIT)


def test_the_matrix_unit_is_chosen_where_it_may_be() -> None:
    limits = replace(UNIT, subgroup_min=32, subgroup_max=32, units=2)
    for kernel, kind in (
            (CASES["plain"], GroupMatrixAttention), (CASES["causal"], GroupMatrixAttention),
            (CASES["wide"], GroupAttention), (attention(40, 33, 1, 160), GroupMatrixAttention),
            (attention(17, 20, 1, 512), GroupMatrixAttention)):
        kernel = narrowed(kernel, "f16")
        schedule = choose_group(kernel, limits, "f16")
        assert isinstance(schedule, kind)
        assert isinstance(choose_group(kernel, limits, "f32"), GroupAttention)
        found, expected = execute(kernel, schedule, {}, limits)
        assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]


@pytest.mark.parametrize(("shape", "subgroup", "registers"), [
    ((8, 8, 16), 8, 128), ((8, 16, 16), 16, 128), ((16, 16, 16), 32, 256)])
def test_subgroups_are_those_that_matrix_units_want(shape: tuple[int, int, int], subgroup: int,
                                                    registers: int) -> None:
    """Of Intel's units with 8 rows as many as columns, of AMD's 32 where 64 could be."""
    limits = replace(UNIT, subgroup_min=min(subgroup, 32), subgroup_max=64, subgroup_choice=True,
                     units=2, registers=registers, matrices=(MatrixShape(*shape, "f16", "f32"),))
    kernel = narrowed(attention(40, 33, 1, 40), "f16")
    schedule = choose_group(kernel, limits, "f16")
    assert (schedule.subgroup, schedule.shape) == (subgroup, shape)
    found, expected = execute(kernel, schedule, {}, limits)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]


@pytest.mark.parametrize("subgroup", SUBGROUPS)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_rows_fold_in_subgroups(name: str, subgroup: int) -> None:
    limits = replace(LIMITS, subgroup_operations=True, subgroup_min=subgroup,
                     subgroup_max=subgroup)
    check_kernel(CASES[name], GroupAttention(8, 8, 2, 24, "f32", subgroup), limits=limits,
                 subgroup=subgroup)
    assert choose_group(CASES[name], limits).subgroup in (0, subgroup)


@pytest.mark.parametrize("depth", [40, 64, 80, 128, 160, 512])
@pytest.mark.parametrize(("shape", "subgroup", "registers"), [
    ((8, 16, 16), 16, 128), ((16, 16, 16), 32, 256), (None, 32, 256), (None, 16, 128)])
def test_heads_of_every_width_fit_into_registers(
        depth: int, shape: tuple[int, int, int] | None, subgroup: int, registers: int) -> None:
    limits = replace(UNIT, subgroup_min=subgroup, subgroup_max=32, registers=registers, units=32,
                     invocations=1024, matrices=() if shape is None else (
                         MatrixShape(*shape, "f16", "f32"),))
    kernel = narrowed(attention(4096, 4096, 8, depth), "f16")
    schedule = choose_group(kernel, limits, "f16")
    assert isinstance(schedule, GroupAttention) == (shape is None)
    wanted = AttentionWork.of(kernel, limits).held(schedule)
    assert wanted <= registers * (1.25 if depth == 512 else 1.03), schedule


COMPILED = {  # heads, schedule, registers by Intel's compiler for Xe-HPG (Mesa 26.1.6)
    "held": (40, GroupMatrixAttention(32, 1, 32, "8x8x16", 8, across=2, held=True), 124),
    "blocks": (40, GroupMatrixAttention(16, 2, 32, "8x8x16", 8, across=4), 132),
    "columns": (80, GroupMatrixAttention(16, 1, 32, "8x8x16", 8, across=2, columns=2), 126),
    "keys": (80, GroupMatrixAttention(16, 1, 64, "8x8x16", 8, across=4, columns=2), 116),
    "turns": (80, GroupMatrixAttention(16, 1, 32, "8x8x16", 8, across=2), 150),
    "wide": (160, GroupMatrixAttention(16, 1, 32, "8x8x16", 8, across=4), 118),
    "chunks": (512, GroupMatrixAttention(32, 1, 32, "8x8x16", 8, across=16, channels=128), 115),
}


@pytest.mark.parametrize("name", COMPILED)
def test_registers_of_narrow_subgroups_are_those_that_their_compiler_takes(name: str) -> None:
    depth, schedule, registers = COMPILED[name]
    limits = replace(UNIT, subgroup_max=32, registers=128, architecture="xe_hpg", matrices=(
        MatrixShape(8, 8, 16, "f16", "f32"),))
    kernel = narrowed(attention(4096, 4096, 8, depth), "f16")
    assert abs(AttentionWork.of(kernel, limits).held(schedule) - registers) <= 8
    assert isinstance(choose_group(kernel, limits, "f16"), GroupMatrixAttention)


@pytest.mark.parametrize("shared", [8 << 10, 48 << 10])
def test_schedules_fit_into_the_memory_that_there_is(shared: int) -> None:
    limits = GroupLimits(shared_bytes=shared, invocations=128)
    schedule = check_kernel(CASES["wide"], limits=limits)
    assert schedule.shared_bytes(160) <= shared


@examples(EXAMPLES)
@given(st.data(), st.integers(1, 40), st.integers(1, 70), st.integers(1, 21), st.integers(1, 21),
       st.booleans(), st.sampled_from(["", "s", "st", "nhst"]), st.sampled_from([0, 1, 4]))
def test_any_legal_schedule_computes_the_same(data, tokens: int, keys: int, depth: int, width: int,
                                              causal: bool, mask: str, apart: int) -> None:
    kernel = attention(tokens, keys, 2, depth, width, 2, causal, mask, apart=apart)
    schedule = GroupAttention(
        data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 2, 4, 8, 16])),
        data.draw(st.integers(1, 3)), data.draw(st.sampled_from([4, 8, 12, 24])))
    note(f"{schedule}\n{kernel}")
    check_kernel(kernel, schedule)


@pytest.mark.parametrize("growing", [False, True])
def test_the_top_follows_scores_that_grow(growing: bool) -> None:
    """Scores rise or fall by hundreds from tile to tile of keys."""
    kernel = attention(9, 96, 1, 4, scale=1.0)
    steps = np.linspace(-300, 300, 96)[:: 1 if growing else -1]
    q, k = np.ones((1, 9, 1, 4)), np.zeros((1, 96, 1, 4))
    k[0, :, 0, 0] = steps
    check_kernel(kernel, GroupAttention(1, 8, 1, 4), {"q": q, "k": k})


@pytest.mark.parametrize("number", [-np.inf, -3.4e38, -1e4])
def test_rows_and_keys_that_are_masked_by_large_numbers(number: float) -> None:
    kernel = attention(20, 50, 1, 8, mask="st")
    mask = np.zeros((1, 1, 50, 20), np.float32)
    mask[:, :, ::2], mask[..., 3], mask[:, :, :40, 5] = number, number, number
    check_kernel(kernel, GroupAttention(2, 8, 2, 8), {"mask": mask})


def test_nan_is_passed_on() -> None:
    kernel = attention(20, 50, 1, 8)
    for name, where, lost in (("q", 7, 1), ("v", 9, 20)):
        values = np.random.default_rng(0).standard_normal(kernel.buffer(name).shape)
        values[0, where] = np.nan
        found, _ = execute(kernel, choose_group(kernel, LIMITS), {name: values})
        assert np.isnan(found["out"]).any(axis=(0, 2, 3)).sum() == lost


@pytest.mark.parametrize("registers", [256, 128])
def test_attention_on_a_device(vulkan: Gpu, registers: int, monkeypatch) -> None:
    """In the matrix unit, too, if there is one; loops differ where registers are few."""
    monkeypatch.setattr(vulkan, "limits", replace(vulkan.limits, registers=registers))
    for name, precision in (("all", "f32"), ("apart", "f16"), ("causal", "f32")):
        kernel, limits = narrowed(CASES[name], precision), vulkan.limits
        schedule = choose_group(kernel, limits, precision)
        found, expected = execute(kernel, schedule, {}, limits, gpu=vulkan)
        assert relative_error(found["out"], expected["out"]) < TOLERANCES[precision], schedule


@pytest.mark.sweep
@pytest.mark.parametrize("across, channels", [(1, 0), (2, 16)])
def test_few_registers_and_matrices_on_a_device(vulkan: Gpu, across: int, channels: int,
                                                monkeypatch) -> None:
    shape = best_matrix(vulkan.limits, "f16")
    if shape is None:
        absent("no matrix unit", "mesa-vulkan-drivers in its version 26 or later")
    limits = replace(vulkan.limits, registers=128)
    monkeypatch.setattr(vulkan, "limits", limits)
    schedule = GroupMatrixAttention(2 * across, 1, 32, shape.text, matrix_subgroup(shape, limits),
                                    across=across, channels=channels, columns=2 if channels else 1)
    kernel = narrowed(attention(20, 77, 1, 24, width=20), "f16")
    found, expected = execute(kernel, schedule, {}, limits, gpu=vulkan)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"]


@pytest.mark.parametrize("schedule, message", [
    (GroupAttention(64, 16, 1, 4), "1024 invocations"), (GroupAttention(4, 6, 1, 4), "6 of 24"),
    (GroupAttention(4, 8, 1, 6), "6 channels"), (GroupAttention(4, 8, 0, 4), "0 keys"),
    (GroupAttention(4, 8, 1, 4, "f16"), "f16"),
    (GroupAttention(4, 8, 1, 4, "f32", 32), "subgroups"),
    (GroupAttention(8, 16, 16, 8), "shared memory"),
    (GroupMatrixAttention(1, 1, 16, "16x16x16", 32), "matrix unit has no 16x16x16 of f16"),
    (GroupMatrixAttention(1, 1, 16, "", 32), "matrix unit has no  of f16")])
def test_schedules_that_cannot_be(schedule: GroupAttention, message: str) -> None:
    with pytest.raises(IllegalSchedule, match=message):
        check_kernel(CASES["plain"], schedule)
