"""Workers that make no pictures themselves: each gives a job to a replica elsewhere, and notes what
is told of it in the queue and the gallery of this server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

from smalti.errors import SmaltiError
from smalti.server.archive import ATTEMPTS_MAX, JobRecord
from smalti.server.gallery import Gallery
from smalti.server.messages import Advanced, Failed, Finished, Message
from smalti.server.previews import Previews
from smalti.server.queue import JobQueue
from smalti.server.worker import defect, keep, settle

PLACE = "cluster"
"""What is told as the device of such workers."""
Send = Callable[[JobRecord], Generator[Message, None, None]]
"""Gives a job to a replica; what is told of it. Raises ReplicaLostError. To close it ends the job.
"""


class ReplicaLostError(SmaltiError):
    """The process that made a picture ended, or the way to it."""


class RemoteWorker:
    """As many threads as replicas may be asked at a time; `send` finds one that is free."""

    device = place = PLACE

    def __init__(self, queue: JobQueue, gallery: Gallery, previews: Previews, send: Send,
                 count: int) -> None:
        self._queue, self._gallery, self._previews, self._send = queue, gallery, previews, send
        self._lost: dict[str, int] = {}
        self._threads = [threading.Thread(
            target=keep, args=(queue, self._work, f"work on replica {number}"),
            name=f"keeper of replica {number}", daemon=True) for number in range(count)]

    def start(self) -> None:
        """Begin to take jobs."""
        for each in self._threads:
            each.start()

    def join(self, seconds: float) -> bool:
        """Wait until all have stopped, after `JobQueue.stop`; whether they have."""
        until = time.monotonic() + seconds
        for each in self._threads:
            if each.ident is not None:
                each.join(max(0.0, until - time.monotonic()))
        return not any(each.is_alive() for each in self._threads)

    def unload(self) -> None:
        """Replicas end by themselves when nothing is asked of them."""

    def _work(self) -> None:
        while (job := self._queue.take(self.device)) is not None:
            self.make(job)

    def make(self, job: JobRecord) -> None:
        """Have a job made, to its end; where the replica is lost, by another one."""
        messages = self._send(job)
        try:
            for message in messages:
                if self._queue.unwanted(job.id):
                    self._queue.drop(job)
                    return
                self._note(job, message)
        except ReplicaLostError as error:
            self._lost[job.id] = attempts = self._lost.get(job.id, 0) + 1
            if attempts < ATTEMPTS_MAX:
                self._queue.drop(job)  # it waits again, where it stood
                return
            self._fail(job, "ReplicaLostError", f"{attempts} replicas ended while they made this "
                                                f"picture: {error}")
        except (SmaltiError, OSError) as error:
            self._fail(job, type(error).__name__, str(error))
        except BaseException as error:
            self._fail(job, *defect(error))
            raise
        finally:
            messages.close()
            self._previews.end(job.id)
        self._lost.pop(job.id, None)

    def _note(self, job: JobRecord, message: Message) -> None:
        """Note what is told of a job."""
        if isinstance(message, Advanced):
            if message.preview is not None:
                self._previews.receive(job.id, message.known["preview"], message.preview)
            self._queue.advance(job.id, **message.known)
        elif isinstance(message, Finished):
            pictures = self._gallery.write(job, message)
            settle(self._queue, lambda: self._queue.finish(job, pictures, message.warnings,
                                                           message.timings))
        elif isinstance(message, Failed):
            self._fail(job, message.error, message.message)
        else:
            self._queue.drop(job)

    def _fail(self, job: JobRecord, error: str, message: str) -> None:
        settle(self._queue, lambda: self._queue.fail(job, error, message))
