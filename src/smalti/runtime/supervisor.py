"""A program that runs again and again tries schedules of its kernels meanwhile.

    watched = Supervisor(program)
    for step in steps:
        outputs = watched.run_checked(inputs)

A picture is some tens of runs of one program. In some of them one kernel is computed a second time
under another schedule, on the same data, and compared byte by byte; the first result is the one
that counts. A schedule that looks good then takes the place of the one in use for a few runs, and
for all to come if it keeps its promise; the store hears of it. Only schedules that add the same
numbers in the same order are tried, so a picture is the same with and without.

What this costs, in code that is made, in kernels that run twice, and in schedules that disappoint,
is regret. It is measured, and something is tried only while the regret, with what the next trial
may cost, stays below `REGRET_SHARE` of the time that runs have taken since `begin`. Programs whose
runs are too short to pay for a trial are never touched.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from smalti.compiler.module import Beside
from smalti.dataclass import dataclass
from smalti.runtime.interface import Program
from smalti.runtime.tuner import Entry, entries

REGRET_SHARE = 0.025
"""Of the time of a picture's runs so far. What is not foreseen of a trial comes on top, so this is
less than the 3 % that are promised."""
CURIOSITY = 20
"""Candidates after which half of this share is spent; after three times as many, a quarter."""
SHARE_MIN = 3e-3
"""Kernels that take less of a run are left to `smalti tune`."""
REMEMBERED = 5
"""Runs whose median is what a region usually takes."""
MAKING_SECONDS, LOOKING_SECONDS = 0.1, 0.15
"""What making a candidate, and looking at all of a kernel for the first time, may cost."""
SLOWEST = 1.2
"""What the timing model expects to take more than this times as long is not tried."""
LOSS = 0.2
"""Of a kernel's time: what a candidate may take more, of which little is known."""
HOPELESS = 1.1
"""Of its kernel's time: what takes more on warm caches is not tried in its place."""

_log = logging.getLogger(__name__)


@dataclass
class Account:
    """Seconds that the runs of one picture have `spent`, and how many of them trials have lost."""

    spent: float = 0.0
    regret: float = 0.0


class Supervisor:
    """Runs `program`, and tries schedules of its kernels while there is time for it.

    What was found is the program's, for all pictures; the time that may be lost is that of the
    picture of a run, in its `account`.
    """

    def __init__(self, program: Program, clock: Callable[[], float] = time.perf_counter) -> None:
        self.program, self._clock, self._trials = program, clock, program.trials()
        self._turn = threading.Lock()
        self._making = MAKING_SECONDS
        self.account = Account()
        self._forget()

    def _forget(self) -> None:
        """Begin anew, for the module that the program has now."""
        self._image = None if self._trials is None else self._trials.module
        self._recent: deque[np.ndarray] = deque(maxlen=REMEMBERED)
        self._usual = np.zeros(0)
        self._entries: list[Entry] | None = None
        self._compared: set[Any] = set()
        self._chosen: dict[int, Any] = {}

    def begin(self) -> None:
        """A new picture: what its runs take and lose counts from here."""
        self.account = Account()

    @property
    def spent(self) -> float:
        """Seconds that runs of the picture have taken."""
        return self.account.spent

    @property
    def regret(self) -> float:
        """Seconds of them that trials have lost."""
        return self.account.regret

    @property
    def tried(self) -> int:
        """Candidates that were tried so far, by other programs too."""
        return sum(entry.tried for entry in self._entries or ())

    @property
    def chosen(self) -> int:
        """Regions that run under another schedule than at first."""
        return len(self._chosen)

    def run_checked(self, inputs: Mapping[str, np.ndarray],
                    account: Account | None = None) -> dict[str, np.ndarray]:
        """The outputs of the program, as its own `run_checked` gives them, and its errors.

        `account` is that of the picture; without one the last goes on.
        """
        program = self.program
        if self._trials is None or program.streamed \
                or not self._turn.acquire(blocking=False):
            return program.run_checked(inputs)
        try:
            self.account = account or self.account
            return program.checked(inputs, self._run(inputs))
        finally:
            self._turn.release()

    # ------------------------------------------------------------------ one run

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a run, in which something may be tried."""
        program = self._trials.program
        if program.module is not self._image:  # weights that need another one were bound
            self._forget()
        started = self._clock()
        trying, left = self._in_place(self._allowed())
        fresh = self._next(left)
        made = self._made(fresh) if fresh is not None else None
        instead = {**self._chosen, **{region: other for entry, other in trying.items()
                                      for region in entry.regions}}
        begun = self._clock()
        if made is None:
            outputs = program.run(inputs, instead)
        else:
            outputs, found = program.run_beside(inputs, {fresh.region: made}, instead)
        seconds, judging = program.kernel_seconds(), self._clock()
        lost = begun - started
        if made is not None:
            lost += max(0.0, judging - begun - float(seconds.sum()))
            self._compare(fresh, made, found[fresh.region])
        lost += self._judge_in_place(trying, seconds)
        self._recent.append(seconds)
        self._usual = np.median(np.array(self._recent), axis=0)
        self.account.regret += lost + self._clock() - judging
        self.account.spent += self._clock() - started
        return outputs

    def _of(self, entry: Entry) -> float:
        """Seconds that the regions of a kernel usually take with the schedule in use."""
        return float(self._usual[list(entry.regions)].sum())

    def _allowed(self) -> float:
        """Seconds that may be lost now."""
        share = REGRET_SHARE * CURIOSITY / (CURIOSITY + self.tried)
        return share * (self.spent - self.regret) - self.regret

    def _in_place(self, allowed: float) -> tuple[dict[Entry, Any], float]:
        """Candidates that take their kernels' places in this run, as far as that can be afforded,
        and what may be lost besides."""
        found = {}
        for entry in self._entries or ():
            made = entry.at_hand if entry.looked_at and not entry.done else None
            cost = LOSS * self._of(entry)
            if made in self._compared and cost <= allowed:
                found[entry], allowed = made, allowed - cost
        return found, allowed

    def _next(self, allowed: float) -> Entry | None:
        """The kernel whose next candidate is made and compared in this run, if that can be
        afforded."""
        if len(self._recent) < 2 or allowed <= LOOKING_SECONDS and self._entries is None:
            return None
        if self._entries is None:
            self._entries = entries(self._trials, self._usual, SHARE_MIN, SLOWEST)
        waiting = [entry for entry in self._entries if not entry.done and not (
            entry.looked_at and entry.at_hand in self._compared)]
        if not waiting:
            return None
        entry = max(waiting, key=lambda one: one.promise)
        cost = self._making + (1 + LOSS) * self._of(entry) / len(entry.regions) + (
            0.0 if entry.looked_at else LOOKING_SECONDS)
        return entry if cost <= allowed else None

    def _made(self, entry: Entry) -> Any | None:
        """The candidate of a kernel to try now, as code."""
        started = self._clock()
        made = entry.alternative(None)
        self._making = (self._making + self._clock() - started) / 2
        return made

    # ------------------------------------------------------------------ what came of it

    def _compare(self, entry: Entry, made: Any, beside: Beside) -> None:
        """Whether a candidate may take its kernel's place: it gave the same bytes, and was not far
        slower on data that the other one had just brought into the caches."""
        ratio = beside.other_seconds / beside.seconds
        if not beside.same:
            _log.warning("%s gives other bytes for a kernel of %s and is not used: this is a bug "
                         "of the compiler", made.schedule, self.program.name)
            ratio = math.inf
        if ratio <= HOPELESS:
            self._compared.add(made)
        else:
            self._tell(entry, made, ratio)

    def _judge_in_place(self, trying: Mapping[Entry, Any], seconds: np.ndarray) -> float:
        """Judge candidates by what they took, over what is usual, as all else was faster or slower
        than usual in this run; the seconds that they lost. Those of `seconds` become usual ones."""
        if not trying:
            return 0.0
        others = np.ones(len(seconds), bool)
        others[[region for entry in trying for region in entry.regions]] = False
        pace = max(seconds[others].sum(), 1e-9) / max(self._usual[others].sum(), 1e-9)
        lost = 0.0
        for entry, made in trying.items():
            regions = list(entry.regions)
            before, took = pace * self._of(entry), float(seconds[regions].sum())
            lost += max(0.0, took - before)
            seconds[regions] = self._usual[regions]
            self._tell(entry, made, took / before)
        return lost

    def _tell(self, entry: Entry, made: Any, ratio: float) -> None:
        """Tell a contest how its candidate did; the best one is used from now on."""
        contest, number = entry.contest, entry.contest.next_one
        now = contest.ratio if entry.regions[0] in self._chosen else 1.0
        contest.tell(now * ratio)
        if contest.next_one == number:
            return
        self._compared.discard(made)
        if contest.best == number:
            for seconds in (*self._recent, self._usual):
                seconds[list(entry.regions)] *= contest.ratio / now
            self._chosen |= dict.fromkeys(entry.regions, made)
        entry.note(number, True)
