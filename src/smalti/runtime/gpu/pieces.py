"""Launches cut into submissions that no watchdog minds, by what is known of how long they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from smalti.dataclass import dataclass
from smalti.runtime.gpu.interface import Copy, Dispatch, Launch
from smalti.runtime.gpu.pacing import (
    COPIED_BYTES,
    LEAST_SECONDS,
    SLOW_SECONDS,
    SUBMISSION_SECONDS,
    GridBox,
    Pace,
    Probe,
    boxes,
)

WORD_BYTES = 4  # offsets and lengths of copies are whole words
COPY_BYTES_MAX = int(COPIED_BYTES * SUBMISSION_SECONDS) // WORD_BYTES * WORD_BYTES
NOWHERE = GridBox((0, 0, 0), (0, 0, 0))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a launch as one command: a box of its grid, or of a copy a range of bytes.

    `number` is that of the launch, `seconds` how long it takes, as far as that is known.
    """

    number: int
    seconds: float
    box: GridBox = NOWHERE
    begin: int = 0
    bytes: int = 0


Ran = Callable[[list[Piece]], float]
"""Runs pieces by themselves, waits for them, and gives the seconds that the host has waited."""


def pieces(number: int, launch: Launch) -> Iterator[Piece]:
    """A launch, in pieces that take no longer than a submission may, as it was measured."""
    if isinstance(launch, Copy):
        for begin in range(0, launch.bytes, COPY_BYTES_MAX):
            bytes = min(COPY_BYTES_MAX, launch.bytes - begin)
            yield Piece(number, bytes / COPIED_BYTES, NOWHERE, begin, bytes)
        return
    each, groups = launch.pipeline.pace.group_seconds, launch.pipeline.groups
    for box in boxes(groups, each * math.prod(groups)):
        yield Piece(number, each * box.count, box)


def parts(launches: Sequence[Launch]) -> Iterator[list[Piece]]:
    """All of `launches`, in submissions; two pieces of one launch are never in the same."""
    return submissions(piece for number, launch in enumerate(launches)
                       for piece in pieces(number, launch))


def submissions(found: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in lists that are submitted together."""
    part: list[Piece] = []
    seconds = 0.0
    for piece in found:
        if part and (seconds + piece.seconds > SUBMISSION_SECONDS
                     or part[-1].number == piece.number):
            yield part
            part, seconds = [], 0.0
        part.append(piece)
        seconds += piece.seconds
    if part:
        yield part


def known(launches: Iterable[Launch]) -> bool:
    """Whether it is known how long each launch takes."""
    return all(isinstance(launch, Copy) or launch.pipeline.pace.known for launch in launches)


def explore(launches: Sequence[Launch], ran: Ran) -> None:
    """Run each launch once, and learn how long programs take that are new."""
    waiting: list[Piece] = []

    def settle() -> None:
        for part in submissions(waiting):
            ran(part)
        waiting.clear()

    for number, launch in enumerate(launches):
        if isinstance(launch, Copy) or launch.pipeline.pace.known:
            waiting.extend(pieces(number, launch))
            continue
        settle()
        launch.pipeline.pace.note(measured(number, launch, ran))
    settle()


def measured(number: int, launch: Dispatch, ran: Ran) -> float:
    """What a work-group of a launch takes, which runs for that."""
    pipeline = launch.pipeline
    if pipeline.pace.group_seconds:
        cut = list(pieces(number, launch))
        return sum(ran([piece]) for piece in cut) / sum(piece.box.count for piece in cut)
    probe = Probe(pipeline.groups, launch.seconds)
    while (box := probe.box()) is not None:
        probe.took(ran([Piece(number, 0.0, box)]))
    return probe.group_seconds


def reviewed(took: Iterable[tuple[list[Piece], float]], launches: Sequence[Launch]) -> bool:
    """Whether some submissions took so long that their launches have to be cut anew, and can be:
    these are measured again."""
    times: dict[Pace, float] = {}
    for part, seconds in took:
        for piece in part if seconds > SLOW_SECONDS else ():
            launch = launches[piece.number]
            if piece.box.count > 1 and isinstance(launch, Dispatch):
                expected = max(sum(each.seconds for each in part), LEAST_SECONDS)
                pace = launch.pipeline.pace
                times[pace] = max(times.get(pace, 1.0), seconds / expected)
    for pace, slower in times.items():
        pace.slowed(slower)
    return bool(times)
