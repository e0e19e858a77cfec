"""A worker in another process: it makes the pictures of jobs that it is sent, and tells how they go
on. What it tells is data that can be sent through a network.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from smalti.diffusion.made_picture import PNG_PACKING
from smalti.server.archive import JobRecord, PictureRecord
from smalti.server.gallery import Gallery
from smalti.server.messages import (
    Advanced,
    Dropped,
    Failed,
    Finished,
    FinishedPicture,
    MadeWith,
    Message,
)
from smalti.server.models import ModelFolders
from smalti.server.previews import Previews
from smalti.server.queue import JobQueue
from smalti.server.times import JobTimes
from smalti.server.worker import DeviceWorker

if TYPE_CHECKING:
    from smalti.diffusion.pipeline import Pipeline
    from smalti.diffusion.result import Result
    from smalti.server.asked import Asked
    from smalti.server.upscaling import Enlarged


class Relay:
    """Stands for the queue and the gallery of a server that are elsewhere: what a worker says to
    them is put into `told`."""

    stopping = False

    def __init__(self, previews: Previews) -> None:
        self.begin(threading.Event())
        self._previews = previews
        self._made: Result | Enlarged | None = None

    def begin(self, unwanted: threading.Event) -> None:
        """A job begins, which is to stop when it is `unwanted`."""
        self.told: queue.Queue[Message] = queue.Queue()
        self._unwanted = unwanted

    def unwanted(self, id: str) -> bool:
        """Whether the job is to stop."""
        return self._unwanted.is_set()

    def advance(self, id: str, **known: Any) -> None:
        """Tell how far a job has come."""
        shown = self._previews.shown(id) if "preview" in known else None
        self.told.put(Advanced(known, None if shown is None else shown.jpeg))

    def write(self, job: JobRecord, result: Result | Enlarged) -> list[PictureRecord]:
        """Take the pictures of a job, which are sent when it is done."""
        self._made = result
        return []

    def finish(self, job: JobRecord, pictures: Sequence[PictureRecord], warnings: list[str],
               timings: dict[str, float]) -> None:
        """A job is done."""
        assert self._made is not None
        made, self._made = self._made, None
        files = []
        for each in made.images:
            stream = io.BytesIO()
            each.save(stream, "PNG", **PNG_PACKING)
            files.append(FinishedPicture(stream.getvalue(), each.width, each.height))
        self.told.put(Finished(
            files, list(made.seeds), list(made.texts),
            MadeWith(made.parameters.model, made.parameters.prompt), warnings, timings))

    def fail(self, job: JobRecord, error: str, message: str) -> None:
        """A job failed."""
        self.told.put(Failed(error, message))

    def drop(self, job: JobRecord) -> None:
        """A job has stopped."""
        self.told.put(Dropped())


class ReplicaWorker(DeviceWorker):
    """A worker that says in its log which models it loads."""

    def _pipeline(self, asked: Asked) -> Pipeline:
        known = set(self._pipelines)
        found = super()._pipeline(asked)
        if known < set(self._pipelines):
            print(f"replica {os.getpid()} loads {asked.model.name}", file=sys.stderr, flush=True)
        return found


class PictureReplica:
    """Makes pictures on one device, of models in these folders, one job at a time."""

    def __init__(self, models: Sequence[str | Path] = (), device: str = "auto", **loading: Any
                 ) -> None:
        folders, previews = ModelFolders([Path(each) for each in models]), Previews(lambda: True)
        self._relay = Relay(previews)
        self._one = threading.Lock()
        self._worker = ReplicaWorker(cast(JobQueue, self._relay), cast(Gallery, self._relay),
                                    previews, JobTimes(), lambda: folders, device, **loading)

    def make(self, job: JobRecord, unwanted: threading.Event | None = None) -> Iterator[Message]:
        """What is told of a job until it has ended; who closes this, or sets `unwanted`, ends it
        within a step. It begins when the one before has ended."""
        unwanted = unwanted or threading.Event()
        with self._one:
            self._relay.begin(unwanted)
            thread = threading.Thread(target=self._worker.make, args=(job,), name=f"job {job.id}",
                                      daemon=True)
            thread.start()
            try:
                while True:
                    message = self._relay.told.get()
                    yield message
                    if not isinstance(message, Advanced):
                        return
            finally:
                unwanted.set()
                thread.join()
