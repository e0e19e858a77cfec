"""What is asked for: seconds alone, seconds among others, or joules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti import machine
from smalti.errors import InputError
from smalti.kernel.build import map_over
from smalti.kernel.form import Buffer, Kernel, Load, axis
from smalti.machine.cpu import CONSTANTS, FAMILY
from smalti.machine.fitted import Fitted
from smalti.schedule import MapSchedule
from smalti.tune.objective import OBJECTIVES, Objective, one_of

DEVICE = machine.device("ryzen_9_9950x")


def copy(count: int) -> Kernel:
    """A copy of rows of 1000 numbers, which are in memory."""
    rows = count // 1000
    buffers = [Buffer("x0", "parameter", (rows, 1000), (1024, 1)),
               Buffer("out", "output", (rows, 1000), (1024, 1))]
    return map_over([("i", rows), ("j", 1000)], Load("x0", (axis("i"), axis("j"))), buffers)


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(InputError, match="latency, throughput, energy"):
        Objective.on(DEVICE, 1, "speed")


def test_a_program_among_others_has_its_share_and_takes_longer() -> None:
    share = one_of(DEVICE, 16)
    assert share.units == 1 and share.bandwidth == DEVICE.bandwidth / 16
    kernel, schedule = copy(4_000_000), MapSchedule(16)
    alone, among, joules = (Objective.on(DEVICE, 1, name).cost(kernel, schedule)
                            for name in OBJECTIVES)
    assert among > 1.5 * alone
    assert joules > DEVICE.watts * alone * (0.3 + 0.7 / 16)


def test_with_all_threads_in_one_program_there_are_no_others() -> None:
    assert Objective.on(DEVICE, DEVICE.units, "throughput").device == one_of(DEVICE, 1)


def test_objectives_are_equal_that_give_the_same_costs() -> None:
    known = machine.device("ryzen_9_9950x")
    faster = replace(known, bandwidth=2 * known.bandwidth)
    fitted = known.with_fitted({FAMILY: Fitted({**CONSTANTS, "launch": 2.0})})
    every = [Objective(name, device, threads) for device in (known, faster, fitted)
             for threads in (1, 2) for name in OBJECTIVES]
    assert len(set(every)) == len(every)
    assert Objective("latency", replace(known), 1) == every[0] != "latency"
    kernel, schedule = copy(4_000_000), MapSchedule(16)
    assert Objective("latency", faster, 1).cost(kernel, schedule) != every[0].cost(
        kernel, schedule) != Objective("latency", fitted, 1).cost(kernel, schedule)
