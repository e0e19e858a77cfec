"""Attention whose invocations hold whole queries, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_kernels import attention
from examples import examples
from gpu_devices import absent
from group_kernels import LIMITS, execute, narrowed, relative_error
from hypothesis import given, note
from hypothesis import strategies as st

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    U32,
    MatrixStore,
    Op,
    Set,
    expressions,
    number,
    op,
    statements,
)
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.types import Matrix
from smalti.codegen.spirv.emit import emit
from smalti.codegen.spirv.text import listing
from smalti.compiler.check import TOLERANCES
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, MatrixShape
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.line_work import line_schedules
from smalti.schedule.space_group import best_matrix

EXAMPLES = 12
SHAPES = ((8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16))
COLUMNS = replace(LIMITS, f16=True, storage16=True, shared_bytes=48 << 10, subgroup_min=8,
                  subgroup_max=32, subgroup_operations=True, subgroup_choice=True,
                  right_lines="columns", sum_lines="columns", left_words=True,
                  matrices=tuple(MatrixShape(*shape, "f16", "f32") for shape in SHAPES))
SCHEDULES = {
    "held": GroupLineAttention(4, 1, 32, "8x8x16", 8, held=True),
    "shared": GroupLineAttention(2, 2, 32, "8x16x16", 16),
    "words": GroupLineAttention(4, 1, 32, "8x8x16", 8, held=True, words=True),
    "words in chunks": GroupLineAttention(4, 2, 32, "8x8x16", 8, across=2, channels=32, words=True),
    "blocks": GroupLineAttention(2, 2, 16, "8x8x8", 8, held=True),
    "ahead": GroupLineAttention(2, 1, 16, "16x16x16", 16, held=True, ahead=True),
    "across": GroupLineAttention(4, 1, 64, "8x8x16", 8, across=4),
    "words across": GroupLineAttention(4, 2, 32, "8x8x16", 8, across=2, words=True),
    "read again": GroupLineAttention(8, 1, 128, "8x8x16", 8, across=8, channels=64, words=True),
    "chunks": GroupLineAttention(4, 1, 32, "8x8x16", 8, across=2, channels=32),
    "one tile": GroupLineAttention(2, 2, 80, "8x16x16", 16, held=True),
}
CASES = {
    "odd": attention(5, 3, 2, 7), "plain": attention(64, 64, 2, 40),
    "between": attention(17, 40, 2, 8, apart=3),
    "all": attention(33, 70, 2, 8, batch=2, mask="nhst", causal=True),
    "values": attention(31, 57, 2, 3, width=9), "negative": attention(16, 50, 1, 5, scale=-0.5),
    "groups": attention(45, 45, 6, 16, batch=2, causal=True, group=3),
    "keys masked": attention(20, 57, 2, 8, mask="s"), "vae": attention(20, 40, 1, 136),
}


def check(kernel: Kernel, schedule: GroupLineAttention, limits: GroupLimits,
          gpu: Gpu | None = None) -> None:
    """Assert that a kernel computes what it means under a schedule."""
    found, expected = execute(narrowed(kernel, "f16"), schedule, {}, limits, gpu=gpu)
    assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"], schedule


@pytest.mark.sampled
@pytest.mark.parametrize("registers", [256, 128])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_attention_of_whole_queries(name: str, case: str, registers: int) -> None:
    schedule, kernel = SCHEDULES[name], CASES[case]
    if any(kernel.buffer(each).shape[3] % 8 or kernel.buffer(each).strides[1] % 8 for each in "kv"):
        schedule = replace(schedule, words=False)
    check(kernel, schedule, replace(COLUMNS, registers=registers))


@examples(EXAMPLES)
@given(st.data(), st.integers(1, 40), st.integers(1, 90), st.sampled_from([5, 8, 24, 40]),
       st.sampled_from([8, 17, 40]), st.booleans(), st.sampled_from(["", "st"]))
def test_any_legal_schedule_computes_the_same(data, tokens: int, keys: int, depth: int, width: int,
                                              causal: bool, mask: str) -> None:
    limits = data.draw(st.sampled_from([COLUMNS, replace(COLUMNS, left_words=False)]))
    kernel = attention(tokens, keys, 1, depth, width, causal=causal, mask=mask)
    shape = data.draw(st.sampled_from(limits.matrices))
    found = list(line_schedules(kernel, limits, shape))
    if found:
        schedule = data.draw(st.sampled_from(found))
        note(str(schedule))
        check(kernel, schedule, limits)


def test_scores_stay_in_registers() -> None:
    """Nothing is written as a matrix, and one subgroup alone meets no others for its weights."""
    kernel = narrowed(CASES["plain"], "f16")
    (program,) = lower(kernel, SCHEDULES["held"], COLUMNS).steps
    assert not any(isinstance(each, MatrixStore) for each in statements(program.body))
    assert {array.name for array in program.shared} == {"key", "value"}


def test_drivers_load_nothing_where_all_is_known() -> None:
    kernel = narrowed(CASES["plain"], "f16")
    (program,) = lower(kernel, SCHEDULES["words"], COLUMNS).steps
    assert "CooperativeMatrixLoadKHR" not in listing(emit(program, COLUMNS))
    for unknown in ({"left_words": False}, {"sum_lines": ""}, {"right_lines": ""}):
        with pytest.raises(IllegalSchedule, match="nobody knows"):
            emit(program, replace(COLUMNS, **unknown))


@pytest.mark.parametrize("growing", [False, True])
def test_the_top_follows_scores_that_grow(growing: bool) -> None:
    kernel = narrowed(attention(16, 128, 1, 8), "f16")
    keys = np.full((1, 128, 1, 8), 0.05, np.float32)
    if growing:
        keys *= np.arange(1, 129, dtype=np.float32)[None, :, None, None]
    queries = np.full((1, 16, 1, 8), 12.0, np.float32)
    for name in ("held", "across", "words across"):
        found, expected = execute(kernel, SCHEDULES[name], {"q": queries, "k": keys},
                                  COLUMNS)
        assert relative_error(found["out"], expected["out"]) < TOLERANCES["f16"], name


def test_one_sum_at_a_time_is_a_product_if_registers_are_few() -> None:
    kernel = narrowed(CASES["plain"], "f16")
    (program,) = lower(kernel, SCHEDULES["held"], replace(COLUMNS, registers=128)).steps
    copies = [each for each in statements(program.body) if isinstance(each, Set)
              and isinstance(each.value, Op) and each.value.instruction == "matrix_times"]
    assert len(copies) == 40 // 8  # a matrix has 8 of 40 channels


def test_it_is_chosen_where_lines_are_known() -> None:
    kernel = narrowed(attention(1024, 1024, 8, 40), "f16")
    few = replace(COLUMNS, registers=128, subgroup_max=8, matrices=(
        MatrixShape(8, 8, 16, "f16", "f32"),))
    assert isinstance(choose_group(kernel, few, "f16"), GroupLineAttention)
    unknown = choose_group(kernel, replace(few, right_lines=""), "f16")
    assert not isinstance(unknown, GroupLineAttention)
    (program,) = lower(kernel, unknown, replace(few, right_lines="")).steps
    assert not any(isinstance(each, Op) and each.instruction == "of_column"
                   for each in expressions(program.body))


def test_what_invocations_hold_of_sums_on_a_device(vulkan: Gpu) -> None:
    """Each changes its column as only it does, and the matrix has them all."""
    shape = best_matrix(vulkan.limits, "f16")
    if shape is None or vulkan.limits.sum_lines != "columns":
        absent("no matrix unit whose columns are known", "mesa-vulkan-drivers, version 26 or later")
    rows, columns = shape.rows, shape.columns
    b, size = Builder("columns", columns, columns), rows * columns
    x, y = b.binding("x", "f32", size, "read"), b.binding("y", "f32", size, "write")
    held = b.let(b.matrix(x, 0, columns, Matrix("sum", rows, columns, "f32")))
    own = [b.let(op("of_column", held, number(n, U32)) * (b.lane + n).to("f32"))
           for n in range(rows)]
    b.store_matrix(y, 0, columns, op("with_columns", held, *own))
    program = b.finish((1, 1, 1))
    given = {"x": np.arange(size, dtype=np.float32), "y": np.zeros(size, np.float32)}
    assert launched(vulkan, program, given)["y"].tolist() == run(program, given)["y"].tolist()


@pytest.mark.parametrize("schedule, message", [
    (GroupLineAttention(2, 1, 32, "8x16x16", 16, words=True), "words of a row"),
    (GroupLineAttention(2, 1, 32, "8x8x16", 16), "subgroups of 16"),
    (GroupLineAttention(4, 1, 16, "8x8x16", 8, across=4), "16 keys of 4"),
    (GroupLineAttention(3, 1, 64, "8x8x16", 8, across=2), "sets of 2"),
    (GroupLineAttention(2, 1, 32, "8x8x16", 8, channels=24), "24 channels"),
    (GroupLineAttention(2, 1, 32, "8x8x16", 8, dtype="bf16"), "bf16")])
def test_schedules_that_cannot_be(schedule: GroupLineAttention, message: str) -> None:
    with pytest.raises(IllegalSchedule, match=message):
        schedule.check(COLUMNS)
