"""All of a server but HTTP: its queue, its workers, its models and its pictures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.errors import OutputError
from smalti.server.archive import RUNNING, Archive, PictureRecord
from smalti.server.events import MODELS, Events
from smalti.server.gallery import Gallery
from smalti.server.hashes import Hashes
from smalti.server.previews import Previews
from smalti.server.queue import JobQueue
from smalti.server.remote import RemoteWorker, Send
from smalti.server.times import JobTimes
from smalti.server.worker import DeviceWorker

if TYPE_CHECKING:
    from smalti.server.models import ModelFolders

ARCHIVE = "smalti.sqlite"
"""The file of the queue and the gallery, in the folder of results."""
STOP_SECONDS = 10.0
"""For the step that runs to end; what takes longer is made again after the next start."""


class Site:
    """A queue that is kept in `output`, with a worker for each of `devices`.

    `loading` is what all models are loaded with: `memory`, `threads`, `precision`. Nothing that
    makes pictures is loaded before the first of them is asked for. Without `keep_sent`, pictures
    are deleted when they are sent to a program that waits for them. With `send`, pictures are made
    elsewhere, by as many replicas as `remote` says at a time (see `remote`), not on devices here.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> site = Site(Path(folder.name))
    >>> job = site.queue.submit({"prompt": "a red apple", "steps": 1})
    >>> site.queue.job(job.id).state  # until `site.start`
    'queued'
    >>> site.stop()
    """

    def __init__(self, output: Path, models: Sequence[Path] = (),
                 devices: Sequence[str] = ("auto",), keep_sent: bool = True,
                 send: Send | None = None, remote: int = 1, **loading: Any) -> None:
        self._keep_sent, self._started, self._stopped = keep_sent, False, False
        self.loading = loading
        self.gallery = Gallery(output)
        self.archive = Archive(output / ARCHIVE)
        self.queue = JobQueue(self.archive)
        self.events = Events(self.queue)
        self.previews = Previews(lambda: self.events.watched)
        self.hashes = Hashes(self.archive, idle=lambda: not self.queue.running(),
                             known=lambda: self.events.note(MODELS))
        self.times = JobTimes()
        self._models = models
        self._folders: ModelFolders | None = None
        self._opening = threading.Lock()
        for job in self.archive.recover():
            self.gallery.clean(job)
        self.workers: list[DeviceWorker | RemoteWorker] = (
            [RemoteWorker(self.queue, self.gallery, self.previews, send, remote)] if send else
            [DeviceWorker(self.queue, self.gallery, self.previews, self.times, self.folders,
                          device, **loading) for device in devices])

    def folders(self) -> ModelFolders:
        """The models that are found."""
        from smalti.server.models import ModelFolders

        with self._opening:
            if self._folders is None:
                self._folders = ModelFolders(self._models)
            return self._folders

    def sent(self, pictures: Sequence[PictureRecord]) -> None:
        """Pictures are being sent to a program that waited for them."""
        for each in () if self._keep_sent else pictures:
            try:
                self.gallery.delete(each)
            except OutputError as error:  # such as a virus scanner on Windows that reads it now
                print(f"warning: {error}; it stays in the gallery", file=sys.stderr)
                continue
            self.archive.remove(each.id)

    def start(self) -> None:
        """Begin to make pictures. Again it does nothing."""
        if self._started:
            return
        self._started = True
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """End the work within a step; what is not made yet is made after the next start. Again it
        does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.queue.stop()
        self.hashes.stop()
        if all([worker.join(STOP_SECONDS) for worker in self.workers]):
            self.archive.close()
            return
        for job in self.archive.jobs(RUNNING):  # a step that takes long; it ends with the process
            self.archive.give_back(job.id)
