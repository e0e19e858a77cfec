"""A driver that ends processes, or holds them up: that is found, too."""

from __future__ import annotations

import pytest
from broken_gpus import ENDING, check_removed

from smalti.runtime.device import Device
from smalti.runtime.doctor.supervision import supervised
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.gpu.child import Talk
from smalti.runtime.gpu.removals import DEVICE

BROKEN = Device("broken:0", "A broken GPU", "discrete", 1 << 30, (), identity="broken")


def checked(name: str, silence_seconds: float = 60.0) -> Verdict:
    """What a check in processes finds of a device with a fault."""
    return supervised(
        BROKEN, "", start=lambda question: Talk("broken_gpus", {**question, "fault": name}),
        silence_seconds=silence_seconds)


@pytest.mark.parametrize("name", [
    "the device is lost in products of a shape", "large work-groups crash",
    pytest.param("compiling matrices crashes", marks=pytest.mark.sweep),
    pytest.param("everything crashes", marks=pytest.mark.sweep), "opening crashes"])
def test_a_process_may_end_with_the_driver(name: str) -> None:
    verdict = checked(name)
    check_removed(verdict.findings, ENDING[name].finds)
    assert not verdict.unfinished and verdict.usable == ({DEVICE} not in ENDING[name].finds)


@pytest.mark.parametrize("name", [
    pytest.param("compiling operations of subgroups hangs", marks=pytest.mark.sweep),
    "opening hangs"])
def test_a_driver_may_hang(name: str) -> None:
    verdict = checked(name, silence_seconds=6.0)
    check_removed(verdict.findings, ENDING[name].finds)
    assert "no answer within 6 s" in verdict.findings[0].trouble


def test_a_full_memory_decides_nothing() -> None:
    verdict = checked("memory is full")
    assert "0 are free" in verdict.unfinished and not verdict.findings
