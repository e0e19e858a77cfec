"""What attentions are expected to take on GPUs, and the schedules that are chosen by it."""

from __future__ import annotations

from dataclasses import replace

from attention_kernels import attention
from group_kernels import narrowed

from smalti import machine
from smalti.machine.unit_rates import unit_rates
from smalti.schedule import GroupLimits, choose_group
from smalti.schedule.group import GroupAttention, GroupMatrixAttention, MatrixShape
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.space_attention import AttentionWork

DEVICE = machine.device("rx_9070_xt")
LIMITS = GroupLimits(
    shared_bytes=64 << 10, invocations=1024, subgroup_min=32, subgroup_max=32,
    subgroup_operations=True, bindings=16, f16=True, storage16=True, registers=256,
    matrices=(MatrixShape(16, 16, 16, "f16", "f32"),), units=DEVICE.units,
    architecture=DEVICE.architecture, rates=unit_rates(DEVICE))
FOUR = GroupMatrixAttention(4, 1, 32, "16x16x16", 32, held=True, ahead=True)


def test_units_hold_what_their_facts_say() -> None:
    """22 KiB of each group of 64 queries of 40 channels, as shared memory is given out: two, not
    three, of which a compute unit of 64 KiB runs eight subgroups; of 96 queries it runs twelve."""
    work = AttentionWork(16, 4096, 4096, 40, 40, LIMITS)
    six = replace(FOUR, subgroups=6)
    assert FOUR.shared_bytes(40, 40) == 21760 and 3 * 21760 < 64 << 10
    assert work.resident(FOUR) == work.resident(six) == 2
    unknown = replace(work, limits=replace(LIMITS, architecture=""))
    assert unknown.resident(FOUR) == 3


def test_subgroups_of_64_count_once() -> None:
    """A unit of RDNA 2 has shared memory for two groups of 128 invocations, of 26 KiB each."""
    work = AttentionWork(1, 4096, 4096, 512, 512, replace(LIMITS, architecture="rdna2"))
    plain = GroupAttention(4, 32, 1, 128, "f16", 64)
    assert 25 << 10 < plain.shared_bytes(512) <= 26 << 10
    assert work.resident(plain) == work.resident(replace(plain, subgroup=0)) == 2
    one = GroupAttention(4, 16, 4, 256, "f16", 64)  # of one subgroup, on one of two SIMD units
    assert one.shared_bytes(512) > 32 << 10 and work.resident(one) == 1


def test_more_queries_share_keys_where_a_unit_then_runs_more() -> None:
    found = choose_group(narrowed(attention(4096, 4096, 16, 40), "f16"), LIMITS, "f16")
    assert isinstance(found, GroupMatrixAttention)
    assert (found.subgroups, found.across, found.keys) == (6, 1, 32)


def narrow() -> GroupLimits:
    """The limits of an Arc A770, whose subgroups of 8 hold whole queries."""
    device = machine.device("arc_a770")
    return GroupLimits(
        shared_bytes=64 << 10, invocations=1024, subgroup_min=8, subgroup_max=32,
        subgroup_operations=True, subgroup_choice=True, bindings=16, f16=True, storage16=True,
        registers=128, matrices=(MatrixShape(8, 8, 16, "f16", "f32"),), units=device.units,
        architecture=device.architecture, rates=unit_rates(device), right_lines="columns",
        sum_lines="columns", left_words=True)


def test_keys_of_a_text_are_one_tile_where_whole_queries_are_held() -> None:
    """Nothing goes from turn to turn then, and sums come after scores, in the same registers."""
    kernel = narrowed(attention(4096, 77, 8, 40), "f16")
    found = choose_group(kernel, narrow(), "f16")
    assert isinstance(found, GroupLineAttention) and (found.keys, found.across) == (80, 1)
    work = AttentionWork.of(kernel, narrow())
    assert work.held(found) == 112  # as many as Intel's compiler takes
    wider = AttentionWork.of(narrowed(attention(1024, 77, 8, 80), "f16"), narrow())
    assert wider.held(found) == 135 > 128  # it would spill
    causal = AttentionWork.of(narrowed(attention(77, 77, 8, 40, causal=True), "f16"), narrow())
    assert causal.several(found) and causal.held(found) > 128
