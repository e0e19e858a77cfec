"""A check of a device, in processes that may end with its driver: one after the other, until all
probes are tried.

What a process tried last when it ended, or fell silent, is tried again by the next one. If that
ends, too, it is what came of the attempt: the one after it is told, and goes on behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from datetime import date
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import DeviceError
from smalti.runtime.device import Device
from smalti.runtime.doctor.found import Finding, GpuRates
from smalti.runtime.doctor.probe import Outcome
from smalti.runtime.doctor.process import OPENING
from smalti.runtime.doctor.verdict import Verdict, emitters, without_places
from smalti.runtime.gpu.child import Talk
from smalti.runtime.gpu.removals import DEVICE, MATRICES

SILENCE_SECONDS = 60.0
"""What one attempt may take: drivers compile for seconds when they see programs first, and those
that reset a device do so after two to ten."""
ALL_SECONDS = 600.0
"""What a check may take in all."""
ENDS_MAX = 20
"""Processes that a driver may end before it is not asked any more."""
HOME = "smalti.runtime.doctor.child"

Start = Callable[[Mapping[str, Any]], Talk]
Progress = Callable[[str], None]


@dataclass
class Course:
    """What has been heard so far: outcomes, by what was attempted; what is being attempted now."""

    known: list[list] = field(default_factory=list)
    now: tuple[str, tuple[str, ...]] = (OPENING, ())
    suspects: tuple[str, ...] = ()
    ends: int = 0
    last_end: tuple[str, tuple[str, ...]] | None = None
    rates: GpuRates | None = None

    def heard(self, message: Mapping[str, Any], progress: Progress) -> None:
        """Take in a message."""
        if "begin" in message:
            probe, removed = message["begin"]
            self.now, self.suspects = (probe, tuple(removed)), tuple(message["suspects"])
            progress(probe)
        elif "end" in message and message["end"]["fatal"]:
            self.ended(message["end"]["trouble"])
        elif "end" in message:
            self.note(message["end"])
        elif "rates" in message:
            self.rates = GpuRates(**message["rates"])

    def note(self, outcome: Mapping[str, Any]) -> None:
        """What came of the attempt that is being made."""
        probe, removed = self.now
        self.known.append([probe, list(removed), dict(outcome)])

    def ended(self, how: str) -> None:
        """A process has ended with what it tried last; that is no chance if it does so twice."""
        self.ends += 1
        if self.last_end == self.now:
            self.note(asdict(Outcome(how, self.suspects, fatal=True)))
        self.last_end = self.now

    def hopeless(self) -> str:
        """Why nothing more is to be asked of the device, or nothing."""
        if self.ends > ENDS_MAX:
            return f"its driver has ended {self.ends} processes"
        probe, _, outcome = self.known[-1] if self.known else ("", (), {})
        return outcome["trouble"] if probe == OPENING else ""


def supervised(device: Device, driver: str, progress: Progress = lambda text: None,
               start: Start | None = None, silence_seconds: float = SILENCE_SECONDS) -> Verdict:
    """The verdict on a device, which the module `driver` opens. `start` starts a process, which is
    asked as `child.told` is. Raises DeviceError where none can be started."""
    begun, course = time.monotonic(), Course()
    start = start or (lambda question: Talk(HOME, question))
    while True:
        last = outcome_of_process({"device": device.id, "driver": driver}, course, progress, start,
                                  silence_seconds)
        took = time.monotonic() - begun
        verdict = Verdict(device.name, without_places(device.driver), device.identity, emitters(),
                          date.today().isoformat(), 0, round(took, 1), rates=course.rates)
        if "findings" in last:
            return concluded(verdict, last)
        if "unfinished" in last:
            return replace(verdict, unfinished=without_places(last["unfinished"]))
        if trouble := course.hopeless():
            return concluded(verdict, {"probes": len(course.known), "findings": [
                {"probe": course.now[0], "trouble": trouble, "removed": [DEVICE]}]})
        if took > ALL_SECONDS:
            return replace(verdict, unfinished=f"it took longer than {ALL_SECONDS:.0f} s")


def outcome_of_process(question: Mapping[str, Any], course: Course, progress: Progress,
                       start: Start, silence_seconds: float) -> Mapping[str, Any]:
    """What a process says last; nothing where it did not come to the end."""
    ends = course.ends
    with start({**question, "known": course.known}) as talk:
        try:
            while (message := talk.hear(silence_seconds)) is not None:
                course.heard(message, progress)
                if "findings" in message or "unfinished" in message:
                    return message
        except DeviceError as error:
            course.ended(str(error))
            return {}
    if course.ends == ends and not (course.known and course.known[-1][0] == OPENING):
        course.ended("its process ended early")
    return {}


def concluded(verdict: Verdict, last: Mapping[str, Any]) -> Verdict:
    """A verdict with what a check has found at its end."""
    findings = tuple(Finding(each["probe"], without_places(each["trouble"]),
                             tuple(each["removed"])) for each in last["findings"])
    removed = {name for finding in findings for name in finding.removed}
    proven = () if removed & {MATRICES, DEVICE} else (MATRICES,)
    return replace(verdict, findings=findings, probes=last["probes"], proven=proven)
