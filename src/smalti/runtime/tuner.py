"""Schedules of a program's kernels tried in its own runs, on the data that it runs on.

    tuner = Tuner(program, inputs, read)
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smalti.errors import IllegalSchedule, VerificationError
from smalti.kernel.form import Kernel
from smalti.kernel.text import parse as parse_kernel
from smalti.machine.cpu import estimate_kernel
from smalti.runtime.alternative import Alternative
from smalti.runtime.devices import cpu, modelled
from smalti.runtime.image import HostCall
from smalti.runtime.known import scope, store
from smalti.runtime.program import NativeProgram
from smalti.runtime.sources import Read
from smalti.schedule import Schedule, parse
from smalti.schedule.space import space
from smalti.target.x86.instructions import level
from smalti.target.x86.lower import limits
from smalti.tune.contest import Contest
from smalti.tune.store import Measured, digest

CANDIDATES_MAX = 400
"""Members of a space that the timing model looks at."""
SHARE_MIN = 5e-4
"""Kernels that take less of a run's time stay as they are."""


class Entry:
    """A kernel that has a contest; `pieces` are those that compute it."""

    def __init__(self, program: NativeProgram, text: str, pieces: Sequence[int], seconds: float,
                 before: float = 1.0) -> None:
        self._program, self.text, self.pieces = program, text, tuple(pieces)
        self.seconds = seconds
        """Of all its pieces in a run, as they are."""
        self.before = before
        """The ratio of what is in use to the first choice, as the store has it."""
        self.noted = 0
        """The number of the candidate that the store has as best."""
        self._made: tuple[int, Alternative] | None = None

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        return parse_kernel(self.text)

    @cached_property
    def contest(self) -> Contest:
        """All candidates, which are looked at when the first one is asked for."""
        program = self._program
        first = parse(program.image.pieces[self.pieces[0]].schedule)
        members = thinned(space(self.kernel, limits_of(program), first))
        device = modelled(program.image.level)
        return Contest(members, [
            estimate_kernel(device, self.kernel, member, program.threads).seconds
            for member in members])

    @property
    def tried(self) -> int:
        """Candidates that have been tried so far."""
        return len(self.contest.found) if "contest" in self.__dict__ else 0

    @property
    def piece(self) -> int:
        """The piece in which the next candidate is tried."""
        return self.pieces[self.contest.next_one % len(self.pieces)]

    def alternative(self, read: Read | None) -> Alternative | None:
        """The next candidate that can be applied, as code; None when all are done."""
        while (number := self.contest.next_one) is not None:
            if self._made is not None and self._made[0] == number:
                return self._made[1]
            try:
                made = Alternative(self._program.image, self.piece, self.kernel,
                                   self.contest.candidates[number], read)
            except IllegalSchedule:
                self.contest.tell(math.inf)
                continue
            self._made = number, made
            return made
        return None


@dataclass(frozen=True)
class Row:
    """What came of a kernel: how many pieces compute it; their seconds in a run as it was, and with
    the best schedule; how many were tried; both schedules."""

    scope: str
    form: str
    pieces: int
    seconds: float
    best_seconds: float
    tried: int
    schedule: str
    best: str


class Tuner:
    """Tries schedules of the kernels of `program`, whose weights `read(name)` gives."""

    def __init__(self, program: NativeProgram, inputs: Mapping[str, np.ndarray],
                 read: Read) -> None:
        self.program, self.inputs, self._read = program, inputs, read
        program.run(inputs)
        self._outputs = program.run(inputs)
        self._scope = scope(program.image.level, program.threads, program.image.precision)
        self.entries = list(self._entries(program.kernel_seconds()))
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
        others: dict[int, tuple[Entry, Alternative]] = {}
        waiting = bool(self._tickets)
        for entry in list(self._tickets):
            self._tickets[entry] += self._shares[entry] ** 0.5
            if self._tickets[entry] >= 1 or len(self._tickets) == 1:
                self._tickets[entry] -= 1
                made = entry.alternative(self._read)
                if made is not None:
                    others[entry.piece] = entry, made
                else:
                    del self._tickets[entry]
        if not others:
            return waiting
        self.program.run(self.inputs)
        before = self.program.kernel_seconds()
        alternatives = {piece: made for piece, (_, made) in others.items()}
        outputs = self.program.run(self.inputs, alternatives)
        after = self.program.kernel_seconds()
        if not _equal(outputs, self._outputs):
            self._blame(others)
        for piece, (entry, made) in others.items():
            entry.contest.tell(after[piece] / before[piece])
            self._note(entry, piece, made)
        return True

    def _entries(self, seconds: np.ndarray) -> Iterable[Entry]:
        """The kernels that take time, the longest first."""
        program, known = self.program, store().best(self._scope)
        found = kernels(program)
        for text, pieces in sorted(found.items(), key=lambda item: -seconds[item[1]].sum()):
            spent = float(seconds[pieces].sum())
            if spent < SHARE_MIN * seconds.sum():
                continue
            measured = known.get(digest(text))
            same = (measured is not None
                    and measured.schedule == program.image.pieces[pieces[0]].schedule)
            yield Entry(program, text, pieces, spent, measured.ratio if same else 1.0)

    def _note(self, entry: Entry, piece: int, made: Alternative) -> None:
        """Keep a schedule that has just become the best."""
        contest = entry.contest
        if contest.best == entry.noted:
            return
        entry.noted = contest.best
        if not self.program.agrees(self.inputs, piece, made):
            self._blame({piece: (entry, made)})
        seconds = entry.seconds * contest.ratio / len(entry.pieces)
        store().note(self._scope, entry.text, [
            Measured(str(contest.candidates[contest.best]), seconds,
                     entry.before * contest.ratio, True)])

    def _blame(self, others: Mapping[int, tuple[Entry, Alternative]]) -> None:
        """Raise VerificationError naming the schedule that gave other bytes."""
        wrong = [f"{made.schedule} of\n{entry.text}" for piece, (entry, made) in others.items()
                 if not self.program.agrees(self.inputs, piece, made)]
        raise VerificationError(f"{self.program.name}: other bytes come of {' and '.join(wrong)}")

    def rows(self) -> list[Row]:
        """What came of each kernel, those that gained the most first."""
        found = []
        for entry in self.entries:
            info, ratio, best = self.program.image.pieces[entry.pieces[0]], 1.0, ""
            if entry.tried:
                ratio, best = entry.contest.ratio, str(entry.contest.candidates[entry.contest.best])
            found.append(Row(info.scope or self.program.name, info.form, len(entry.pieces),
                             entry.seconds, entry.seconds * ratio, entry.tried, info.schedule,
                             best or info.schedule))
        return sorted(found, key=lambda row: row.best_seconds - row.seconds)


def kernels(program: NativeProgram) -> dict[str, list[int]]:
    """The pieces that compute each kernel in every run, one launch behind the other."""
    image, found = program.image, {}
    for launch in image.launches[image.changing:]:
        piece = image.pieces[launch.piece]
        if not isinstance(launch, HostCall) and piece.strips == 1:
            numbers = found.setdefault(image.kernels[piece.kernel], [])
            if launch.piece not in numbers:
                numbers.append(launch.piece)
    return found


def limits_of(program: NativeProgram):
    """What bounds schedules of a program on this CPU."""
    device = cpu()
    return limits(level(program.image.level), program.threads, device.l1_bytes, device.l2_bytes)


def thinned(members: Sequence[Schedule], most: int = CANDIDATES_MAX) -> list[Schedule]:
    """At most so many members of a space, the first one and others all over it."""
    if len(members) <= most:
        return list(members)
    places = np.linspace(0, len(members) - 1, most).astype(int)
    return [members[place] for place in places]


def _equal(outputs: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    return all(outputs[name].tobytes() == others[name].tobytes() for name in others)
