"""A driver that ends processes, or holds them up: that is found, too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from broken_gpus import ENDING, check_removed

from smalti.errors import DeviceError
from smalti.runtime.device import Device
from smalti.runtime.doctor.supervision import ENDS_MAX, supervised
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
    pytest.param("the device is lost in products of a shape", marks=pytest.mark.sweep),
    "large work-groups crash",
    pytest.param("compiling matrices crashes", marks=pytest.mark.sweep),
    pytest.param("everything crashes", marks=pytest.mark.sweep), "opening crashes"])
def test_a_process_may_end_with_the_driver(name: str) -> None:
    verdict = checked(name)
    check_removed(verdict.findings, ENDING[name].finds)
    assert not verdict.unfinished and verdict.usable == ({DEVICE} not in ENDING[name].finds)


@pytest.mark.parametrize("name, seconds", [
    # long enough for a busy computer to start the process that is then told to hang
    pytest.param("compiling operations of subgroups hangs", 25.0, marks=pytest.mark.sweep),
    ("opening hangs", 2.0)])
def test_a_driver_may_hang(name: str, seconds: float) -> None:
    verdict = checked(name, silence_seconds=seconds)
    check_removed(verdict.findings, ENDING[name].finds)
    assert f"no answer within {seconds:g} s" in verdict.findings[0].trouble


@pytest.mark.parametrize("name, why", [
    ("memory is full", "0 are free"), ("opening is refused", "somebody else has the device")])
def test_what_may_be_otherwise_tomorrow_decides_nothing(name: str, why: str) -> None:
    verdict = checked(name)
    assert why in verdict.unfinished and not verdict.findings


class Told:
    """A process that says what a test has it say, and then ends as that wants."""

    def __init__(self, *messages: dict | None) -> None:
        self.messages = list(messages)

    def hear(self, seconds: float) -> dict | None:
        if not self.messages:
            raise DeviceError("its process ended with signal 9")
        return self.messages.pop(0)

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def supervising(*processes: Told) -> tuple[Verdict, list[list]]:
    """The verdict that comes of processes, and what each was told."""
    left, known = list(processes), []

    def start(question: Mapping) -> Told:
        known.append([list(each) for each in question["known"]])
        return left.pop(0)

    return supervised(BROKEN, "", start=start), known


BEGIN = {"begin": ["product", []], "suspects": ["f16"]}
SOUND = {"findings": [], "probes": 3}


def test_a_process_that_ends_once_is_no_fault_of_the_driver() -> None:
    verdict, known = supervising(Told(BEGIN), Told(BEGIN, SOUND))
    assert verdict.findings == () and known == [[], []]


def test_a_process_that_ends_twice_is() -> None:
    _, known = supervising(Told(BEGIN), Told(BEGIN), Told(BEGIN, SOUND))
    assert known[2] == [["product", [], {"trouble": "its process ended with signal 9",
                                        "suspects": ("f16",), "fatal": True}]]


def test_a_driver_that_ends_all_processes_is_asked_no_more() -> None:
    verdict, known = supervising(*[Told(BEGIN | {"begin": [f"probe {number}", []]})
                                   for number in range(ENDS_MAX + 1)])
    assert not verdict.usable and len(known) == ENDS_MAX + 1
    assert verdict.findings[0].trouble == f"its driver has ended {ENDS_MAX + 1} processes"


def test_where_no_process_can_be_started_that_is_no_verdict() -> None:
    def start(question: Mapping) -> Told:
        raise DeviceError("no process could be started for it (it is forbidden)")

    with pytest.raises(DeviceError, match="it is forbidden"):
        supervised(BROKEN, "", start=start)
