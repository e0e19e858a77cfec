"""What the process of a check does: it tries the probes, and says what it tries before it does, so
that those who listen know what has ended it.

    {"begin": [probe, removed], "suspects": […]}    an attempt begins
    {"end": {"trouble": …, …}}                      and this came of it
    {"rates": {…}}                                  what was measured
    {"findings": […], "probes": 52}                 all of it, at the end
    {"unfinished": "memory is full: …"}             or why there is no end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from smalti.errors import DeviceError, DeviceMemoryError
from smalti.runtime.doctor.attempts import Attempts, Key, all_probes
from smalti.runtime.doctor.bench import Bench
from smalti.runtime.doctor.examination import examined
from smalti.runtime.doctor.found import GpuRates
from smalti.runtime.doctor.probe import DeviceProbe, Outcome
from smalti.runtime.doctor.rates import measured
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.removals import DEVICE, unexplained

Say = Callable[[Mapping[str, Any]], None]
OPENING, RATES = "opening the device", "measuring the device"
"""What is done besides probes."""


def check(opened: Callable[[tuple[str, ...]], Gpu], known: Iterable[list], say: Say,
          probes: Callable[..., Iterable[DeviceProbe]] = all_probes,
          rates: Callable[..., GpuRates] | None = measured, **options: Any) -> None:
    """Try `probes` on a device that `opened` opens, and measure its `rates`, unless that is None.
    """
    def begin(key: Key, suspects: tuple[str, ...]) -> None:
        say({"begin": key, "suspects": suspects})

    def end(key: Key, outcome: Outcome) -> None:
        say({"end": asdict(outcome)})
        if outcome.fatal:
            raise SystemExit  # nothing that is open here is of use any more

    journal = {(probe, tuple(removed)): outcome_of(outcome) for probe, removed, outcome in known}
    attempts = Attempts(opened, journal, begin, end, **options)
    begin((OPENING, ()), ())
    try:
        gpu = attempts.gpu()
    except DeviceError as error:
        say({"unfinished": f"it could not be opened ({error})"})
        return
    end((OPENING, ()), Outcome())
    try:
        found = list(probes(gpu.target, gpu.limits))
        findings = examined(found, attempts)
        removed = tuple(name for each in findings for name in each.removed)
        if rates and DEVICE not in removed and (RATES, removed) not in journal:
            begin((RATES, removed), ())
            bench = Bench(attempts.gpu(removed), map(unexplained, removed), attempts.clock)
            try:
                say({"rates": rates(bench, gpu.target).record()})
            except DeviceError as error:
                end((RATES, removed), Outcome(f"its driver refuses: {error}"))
    except DeviceMemoryError as error:
        say({"unfinished": f"too little of the device's memory is free ({error})"})
        return
    say({"findings": [asdict(each) for each in findings], "probes": len(found)})


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """An outcome that was said."""
    return Outcome(record["trouble"], tuple(record["suspects"]), record["fatal"])
