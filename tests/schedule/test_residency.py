"""What units of GPUs run at a time, against what drivers say of programs with these numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.schedule.compute_units import compute_unit
from smalti.schedule.residency import CompilerNeeds, KeptWords

# architecture, registers, subgroup, invocations, bytes of shared memory; subgroups that RADV and
# NVK of Mesa 26.1.6 say run at a time (of a SIMD unit, in subgroups of 32; of a multiprocessor)
TOLD = [
    ("rdna2", 216, 64, 256, 27648, 4), ("rdna2", 77, 64, 128, 4096, 12),
    ("rdna2", 11, 64, 128, 0, 32), ("rdna2", 135, 64, 64, 10240, 6),
    ("rdna2", 98, 32, 32, 7168, 5), ("rdna2", 89, 64, 64, 11264, 6),
    ("rdna3_big", 261, 32, 128, 47104, 2), ("rdna3_big", 102, 32, 128, 23552, 4),
    ("rdna3_big", 50, 32, 128, 15360, 8), ("rdna3_big", 69, 32, 128, 17408, 6),
    ("rdna3_big", 82, 32, 32, 5120, 6), ("rdna3_big", 206, 32, 64, 16384, 4),
    ("rdna4", 43, 32, 64, 7168, 9), ("rdna4", 35, 32, 32, 6144, 5),
    ("ampere_ga10x", 255, 32, 32, 0, 8), ("ampere_ga10x", 160, 32, 32, 0, 12),
    ("ampere_ga10x", 96, 32, 32, 0, 20), ("ampere_ga10x", 40, 32, 32, 0, 48),
]


@pytest.mark.parametrize("architecture, registers, subgroup, size, shared, told", TOLD)
def test_occupancy_is_what_drivers_say(architecture: str, registers: int, subgroup: int, size: int,
                                       shared: int, told: int) -> None:
    unit = compute_unit(architecture)
    # a multiprocessor runs 16 groups of one warp at most; the driver counts registers only
    if architecture.startswith("ampere"):
        size = 128
    assert unit.resident(registers, subgroup, size, shared) == told


# the same of programs that multiply matrices, and what there was room for by their registers
GIVEN_AWAY = [
    ("rdna3_big", 70, 256, 15360, 12, 16), ("rdna3_big", 115, 256, 20480, 8, 12),
    ("rdna4", 104, 256, 20480, 8, 12), ("rdna3_big", 180, 256, 20480, 8, 8),
    ("rdna3_big", 61, 160, 8960, 16, 16),  # what is left for 15, by granules, lets 16 run
]


@pytest.mark.parametrize("architecture, registers, size, shared, told, room", GIVEN_AWAY)
def test_subgroups_that_the_scheduler_gives_away_for_loads(
        architecture: str, registers: int, size: int, shared: int, told: int, room: int) -> None:
    """Whole work-groups, and eight subgroups are left in any case."""
    unit = compute_unit(architecture)
    assert unit.resident(registers, 32, size, shared, matrices=True) == told
    assert unit.resident(registers, 32, size, shared) == room


def test_only_compilers_that_do_give_subgroups_away() -> None:
    assert compute_unit("rdna3_small").gives is compute_unit("rdna4").gives is True
    for name in ("rdna2", "ada"):
        unit = compute_unit(name)
        assert unit.resident(70, 32, 256, 0, matrices=True) == unit.resident(70, 32, 256, 0)


def test_engines_have_the_same_registers_for_every_thread() -> None:
    engine = compute_unit("xe_hpg")
    assert engine.capacity(8, 128) == 128 and engine.capacity(16, 128) == 64
    assert compute_unit("xe2_hpg").capacity(16, 128) == 128
    assert engine.resident(100, 8, 256, 0) == engine.resident(1000, 8, 256, 0) == 8
    assert engine.taken(48128) == 65536  # shared memory is given out in powers of two
    assert engine.resident(100, 8, 256, 48128) == 4


def test_a_group_runs_however_large_it_is() -> None:
    unit = compute_unit("rdna3_big")
    assert unit.capacity(32, 1024) == 96  # 16 subgroups of a group are on each SIMD unit
    assert unit.resident(256, 32, 1024, 64 << 10) == 16


def test_spills_begin_above_the_capacity() -> None:
    assert compute_unit("rdna2").capacity(64, 128) == 256
    assert compute_unit("ada").capacity(32, 128) == 253
    assert compute_unit("ada").capacity(32, 1024) == 64  # 32 warps on one multiprocessor


def test_needs_are_a_register_for_each_word_and_some_more() -> None:
    needs = CompilerNeeds(1.0, 2.0, 0.5, 1.0, 0.0, 0.5, 0, 8.0)
    assert needs.registers(KeptWords(64, 16, 32, 10, 5, 6)) == 64 + 32 + 16 + 10 + 3 + 8
    assert replace(needs, step=8).registers(KeptWords(64, 16, 32, 10, 5, 6)) == 136
    assert needs.registers(KeptWords(held=16)) == 32 + 8  # as other factors
    assert replace(needs, held=1.5).registers(KeptWords(held=16)) == 24 + 8
