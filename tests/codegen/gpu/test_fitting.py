"""Schedules that would spill give way to those that do not, where units are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.codegen.gpu import fitting
from smalti.codegen.gpu.fitting import first_that_fits, fits
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.registers import registers
from smalti.compiler.options import Options
from smalti.compiler.passes import partitioned
from smalti.compiler.targets import TARGETS
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.nn import linear
from smalti.schedule.choose_group import choose_group
from smalti.schedule.compute_units import UNITS
from smalti.schedule.group import GroupLimits, GroupSchedule, MatrixShape

LIMITS = GroupLimits(
    shared_bytes=48 << 10, invocations=1024, subgroup_min=16, subgroup_max=32, subgroup_choice=True,
    subgroup_operations=True, f16=True, storage16=True, bindings=16, units=20, registers=128,
    matrices=(MatrixShape(8, 16, 16, "f16", "f32"),))


def product(rows: int, columns: int) -> Kernel:
    """The kernel of a product of halves."""
    g = Graph("mm")
    g.output("y", linear(g.input("x", (1, rows, 512)), "w", columns))
    options = Options("f16", weights=(("w.weight", "f16"),))
    found, _ = partitioned(g, TARGETS["spirv"], LIMITS, options)
    return found.regions[0].kernel


def test_without_known_units_the_first_choice_stays() -> None:
    kernel = product(512, 512)
    assert first_that_fits(kernel, LIMITS, "f16") == choose_group(kernel, LIMITS, "f16")


def test_what_spills_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, limits = product(512, 512), replace(LIMITS, architecture="xe2_hpg")
    usual, unit = choose_group(kernel, limits, "f16"), UNITS["xe2_hpg"]
    (program,) = lower(kernel, usual, limits).steps

    def chosen(registers_max: int) -> GroupSchedule:
        """The choice on units where a subgroup has so many registers."""
        monkeypatch.setitem(UNITS, "xe2_hpg", replace(
            unit, fixed_bytes=4 * program.subgroup * registers_max))
        fits.cache_clear()
        return first_that_fits(kernel, limits, "f16")

    monkeypatch.setattr(fitting, "TRIED", 300)
    taken = registers(program, unit)
    assert chosen(taken) == usual
    found = chosen(taken - 1)
    assert found != usual and fits(kernel, found, limits) and not fits(kernel, usual, limits)
    assert chosen(1) == usual  # everything spills: the first choice is as good as any
    fits.cache_clear()
