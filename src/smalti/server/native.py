"""Smalti's own API, `/api/*`: jobs, models, devices, options, pictures, and its description."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from smalti import __version__
from smalti.errors import InputError
from smalti.server import native_models, native_pictures
from smalti.server.archive import DONE, QUEUED, STATES, JobRecord
from smalti.server.endpoint import (
    LIMIT,
    LISTED,
    LISTED_MAX,
    RETRY_SECONDS,
    WHOLE,
    Asking,
    Endpoint,
    EventStream,
    Schema,
    only,
    told_whether,
    unknown_query,
)
from smalti.server.events import LISTENERS_MAX
from smalti.server.guard import problem
from smalti.server.queue import QUEUE_MAX, QueueStateError, UnknownJobError
from smalti.server.site import Site
from smalti.server.told import job_told, places

LOADING = {"precision": "auto", "threads": None, "memory": None, "gpu_memory": None}
"""What models are loaded with where `smalti serve` is told nothing else."""


def one(site: Site, job: JobRecord) -> dict[str, Any]:
    """A job as JSON, alone."""
    return job_told(site.queue, job, places(site.queue) if job.state == QUEUED else {})


def create_job(site: Site, call: Asking) -> Any:
    """A picture is asked for: checked, and put in the queue."""
    from smalti.diffusion.placement import placed
    from smalti.server.upscaling import opened_any

    asked = opened_any(call.body, site.folders())
    device = asked.device
    if device is not None:
        known = [worker.place for worker in site.workers]
        if device not in known:  # parts may be named in another order
            with suppress(InputError):
                device = str(placed(device))
        if device not in known:
            raise InputError(f"device is {asked.device!r:.80}; this server works on "
                             f"{' and '.join(known)}")
    return one(site, site.queue.submit(call.body, device))


def list_jobs(site: Site, call: Asking) -> Any:
    """Jobs, those that run and wait first."""
    from smalti.diffusion.kinds import check_name
    from smalti.server.asked import whole

    state = call.query.get("state")
    if state is not None:
        check_name("state", state, STATES)
    limit = whole("limit", call.query.get("limit", str(LISTED)), 1, LISTED_MAX)
    order = places(site.queue)
    return {"paused": site.archive.paused,
            "jobs": [job_told(site.queue, job, order)
                     for job in site.archive.jobs(state, limit)]}


def get_job(site: Site, call: Asking) -> Any:
    """One job."""
    return one(site, site.queue.job(call.path["id"]))


def get_running_job(site: Site, call: Asking) -> Any:
    """One job, if it runs."""
    job = site.queue.running_job(call.path["id"])
    return None if job is None else job_told(site.queue, job, {})


def get_preview(site: Site, call: Asking) -> Response:
    """What the picture of a job that runs will be, by its last step."""
    site.previews.look()
    shown = site.previews.shown(call.path["id"])
    if shown is None:
        site.queue.job(call.path["id"])
        return problem(404, "NotFound", "there is no preview of this job: it does not run, or its "
                                        "first steps are not done")
    return Response(shown.jpeg, media_type="image/jpeg")


def get_times(site: Site, call: Asking) -> Any:
    """Where the time of a job that is done went."""
    return site.times.told(_done(site, call))


def explain_job(site: Site, call: Asking) -> Any:
    """What the programs consist of that made the pictures of a job that is done."""
    whole = call.query.get("all", "false")
    if whole not in ("true", "false"):
        raise InputError(f"all is {whole!r:.80}; expected true or false")
    return site.times.explained(_done(site, call), whole == "true")


def _done(site: Site, call: Asking) -> JobRecord:
    """A job that is done."""
    job = site.queue.job(call.path["id"])
    if job.state != DONE:
        raise QueueStateError(f"the job {job.id} is {job.state}; times are those of one that is "
                              f"done")
    return job


def cancel_job(site: Site, call: Asking) -> Any:
    """End a job that waits, or that runs."""
    return one(site, site.queue.cancel(call.path["id"]))


def retry_job(site: Site, call: Asking) -> Any:
    """Ask for the same again."""
    only(call.body)
    return one(site, site.queue.retry(call.path["id"]))


def move_job(site: Site, call: Asking) -> Any:
    """Put a job at another place in the queue."""
    from smalti.diffusion.kinds import WholeKind

    only(call.body, "place")
    place = WholeKind(1, QUEUE_MAX).checked("place", call.body.get("place"))
    site.queue.job(call.path["id"])
    return one(site, site.queue.move(call.path["id"], place))


def pause_jobs(site: Site, call: Asking) -> Any:
    """Begin no more jobs, or go on."""
    only(call.body, "paused")
    paused = told_whether("paused", call.body.get("paused", True))
    site.queue.pause(paused)
    return {"paused": paused}


def list_devices(site: Site, call: Asking) -> Any:
    """What pictures are made on, and all that is there."""
    from smalti.runtime.choice import precisions
    from smalti.runtime.devices import devices

    return {"working": [worker.place for worker in site.workers],
            "loading": {name: site.loading.get(name, usual) for name, usual in LOADING.items()},
            "devices": [{"id": each.id, "name": each.name, "kind": each.kind,
                         "memory_bytes": each.memory_bytes, "cores": each.cores,
                         "precisions": precisions(each.id)}
                        for each in devices()]}


def request_body() -> Schema:
    """The schema of a request."""
    from smalti.server.asked import request_schema

    return request_schema()


def job_body() -> Schema:
    """The schema of what a job may ask for: a picture, or that one is enlarged."""
    from smalti.server.upscaling import UPSCALING

    return {"anyOf": [{name: value for name, value in each.items() if name != "$schema"}
                      for each in (request_body(), UPSCALING)]}


def get_options(site: Site, call: Asking) -> Any:
    """Everything that decides a picture, as JSON Schema: types, ranges, defaults, what it is for.
    """
    return request_body()


def describe_api(site: Site, call: Asking) -> Any:
    """This API as an OpenAPI document, made of the records that it is made of."""
    from smalti.server.openapi import document

    return document(ENDPOINTS, __version__)


def ping(site: Site, call: Asking) -> Any:
    """Tell that the server is there."""
    return {}


def _place_body() -> Schema:
    return {"type": "object", "required": ["place"], "additionalProperties": False,
            "properties": {"place": {**WHOLE, "maximum": QUEUE_MAX}}}


def _pause_body() -> Schema:
    return {"type": "object", "additionalProperties": False,
            "properties": {"paused": {"type": "boolean", "default": True}}}


STATE: Schema = {"type": "string", "enum": list(STATES)}
ENDPOINTS = (
    Endpoint("POST", "/api/jobs", "Ask for a picture", create_job, body=job_body, status=201,
             result="Job"),
    Endpoint("GET", "/api/jobs", "Jobs, those that run and wait first", list_jobs,
             query={"state": STATE, "limit": LIMIT}, result="Jobs"),
    Endpoint("POST", "/api/jobs/pause", "Begin no more jobs, or go on", pause_jobs,
             body=_pause_body, result="Paused"),
    Endpoint("GET", "/api/jobs/{id}", "One job", get_job, result="Job",
             at_once=get_running_job),
    Endpoint("GET", "/api/jobs/{id}/preview", "What the picture of a job that runs will be",
             get_preview, query={"n": {"type": "integer", "minimum": 0}}, result="image/jpeg"),
    Endpoint("GET", "/api/jobs/{id}/times", "Where the time of a job that is done went", get_times,
             result="Times"),
    Endpoint("GET", "/api/jobs/{id}/explain", "What its programs consist of, kernel by kernel",
             explain_job, query={"all": {"type": "boolean", "default": False}},
             result="Explanation"),
    Endpoint("DELETE", "/api/jobs/{id}", "Cancel a job", cancel_job, result="Job"),
    Endpoint("POST", "/api/jobs/{id}/move", "Put a job at another place in the queue", move_job,
             body=_place_body, result="Job"),
    Endpoint("POST", "/api/jobs/{id}/retry", "Ask for the same again", retry_job, status=201,
             result="Job"),
    *native_pictures.ENDPOINTS,
    *native_models.ENDPOINTS,
    Endpoint("GET", "/api/devices", "What pictures are made on", list_devices, result="Devices"),
    Endpoint("GET", "/api/options", "Everything that decides a picture", get_options,
             result="Schema"),
    Endpoint("GET", "/api/openapi.json", "This document", describe_api, result="Schema"),
    Endpoint("GET", "/internal/ping", "Whether the server is there", ping, result="Schema",
             at_once=ping),
)


def streams(site: Site) -> list[Route]:
    """Server-sent events: of everything, for pages, and of one job until it has ended."""

    def told(request: Request, job: str | None = None) -> Response:
        if (refused := unknown_query(request)) is not None:
            return refused
        if site.events.crowded:
            return problem(503, "Busy", f"{LISTENERS_MAX} streams of events are open already; "
                                        f"close some", {"retry-after": str(RETRY_SECONDS)})
        return EventStream(site.events.stream(job))

    async def all_events(request: Request) -> Response:
        return told(request)

    async def job_events(request: Request) -> Response:
        try:
            job = await asyncio.to_thread(site.queue.job, request.path_params["id"])
        except UnknownJobError as error:
            return problem(404, "NotFound", str(error))
        return told(request, job.id)

    return [Route("/api/events", all_events, methods=["GET"]),
            Route("/api/jobs/{id}/events", job_events, methods=["GET"])]
