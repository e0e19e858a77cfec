"""Everything that changes, for any number of pages that watch: the events of `GET /api/events`.

What changed is noted by any thread, which costs it next to nothing. A round collects what was
noted, makes it text once for all pages, and puts it where each page takes it from. What a page has
not taken yet is replaced by what is newer of the same job, and where that is still too much, the
page is told the whole state again. So a page that is slow holds up nobody, and no memory grows.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, suppress
from typing import Any

from smalti import __version__
from smalti.server.archive import ENDED, QUEUED
from smalti.server.queue import JobQueue
from smalti.server.told import job_told, picture_told, places

ROUND_SECONDS = 0.2
"""From one round to the next: bars of a page move evenly between two, and each round takes a job
that is made meanwhile a millisecond. That a job has ended is said
at once, as programs wait for it."""
ALIVE_SECONDS = 15.0
"""Between signs of life in a stream: proxies close what is silent for a minute."""
ALIVE = b": still here\n\n"
PENDING_BYTES_MAX = 1 << 20
"""That wait for one page; one that has not taken more is told the whole state instead."""
ENDED_TOLD = 50
"""Jobs that have ended, of the whole state: the gallery has what they made."""
WAITING_TOLD = 200
"""Jobs that wait, of the whole state: 2,000 long prompts are no small text. A page shows 100."""

LISTENERS_MAX = 256
"""Pages and programs at a time, half of all connections: the others are for requests."""

JOB, QUEUE, PICTURE, MODELS = "job", "queue", "picture", "models"
"""What may change."""
Key = tuple[str, str]
"""What changed, and its id where it has one."""
Said = tuple[dict[Key, bytes], set[str]]
"""What is said of changes, and the ids of the jobs that have ended."""


def event(name: str, data: Any) -> bytes:
    """An event as the stream has it.

    >>> event("gone", {"id": "a"})
    b'event: gone\\ndata: {"id": "a"}\\n\\n'
    """
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class Listener:
    """What waits for one page, of `job` only where that is given. It is touched by the loop alone.
    """

    def __init__(self, job: str | None) -> None:
        self.job, self.behind, self.ended = job, True, False
        self.pending: dict[Key, bytes] = {}
        self.wake = asyncio.Event()

    def take(self, said: dict[Key, bytes]) -> None:
        """What was said in a round."""
        for key, text in said.items():
            if self.job is None or key == (JOB, self.job):
                self.pending.pop(key, None)  # what is newer stands behind all others
                self.pending[key] = text
        if sum(map(len, self.pending.values())) > PENDING_BYTES_MAX:
            self.pending, self.behind = {}, True
        if self.pending or self.behind:
            self.wake.set()

    def end(self) -> None:
        """Nothing more will be said."""
        self.ended = True
        self.wake.set()


class Events:
    """The changes of one site. `note` is called by any thread, `stream` by any event loop: there
    are several where a front on a cluster has a port of its own, each with its `LoopEvents`."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._turn = threading.Lock()
        self._of: dict[asyncio.AbstractEventLoop, LoopEvents] = {}

    @property
    def watched(self) -> bool:
        """Whether any page listens."""
        return any(each.listeners for each in self._all())

    @property
    def crowded(self) -> bool:
        """Whether no more may listen."""
        return sum(len(each.listeners) for each in self._all()) >= LISTENERS_MAX

    def note(self, what: str, id: str = "") -> None:
        """Something changed: a job or picture of this id, the queue, the models."""
        for each in self._all():
            each.note(what, id)

    def stream(self, job: str | None = None) -> AsyncGenerator[bytes, None]:
        """The events of a page from now on, the whole state first; those of one job until it has
        ended, if it is given. Called in the loop that takes them."""
        loop = asyncio.get_running_loop()
        with self._turn:
            self._of = {each: events for each, events in self._of.items() if not each.is_closed()}
            events = self._of.setdefault(loop, LoopEvents(self._queue))
        return events.stream(job)

    def _all(self) -> list[LoopEvents]:
        with self._turn:
            return [*self._of.values()]


class LoopEvents:
    """The changes of one site for the pages of one event loop, which alone calls `stream`; `note`
    is called by any thread."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._turn = threading.Lock()
        self._changed: dict[Key, None] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._awake = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: AbstractContextManager[None] | None = None
        self.listeners: set[Listener] = set()
        self._speaking = asyncio.Lock()
        self._turns_told = -1
        self._hurry = asyncio.Event()
        self._ends_noted = 0

    def note(self, what: str, id: str = "") -> None:
        """Something changed: a job or picture of this id, the queue, the models."""
        with self._turn:
            if self._loop is None:
                return
            self._changed[what, id] = None
            ends, self._ends_noted = self._ends_noted, self._queue.ends
            try:
                if not self._awake:
                    self._loop.call_soon_threadsafe(self._begin)
                elif ends != self._ends_noted:
                    self._loop.call_soon_threadsafe(self._hurry.set)
            except RuntimeError:  # the loop has ended, and with it all pages
                self._loop = None
                return
            self._awake = True

    async def stream(self, job: str | None = None) -> AsyncGenerator[bytes, None]:
        """The events of a page from now on, the whole state first; those of one job until it has
        ended, if it is given."""
        listener = Listener(job)
        self._enter(listener)
        try:
            while not listener.ended:
                listener.wake.clear()
                if listener.behind:
                    yield await self._whole(listener)
                elif listener.pending:
                    said, listener.pending = listener.pending, {}
                    yield b"".join(said.values())
                else:
                    try:
                        async with asyncio.timeout(ALIVE_SECONDS):
                            await listener.wake.wait()
                    except TimeoutError:
                        yield ALIVE
            if listener.pending:
                yield b"".join(listener.pending.values())
        finally:
            self._leave(listener)

    def _enter(self, listener: Listener) -> None:
        """One more listens; the first one begins the noting of changes."""
        self.listeners.add(listener)
        if self._watch is None:
            with self._turn:
                self._loop = asyncio.get_running_loop()
            self._watch = self._queue.watching(
                lambda id: self.note(JOB, id) if id else self.note(QUEUE))
            self._watch.__enter__()

    def _leave(self, listener: Listener) -> None:
        """One less listens; the last one ends the noting of changes."""
        self.listeners.discard(listener)
        if self._watch is not None and not self.listeners:
            self._watch.__exit__(None, None, None)
            self._watch = None
            with self._turn:
                self._loop, self._changed = None, {}

    # rounds

    def _begin(self) -> None:
        self._rounds = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Rounds, as long as there are changes."""
        whole = False
        try:
            while changed := self._collected():
                async with self._speaking:
                    known = self._said_at_once(changed)
                    said, ended = known if known is not None else (
                        await asyncio.to_thread(self._said, changed))
                    for each in self.listeners:
                        each.take(said)
                        if self._queue.stopping or each.job in ended:
                            each.end()
                await self._pause()
            whole = True
        except sqlite3.Error as error:
            print(f"events end, as the queue cannot be read: {error}", file=sys.stderr)
        finally:
            if not whole:  # pages connect again, and are told the whole state
                with self._turn:
                    self._awake = False
                for each in self.listeners:
                    each.end()

    async def _pause(self) -> None:
        """Until the next round: for a while, or until a job has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ROUND_SECONDS):  # `wait_for` makes a task each time
                await self._hurry.wait()
        self._hurry.clear()

    def _collected(self) -> dict[Key, None]:
        """What was noted since the last round; without any, the next change begins them anew."""
        with self._turn:
            changed, self._changed = self._changed, {}
            self._awake = bool(changed)
            return changed

    def _said_at_once(self, changed: dict[Key, None]) -> Said | None:
        """What is said of jobs that only came further, which is known without the archive: a
        thread for it would cost a job that is made meanwhile more than the words. None where more
        has changed."""
        queue = self._queue
        if queue.turns != self._turns_told:
            return None
        said = {}
        for key in changed:
            job = queue.running_job(key[1]) if key[0] == JOB else None
            if job is None:
                return None
            said[key] = event("job", job_told(queue, job, {}))
        return said, set()

    def _said(self, changed: dict[Key, None]) -> Said:
        """What is said of changes, whatever they are."""
        queue, archive, said, ended = self._queue, self._queue.archive, {}, set()
        turned = queue.turns != self._turns_told
        self._turns_told = queue.turns
        order = archive.order() if turned or (QUEUE, "") in changed else None
        place = {} if order is None else {id: at for at, id in enumerate(order, 1)}
        for what, id in changed:
            if what == JOB:
                job = queue.known(id)
                if job is None:
                    said[JOB, id] = event("gone", {"id": id})
                    continue
                told = job_told(queue, job, place)
                said[JOB, id] = event("job", told)
                said |= {(PICTURE, str(each["id"])): event("picture", each)
                         for each in told["pictures"]}
                ended |= {id} if job.state in ENDED else set()
            elif what == PICTURE:
                picture = archive.picture(int(id))
                said[PICTURE, id] = (event("removed", {"id": int(id)}) if picture is None else
                                     event("picture", picture_told(picture)))
            elif what == MODELS:
                said[MODELS, ""] = event("models", {})
        if order is not None:
            said[QUEUE, ""] = event("queue", {"order": order, "paused": archive.paused})
        return said, ended

    async def _whole(self, listener: Listener) -> bytes:
        """The whole state, which stands for all that was to be said to a page."""
        async with self._speaking:
            listener.pending, listener.behind = {}, False
            if listener.job is None:
                text, ended = await asyncio.to_thread(self._state), False
            elif (job := self._queue.running_job(listener.job)) is not None:
                text, ended = event("job", job_told(self._queue, job, {})), False
            else:
                text, ended = await asyncio.to_thread(self._state_of, listener.job)
            listener.ended = listener.ended or ended or self._queue.stopping
            return text

    def _state(self) -> bytes:
        """What a page is told first: what runs, what waits next, and what ended last."""
        queue, archive, order = self._queue, self._queue.archive, places(self._queue)
        jobs = archive.latest(WAITING_TOLD, ENDED_TOLD)
        return event("hello", {"jobs": [job_told(queue, job, order) for job in jobs],
                               "order": list(order), "paused": archive.paused,
                               "version": __version__})

    def _state_of(self, id: str) -> tuple[bytes, bool]:
        """One job, and whether it has ended."""
        job = self._queue.known(id)
        if job is None:
            return event("gone", {"id": id}), True
        order = places(self._queue) if job.state == QUEUED else {}
        return event("job", job_told(self._queue, job, order)), job.state in ENDED
