"""Waiting for a job while its client waits: a client that goes away cancels what it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.requests import Request

from smalti.server.archive import ENDED, JobRecord
from smalti.server.queue import QueueStateError
from smalti.server.site import Site

GONE_SECONDS = 1.0
"""Between looks whether a client that waits for a picture is still there."""


async def changes(site: Site, job: JobRecord, steps: bool = False,
                  ) -> AsyncGenerator[JobRecord | None]:
    """The job whenever its state changed, with `steps` also when it came further, the last time
    when it has ended; None where nothing changed for `GONE_SECONDS`."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell(id: str) -> None:
        if id in (job.id, ""):
            loop.call_soon_threadsafe(changed.set)

    with site.queue.watching(tell, steps):
        while True:
            changed.clear()
            known = await asyncio.to_thread(site.queue.known, job.id)
            job = known or job
            yield job
            if job.state in ENDED or site.queue.stopping:
                return
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), GONE_SECONDS)
                except TimeoutError:
                    yield None


async def waited(site: Site, job: JobRecord, request: Request) -> JobRecord:
    """The job when it has ended; it is cancelled where its client goes away."""
    async with aclosing(changes(site, job)) as found:
        async for each in found:
            job = job if each is None else each
            if job.state not in ENDED and await request.is_disconnected():
                return await asyncio.to_thread(cancelled, site, job)
    return job


def cancelled(site: Site, job: JobRecord) -> JobRecord:
    """The job, which is not wanted any more; it may have ended just now."""
    with suppress(QueueStateError):
        site.queue.cancel(job.id)
    return site.queue.known(job.id) or job
