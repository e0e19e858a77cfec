"""Workers, whatever they are, and each record exactly once.

What a worker had that died is given to another one, and is an error the third time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from smalti.batch.folder import BatchOutcome
from smalti.batch.records import BatchRecord
from smalti.dataclass import dataclass

ATTEMPTS = 3
"""That a record has whose worker dies: a memory that is short for a moment, and not for ever."""


@dataclass(frozen=True)
class Died:
    """The end of a worker; of the record that it was `making`, it may be the cause."""

    why: str
    making: bool = True


class Crew(ABC):
    """Workers that take records and answer in any order."""

    @abstractmethod
    def has_room(self, left: int) -> bool:
        """Whether a record can be given now, where so many are `left` to be given: one that waits
        for a worker should wait here."""

    @abstractmethod
    def give(self, record: BatchRecord) -> None:
        """Have a worker make a record."""

    @abstractmethod
    def answers(self) -> Iterable[tuple[BatchRecord, BatchOutcome | Died]]:
        """What became of records that were given, once there is news; each is answered once. Raises
        InputError where nothing can be made."""

    @abstractmethod
    def end(self) -> None:
        """End all workers."""


def made_by(crew: Crew, records: Sequence[BatchRecord]) -> Iterator[BatchOutcome]:
    """What became of each record."""
    waiting, attempts = deque(records), Counter[str]()
    given = 0
    try:
        while waiting or given:
            while waiting and crew.has_room(len(waiting)):
                crew.give(waiting.popleft())
                given += 1
            for record, told in crew.answers():
                given -= 1
                if isinstance(told, BatchOutcome):
                    yield told
                    continue
                attempts[record.digest] += told.making
                if attempts[record.digest] < ATTEMPTS:
                    waiting.appendleft(record)
                else:
                    yield BatchOutcome(record.digest, error=(
                        f"what makes it died {ATTEMPTS} times ({told.why}); memory may be short: "
                        f"give fewer --workers"))
    finally:
        crew.end()
