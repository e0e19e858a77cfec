"""Jobs and pictures as JSON: what answers and events say of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from smalti import errors
from smalti.errors import InputError, OutputError, SmaltiError
from smalti.server.archive import DONE, JobRecord, PictureRecord, without_pictures
from smalti.server.queue import JobQueue


def job_told(queue: JobQueue, job: JobRecord, order: dict[str, int]) -> dict[str, Any]:
    """A job; `order` has the places of those that wait."""
    progress = queue.progress(job.id)
    made = queue.archive.pictures(job=job.id)[::-1] if job.state == DONE else []
    return {
        "id": job.id, "state": job.state, "place": order.get(job.id), "device": job.device,
        "created": job.created, "started": job.started, "ended": job.ended,
        "progress": None if progress is None else asdict(progress),
        "error": None if job.error is None else {"name": job.error, "message": job.message},
        "warnings": job.warnings, "timings": job.timings,
        "request": without_pictures(job.request), "pictures": [*map(picture_told, made)],
    }


def is_refused(job: JobRecord) -> bool:
    """Whether a job failed because of what was asked for, not because of the server."""
    kind = getattr(errors, job.error or "", SmaltiError)
    return issubclass(kind, InputError) and not issubclass(kind, OutputError)


def picture_told(picture: PictureRecord) -> dict[str, Any]:
    """A picture, and how it was made."""
    found = asdict(picture)
    del found["path"]
    return {**found, "file": f"/api/pictures/{picture.id}/file"}


def places(queue: JobQueue) -> dict[str, int]:
    """The places of the jobs that wait, by their ids; 1 is the next one."""
    return {id: place for place, id in enumerate(queue.archive.order(), 1)}
