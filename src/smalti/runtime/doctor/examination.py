"""From what probes find to what a device is no longer used for.

A probe that fails is asked again without each of its suspects, the likeliest first, until it is
right. What was wrong is then removed, and every probe whose work that changes is asked again, so
that what is left has been seen to work. A device of which nothing is left to remove is removed
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smalti.runtime.doctor.found import Finding, kind_of
from smalti.runtime.doctor.probe import DeviceProbe, Outcome
from smalti.runtime.gpu.removals import DEVICE

Attempt = Callable[[DeviceProbe, tuple[str, ...]], Outcome]
"""What comes of a probe on a device without some things, by the names of removals."""


def examined(probes: Sequence[DeviceProbe], attempt: Attempt,
             known: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """What is wrong with a device, and what has to be removed; `known` is what was found before."""
    findings = list(known)
    while True:
        removed = tuple(name for finding in findings for name in finding.removed)
        if DEVICE in removed:
            return tuple(findings)
        failing = next(((probe, outcome) for probe in probes
                        if (outcome := attempt(probe, removed)).trouble), None)
        if failing is None:
            return tuple(findings)
        probe, outcome = failing
        findings.append(Finding(probe.name, outcome.trouble,
                                cure(probe, outcome, removed, attempt)))


def cure(probe: DeviceProbe, outcome: Outcome, removed: tuple[str, ...],
         attempt: Attempt) -> tuple[str, ...]:
    """The removals without which a probe is right: of one kind where that is enough."""
    for kind in dict.fromkeys(map(kind_of, outcome.suspects)):
        if found := removing(probe, outcome, removed, attempt, kind):
            return found
    return removing(probe, outcome, removed, attempt, None) or (DEVICE,)


def removing(probe: DeviceProbe, outcome: Outcome, removed: tuple[str, ...], attempt: Attempt,
             kind: str | None) -> tuple[str, ...]:
    """The fewest suspects of a kind, or of all, that help when they are removed one after the
    other; none where they do not."""
    gone: tuple[str, ...] = ()
    while outcome.trouble:
        left = [each for each in outcome.suspects
                if each not in gone and kind in (None, kind_of(each))]
        if not left:
            return ()
        gone = (*gone, left[0])
        outcome = attempt(probe, (*removed, *gone))
    for each in gone[:-1]:
        fewer = tuple(other for other in gone if other != each)
        if not attempt(probe, (*removed, *fewer)).trouble:
            gone = fewer
    return gone
