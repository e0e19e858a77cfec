"""Devices that are broken on purpose: every fault is found, and what it concerns is not used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from broken_gpus import FAULTS, HELD, LIMITS, TARGET, BrokenGpu, check_removed, few

from smalti.runtime.doctor import kernels, programs
from smalti.runtime.doctor.attempts import Attempts, all_probes
from smalti.runtime.doctor.examination import examined
from smalti.runtime.doctor.found import Finding
from smalti.runtime.gpu.removals import DOT_PRODUCTS, MATRIX_LINES
from smalti.schedule.group import MatrixShape
from smalti.schedule.line_attention import GroupLineAttention

FIRST = ("products of a shape are off by 1 %", "matrices of bytes have no sign",
         "a word behind the result is written",
         "the device is always lost")
"""Faults of several kinds, which every run of the tests tries; the sweep tries all."""
CASES = [pytest.param(name, marks=() if name in FIRST else pytest.mark.sweep) for name in FAULTS]


def findings_of(name: str, probes) -> tuple[Finding, ...]:
    """What a check finds of a device with a fault."""
    gpus = {}

    def opened(without: Sequence[str]) -> BrokenGpu:
        gpus["last"] = BrokenGpu(FAULTS[name], without)
        return gpus["last"]

    attempts = Attempts(opened, clock=lambda: gpus["last"].clock())
    gpu = attempts.gpu()
    return examined(list(probes(gpu.target, gpu.limits)), attempts)


def test_there_are_faults_of_all_kinds() -> None:
    assert len(FAULTS) >= 50 and set(FIRST) <= set(FAULTS)


@pytest.mark.parametrize("name", CASES)
def test_every_fault_is_found(name: str) -> None:
    found = findings_of(name, few)
    check_removed(found, FAULTS[name].finds)
    assert all(finding.trouble and not finding.trouble.endswith(".") for finding in found)


@pytest.mark.parametrize("name", [each for each in FAULTS if each.startswith("dot products")])
def test_one_small_probe_tells_that_dot_products_are_wrong(name: str) -> None:
    found = findings_of(name, lambda target, limits: [
        each for each in programs.probes(target, limits) if each.name == "dot products of bytes"])
    assert [each.removed for each in found] == [(DOT_PRODUCTS,)]


def test_probes_of_matrices_are_asked_again_without_what_is_said_of_lines() -> None:
    """That they were right with it says nothing of them without it, nor the other way round."""
    told = replace(LIMITS, right_lines="columns")
    found = [(each.case(TARGET, told), each.case(TARGET, LIMITS)) for each in few(TARGET, told)]
    cases = [pair for pair in found if pair[0] and MATRIX_LINES in pair[0].suspects]
    assert cases and all(first.key != second.key for first, second in cases)


@pytest.mark.parametrize("name", [each for each, fault in FAULTS.items() if fault.limits is HELD])
def test_one_small_probe_tells_that_invocations_hold_something_else(name: str) -> None:
    """Whatever schedules the probes of kernels have: programs have others, for more work."""
    found = findings_of(name, lambda target, limits: [
        each for each in programs.probes(target, limits) if each.name.endswith("by invocations")])
    assert [each.removed for each in found] == [(MATRIX_LINES,)]


@pytest.mark.parametrize("shape, subgroup", [((8, 8, 16), 8), ((8, 16, 16), 16)])
def test_attentions_of_whole_queries_are_tried_in_several_tiles(shape, subgroup) -> None:
    """On Intel's GPUs, where attentions of other probes are too small for it, or fit one tile."""
    limits = replace(HELD, matrices=(MatrixShape(*shape, "f16", "f32"),), registers=128,
                     subgroup_min=subgroup, subgroup_max=subgroup)
    cases = [each.case(TARGET, limits) for each in kernels.probes(TARGET, limits, shapes={})
             if "whole queries" in each.name]
    schedules = [case.key[0] for case in cases if case is not None]
    assert [each.across for each in schedules] == [1, 2]
    assert all(isinstance(each, GroupLineAttention) and each.keys < 77
               and each.words == (subgroup == 8) for each in schedules)
    assert all(case.suspects[0] == MATRIX_LINES for case in cases)


@pytest.mark.sweep
def test_all_probes_find_nothing_of_a_sound_device() -> None:
    assert findings_of("nothing", all_probes) == ()
