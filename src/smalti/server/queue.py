"""The queue: jobs that wait, run and end, and what is known of those that run."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import SmaltiError
from smalti.server.archive import (
    CANCELLED,
    DONE,
    ENDED,
    FAILED,
    QUEUED,
    RUNNING,
    Archive,
    JobRecord,
    PictureRecord,
    without_pictures,
)

QUEUE_MAX = 2000
"""Jobs that wait at a time: more than a person asks for, far less than what fills a disk."""
QUEUE_BYTES_MAX = 1 << 30
"""Of all their requests, pictures included."""
ENDED_KEPT = 16
"""Jobs that ended last and are known without the disk: who waits for one asks for it at once."""
ID_BYTES = 6
"""Random ones of a job's id: no two of a million jobs are the same, by all likelihood."""


class QueueFullError(SmaltiError):
    """So many jobs wait that no more are taken."""


class UnknownJobError(SmaltiError):
    """There is no job of this id."""


class QueueStateError(SmaltiError):
    """A job is not in the state that what is wanted of it needs."""


@dataclass(frozen=True)
class Progress:
    """How far a job that runs has come: `step` of `steps` are done, 0 of 0 before it is known.

    `doing` says what is done now where that takes long; `seconds_left` is what the steps that
    remain take, by those that were done. `preview` is a number that grows whenever there is a new
    preview, None where there is none.
    """

    step: int = 0
    steps: int = 0
    seconds_left: float | None = None
    doing: str = ""
    preview: int | None = None


class JobQueue:
    """Jobs in order, for any number of threads that ask for them and that make them.

    `turns` counts the changes of jobs, their order and the pause, but not how far jobs have come;
    `ends` counts jobs that ran and have ended.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._changed = threading.Condition()
        self._progress: dict[str, Progress] = {}
        self._running: dict[str, JobRecord] = {}
        self._ended: dict[str, JobRecord] = {}
        self.turns = self.ends = 0
        self._waiting = (-1, 0)
        self._cancelling: set[str] = set()
        self._watchers: dict[Callable[[str], None], bool] = {}
        self._watching = threading.Lock()  # one of its own: who asks waits for no disk then
        self.stopping = False

    # for those who ask

    def submit(self, request: dict[str, Any], device: str | None = None) -> JobRecord:
        """A new job, the last in the queue. Raises QueueFullError."""
        with self._changed:
            waiting = self.archive.count(QUEUED)
            if waiting >= QUEUE_MAX or self.archive.queued_bytes() >= QUEUE_BYTES_MAX:
                raise QueueFullError(f"{waiting} jobs wait already; try again when some of them "
                                     f"have ended")
            job = self.archive.add(JobRecord(secrets.token_hex(ID_BYTES), QUEUED, 0.0, request,
                                             device, time.time()))
        self._tell(job.id)
        return job

    def cancel(self, id: str) -> JobRecord:
        """End a job: at once where it waits, within a step where it runs.

        Raises QueueStateError where it has ended otherwise, UnknownJobError where there is none.
        """
        with self._changed:
            job = self.job(id)
            if job.state == QUEUED:
                self.archive.end(replace(job, state=CANCELLED), (QUEUED,))
            elif job.state == RUNNING:
                self._cancelling.add(id)
            elif job.state != CANCELLED:
                raise QueueStateError(f"the job {id} is {job.state} already; only one that waits "
                                      f"or runs can be cancelled")
        self._tell(id)
        self._trim()
        return self.job(id)

    def cancel_all(self) -> None:
        """End all jobs that wait."""
        for id in self.archive.order():
            self.cancel(id)

    def retry(self, id: str) -> JobRecord:
        """A new job that asks for the same as one that failed or was cancelled."""
        job = self.job(id)
        if job.state not in (FAILED, CANCELLED):
            raise QueueStateError(f"the job {id} is {job.state}; only one that failed or was "
                                  f"cancelled can be tried again")
        request = self.archive.request(id)
        if request is None:
            raise QueueStateError(f"the pictures that the job {id} was given are not kept any "
                                  f"more; ask for it anew, with them")
        return self.submit(request, job.device)

    def move(self, id: str, place: int) -> JobRecord:
        """Put a job that waits at this place in the queue, 1 the next one."""
        if not self.archive.move(id, place):
            raise QueueStateError(f"the job {id} is {self.job(id).state}; only one that waits has "
                                  f"a place in the queue")
        self._tell(id)
        return self.job(id)

    def pause(self, paused: bool) -> None:
        """Begin no more jobs, or begin them again; what runs is made to its end."""
        self.archive.paused = paused
        self._tell("")

    def job(self, id: str) -> JobRecord:
        """The job of this id. Raises UnknownJobError."""
        found = self.archive.job(id)
        if found is None:
            raise UnknownJobError(f"there is no job {id!r:.40}")
        return found

    def known(self, id: str) -> JobRecord | None:
        """The job of this id, None where there is none; what is `at_hand` is not read for it."""
        return self.at_hand(id) or self.archive.job(id)

    def at_hand(self, id: str) -> JobRecord | None:
        """The job of this id, if it runs or has ended just now: no disk is waited for."""
        return self._running.get(id) or self._ended.get(id)

    def running(self) -> list[JobRecord]:
        """The jobs that run, the one that began first before others."""
        return [*self._running.values()]

    def running_job(self, id: str) -> JobRecord | None:
        """The job of this id, if it runs."""
        return self._running.get(id)

    def waiting(self) -> int:
        """How many jobs wait."""
        turns = self.turns  # before they are counted, so that what changes meanwhile is seen
        if self._waiting[0] != turns:
            self._waiting = turns, self.archive.count(QUEUED)
        return self._waiting[1]

    @property
    def waiting_known(self) -> int | None:
        """How many jobs wait, if that is known without reading the archive."""
        turns, count = self._waiting
        return count if turns == self.turns else None

    def progress(self, id: str) -> Progress | None:
        """How far a job that runs has come."""
        return self._progress.get(id)

    @contextmanager
    def watching(self, watcher: Callable[[str], None], steps: bool = True) -> Iterator[None]:
        """Inside, `watcher` is called, by any thread, with the id of a job that changed; with
        `steps` also when it has only come further."""
        with self._watching:
            self._watchers[watcher] = steps
        try:
            yield
        finally:
            with self._watching:
                self._watchers.pop(watcher, None)

    # for those who make them

    def take(self, device: str) -> JobRecord | None:
        """Wait for the next job of this device, which runs from now on; None at the end."""
        with self._changed:
            while not self.stopping:
                job = None if self.archive.paused else self.archive.begin(device)
                if job is not None:
                    self._progress[job.id] = Progress()
                    self._running[job.id] = replace(job, request=without_pictures(job.request))
                    break
                self._changed.wait()
            else:
                return None
        self._tell(job.id)
        return job

    def unwanted(self, id: str) -> bool:
        """Whether a job that runs is to stop: cancelled, or the server stops."""
        return self.stopping or id in self._cancelling

    def advance(self, id: str, **known: Any) -> None:
        """Tell how far a job has come: the fields of `Progress` that changed."""
        before = self._progress.get(id)
        if before is not None:
            self._progress[id] = replace(before, **known)
            for each in self._heard_by(step=True):
                each(id)

    def finish(self, job: JobRecord, pictures: Sequence[PictureRecord], warnings: list[str],
               timings: dict[str, float]) -> None:
        """A job is done; its pictures are in the gallery from now on."""
        self._end(replace(job, state=DONE, warnings=warnings, timings=timings), pictures)

    def fail(self, job: JobRecord, error: str, message: str) -> None:
        """A job failed with an error of this name and text."""
        self._end(replace(job, state=FAILED, error=error, message=message))

    def drop(self, job: JobRecord) -> None:
        """A job that was `unwanted` has stopped: cancelled, or it waits for the next start."""
        if job.id in self._cancelling:
            self._end(replace(job, state=CANCELLED))
        else:
            with self._changed:
                self.archive.give_back(job.id)
                self._forget(job.id)
            self._tell(job.id)

    def stop(self) -> None:
        """Nothing is begun any more, and what runs stops within a step."""
        with self._changed:
            self.stopping = True
        self._tell("")

    def _end(self, job: JobRecord, pictures: Sequence[PictureRecord] = ()) -> None:
        job = replace(job, ended=time.time(), request=without_pictures(job.request))
        with self._changed:
            if self.archive.end(job, (RUNNING,), pictures):
                self._ended[job.id] = job
                for old in list(self._ended)[:-ENDED_KEPT]:
                    del self._ended[old]
            self._forget(job.id)
            self.ends += 1
        self._tell(job.id)
        self._trim()

    def _trim(self) -> None:
        """Forget jobs that ended long ago."""
        for id in self.archive.trim():
            self._ended.pop(id, None)
            self._tell(id)

    def _forget(self, id: str) -> None:
        """A job does not run any more."""
        self._running.pop(id, None)
        self._progress.pop(id, None)
        self._cancelling.discard(id)

    def _tell(self, id: str) -> None:
        """Wake who waits for a job, and who watches: a job changed, or all of them (no id)."""
        with self._changed:
            self.turns += 1
            self._changed.notify_all()
        for each in self._heard_by(step=False):
            each(id)

    def _heard_by(self, step: bool) -> list[Callable[[str], None]]:
        """Who hears of a change, which is a step that was done or another one."""
        with self._watching:
            return [each for each, steps in self._watchers.items() if steps or not step]

    def wait(self, id: str, seconds: float) -> JobRecord:
        """The job when it has ended, or as it is after so many seconds."""
        until = time.monotonic() + seconds
        with self._changed:
            while (job := self.job(id)).state not in ENDED and not self.stopping:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return job
