"""Waiting for a job while its client waits: a client that goes away cancels what it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.requests import Request

from smalti.server.archive import ENDED, JobRecord
from smalti.server.queue import QueueStateError, UnknownJobError
from smalti.server.site import Site

SILENT_SECONDS = 1.0
"""After which it is told that nothing changed."""


async def changes(site: Site, job: JobRecord, steps: bool = False,
                  ) -> AsyncGenerator[JobRecord | None]:
    """The job whenever its state changed, with `steps` also when it came further, the last time
    when it has ended; None where nothing changed for `SILENT_SECONDS`."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell(id: str) -> None:
        if id in (job.id, ""):
            loop.call_soon_threadsafe(changed.set)

    with site.queue.watching(tell, steps):
        while True:
            changed.clear()
            job = site.queue.at_hand(job.id) or (  # else it is read, which a thread waits for
                await asyncio.to_thread(site.queue.known, job.id)) or job
            yield job
            if job.state in ENDED or site.queue.stopping:
                return
            while not changed.is_set():
                try:
                    async with asyncio.timeout(SILENT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield None


async def waited(site: Site, job: JobRecord, request: Request) -> JobRecord:
    """The job when it has ended; it is cancelled as soon as its client goes away."""
    ended, gone = asyncio.create_task(_ended(site, job)), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        return await asyncio.to_thread(cancelled, site, job)
    finally:
        for each in (ended, gone):
            each.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)


async def _ended(site: Site, job: JobRecord) -> JobRecord:
    """The job when it has ended, or the server stops."""
    async with aclosing(changes(site, job)) as found:
        async for each in found:
            job = job if each is None else each
    return job


async def _gone(request: Request) -> None:
    """Wait until the client has gone; all that it sends has come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def abandoned(site: Site, job: JobRecord) -> None:
    """Cancel what is not wanted any more, where it has not ended, without waiting for that: who
    calls this may be cancelled itself. Called in the event loop."""
    if not site.queue.stopping:
        asyncio.get_running_loop().run_in_executor(None, cancelled, site, job)


def cancelled(site: Site, job: JobRecord) -> JobRecord:
    """The job, which is not wanted any more; it may have ended just now."""
    with suppress(QueueStateError, UnknownJobError):
        site.queue.cancel(job.id)
    return site.queue.known(job.id) or job
