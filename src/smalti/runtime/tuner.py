"""Schedules of a program's kernels tried in its own runs, on the data that it runs on.

    tuner = Tuner(program.trials(), inputs, read)
    while time is left and tuner.turn():
        print(tuner.tried)               # candidates so far
    rows = tuner.rows()

Kernels are measured where they stand, with operands where the kernels before have left them, and
all of them at once: a turn is a run as it is, and one in which each kernel may have another
schedule. A winner is compared with the one in use on the data of a run, byte by byte, and noted in
the store at once; so nothing is lost when a run is interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from smalti.compiler.module import HostCall, Module
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule, VerificationError
from smalti.kernel.form import Kernel
from smalti.kernel.text import parse as parse_kernel
from smalti.runtime.known import store
from smalti.runtime.sources import Read
from smalti.runtime.trials import Trials
from smalti.schedule import parse
from smalti.tune.contest import Contest
from smalti.tune.heats import ALL, Heat
from smalti.tune.store import MeasuredSchedule, digest

CANDIDATES_MAX = 400
"""Members of a space that the timing model looks at."""
TURN_SECONDS, REPEATS_MAX = 0.9, 9
"""Runs of short programs are repeated for so long, at most so often: the first ones behind a pause
find cold caches and threads that sleep."""
SHARE_MIN = 5e-4
"""Kernels that take less of a run's time stay as they are."""
GAIN_UNSEEN = 0.03
"""Of a kernel's time: what a candidate may save where the timing model expects less."""


class Entry:
    """A kernel that has a contest; `regions` are those that compute it."""

    def __init__(self, trials: Trials, text: str, regions: Sequence[int], seconds: float,
                 measured: Mapping[str, float], slowest: float = math.inf,
                 heat: Heat = ALL) -> None:
        self._slowest, self._heat = slowest, heat
        self._trials, self.text, self.regions = trials, text, tuple(regions)
        self.seconds = seconds
        """Of all its regions in a run, as they are."""
        self._measured = measured
        self.before = measured.get(trials.module.regions[regions[0]].schedule, 1.0)
        """The ratio of what is in use to the first choice, as the store has it."""
        self._made: tuple[int, Any] | None = None

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        return parse_kernel(self.text)

    @cached_property
    def contest(self) -> Contest:
        """All candidates, which are looked at when the first one is asked for."""
        first = parse(self._trials.module.regions[self.regions[0]].schedule)
        members = thinned(self._trials.candidates(self.kernel, first))
        expected = self._trials.expected(self.kernel, members)
        texts = [*map(str, members)]
        tried = {0, *self._heat.among(self.text, texts, expected)}
        kept = [n for n in np.flatnonzero(expected <= self._slowest * expected[0]) if n in tried]
        return Contest([members[n] for n in kept], expected[kept].tolist(), {
            n: self._measured[texts[member]] / self.before for n, member in enumerate(kept)
            if texts[member] in self._measured and not self._heat.again})

    @property
    def looked_at(self) -> bool:
        """Whether its candidates are known yet."""
        return "contest" in self.__dict__

    @property
    def done(self) -> bool:
        """Whether all candidates have been tried."""
        return self.looked_at and self.contest.next_one is None

    @property
    def tried(self) -> int:
        """Candidates that have been tried so far, by other programs too."""
        return len(self.contest.found) if self.looked_at else len(self._measured)

    @property
    def promise(self) -> float:
        """Seconds that the next candidate may save, less of them the more have been tried."""
        share = GAIN_UNSEEN
        if self.looked_at and self.contest.next_one is not None:
            share = max(GAIN_UNSEEN, 1.0 - self.contest.expected_ratio)
        return self.seconds * share / (1 + self.tried)

    @property
    def at_hand(self) -> Any | None:
        """The next candidate as code, if it has been made."""
        if self._made is None or self._made[0] != self.contest.next_one:
            return None
        return self._made[1]

    @property
    def region(self) -> int:
        """The region in which the next candidate is tried."""
        return self.regions[self.contest.next_one % len(self.regions)]

    def alternative(self, read: Read | None) -> Any | None:
        """The next candidate that can be applied, as code; None when all are done."""
        while (number := self.contest.next_one) is not None:
            if self.at_hand is not None:
                return self.at_hand
            try:
                made = self._trials.alternative(self.region, self.kernel,
                                                self.contest.candidates[number], read)
            except IllegalSchedule:
                self.contest.tell(math.inf)
                continue
            self._made = number, made
            return made
        return None


    def note(self, number: int, verified: bool) -> None:
        """Tell the store what came of a candidate that can be applied."""
        ratio = self.contest.found[number]
        if math.isfinite(ratio):
            store().note(self._trials.scope, self.text, [
                MeasuredSchedule(str(self.contest.candidates[number]),
                                 self.seconds * ratio / len(self.regions), self.before * ratio,
                                 verified)])


@dataclass(frozen=True)
class TunedKernel:
    """What came of a kernel: how many regions compute it; their seconds in a run as it was, and
    with the best schedule; how many were tried; both schedules."""

    scope: str
    form: str
    regions: int
    seconds: float
    best_seconds: float
    tried: int
    schedule: str
    best: str


class Tuner:
    """Tries schedules of the kernels of the program of `trials`, whose weights `read(name)` gives;
    of several computers each tries those of its `heat`."""

    def __init__(self, trials: Trials, inputs: Mapping[str, np.ndarray], read: Read,
                 heat: Heat = ALL) -> None:
        self.program, self.inputs, self._read = trials.program, inputs, read
        self.program.run(inputs, {})
        self._outputs = self.program.run(inputs, {})
        seconds = self.program.kernel_seconds()
        self._repeats = int(np.clip(TURN_SECONDS / max(seconds.sum(), 1e-9), 1, REPEATS_MAX))
        self.entries = entries(trials, seconds, heat=heat)
        longest = max((entry.seconds for entry in self.entries), default=1.0)
        self._shares = {entry: entry.seconds / longest for entry in self.entries}
        self._tickets = dict.fromkeys(self.entries, 0.0)

    @property
    def tried(self) -> int:
        """Candidates that have been tried so far."""
        return sum(entry.tried for entry in self.entries)

    def turn(self) -> bool:
        """A run as it is and one with others; False when there is nothing left to try.

        A kernel takes part as often as its share of the time says. Raises VerificationError when a
        schedule gives other bytes, which is a bug of the compiler.
        """
        others: dict[int, tuple[Entry, Any]] = {}
        waiting = bool(self._tickets)
        for entry in list(self._tickets):
            self._tickets[entry] += self._shares[entry] ** 0.5
            if self._tickets[entry] >= 1 or len(self._tickets) == 1:
                self._tickets[entry] -= 1
                made = entry.alternative(self._read)
                if made is not None:
                    others[entry.region] = entry, made
                else:
                    del self._tickets[entry]
        if not others:
            return waiting
        before, after = self._in_turns(others)
        for region, (entry, made) in others.items():
            number = entry.contest.next_one
            entry.contest.tell(after[region] / before[region])
            if entry.contest.next_one != number:
                self._note(entry, number, region, made)
        return True

    def _in_turns(self, others: Mapping[int, tuple[Entry, Any]]
                  ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each region as it is, and with others: medians of `_repeats` runs of both in
        turns, behind one of each that does not count where there are several."""
        alternatives = {region: made for region, (_, made) in others.items()}
        before, after = [], []
        for _ in range(self._repeats + (self._repeats > 1)):
            self.program.run(self.inputs, {})
            before.append(self.program.kernel_seconds())
            outputs = self.program.run(self.inputs, alternatives)
            after.append(self.program.kernel_seconds())
            if not _equal(outputs, self._outputs):
                self._blame(others)
        return tuple(np.median(np.array(runs[-self._repeats:]), axis=0) for runs in (before, after))

    def _note(self, entry: Entry, number: int, region: int, made: Any) -> None:
        """Keep what is known of a candidate now; the best one is compared before."""
        best = entry.contest.best == number
        if best:
            _, found = self.program.run_beside(self.inputs, {region: made})
            if not found[region].same:
                self._blame({region: (entry, made)})
        entry.note(number, best)

    def _blame(self, others: Mapping[int, tuple[Entry, Any]]) -> None:
        """Raise VerificationError naming the schedule that gave other bytes."""
        _, found = self.program.run_beside(self.inputs, {
            region: made for region, (_, made) in others.items()})
        wrong = [f"{made.schedule} of\n{entry.text}" for region, (entry, made) in others.items()
                 if not found[region].same]
        raise VerificationError(f"{self.program.name}: other bytes come of {' and '.join(wrong)}")

    def rows(self) -> list[TunedKernel]:
        """What came of each kernel, those that gained the most first."""
        found = []
        for entry in self.entries:
            info, ratio, best = self.program.module.regions[entry.regions[0]], 1.0, ""
            if entry.looked_at:
                ratio, best = entry.contest.ratio, str(entry.contest.candidates[entry.contest.best])
            found.append(TunedKernel(info.scope or self.program.name, info.form, len(entry.regions),
                             entry.seconds, entry.seconds * ratio, entry.tried, info.schedule,
                             best or info.schedule))
        return sorted(found, key=lambda row: row.best_seconds - row.seconds)


def entries(trials: Trials, seconds: np.ndarray,
            share_min: float = SHARE_MIN, slowest: float = math.inf,
            heat: Heat = ALL) -> list[Entry]:
    """The kernels that take at least this share of the time, the longest first; `seconds` are those
    of each region. What the store knows of them is not tried again, nor what the timing model
    expects to take more than `slowest` times as long."""
    everywhere, known, found = kernels(trials.module), store(), []
    for (text, _), regions in sorted(everywhere.items(), key=lambda item: -seconds[item[1]].sum()):
        spent = float(seconds[regions].sum())
        if spent >= share_min * seconds.sum() and heat.has(text):
            measured = {one.schedule: one.ratio for one in known.known(trials.scope, digest(text))}
            found.append(Entry(trials, text, regions, spent, measured, slowest, heat))
    return found


def kernels(module: Module) -> dict[tuple[str, str], list[int]]:
    """The regions that compute each kernel under each schedule in every run, one launch behind the
    other. Not all regions of a kernel need have the same one: see `GROWTH_MAX` of the compiler."""
    found: dict[tuple[str, str], list[int]] = {}
    for launch in module.launches[module.changing:]:
        region = module.regions[launch.region]
        if not isinstance(launch, HostCall) and region.strips == 1:
            numbers = found.setdefault((module.kernels[region.kernel], region.schedule), [])
            if launch.region not in numbers:
                numbers.append(launch.region)
    return found


def thinned(members: Sequence[Any], most: int = CANDIDATES_MAX) -> list[Any]:
    """At most so many members of a space, the first one and others all over it."""
    if len(members) <= most:
        return list(members)
    places = np.linspace(0, len(members) - 1, most).astype(int)
    return [members[place] for place in places]


def _equal(outputs: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    return all(outputs[name].tobytes() == others[name].tobytes() for name in others)
