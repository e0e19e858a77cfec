"""Smalti's own API, `/api/*`: jobs, pictures, models, devices, options, and its description."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from smalti import __version__
from smalti.errors import InputError
from smalti.server.archive import QUEUED, STATES, JobRecord, PictureRecord
from smalti.server.endpoint import Asking, Endpoint, EventStream, Schema
from smalti.server.guard import problem
from smalti.server.queue import QUEUE_MAX, UnknownJobError
from smalti.server.site import Site
from smalti.server.told import job_told, picture_told, places

LISTED = 100
LISTED_MAX = 1000
"""Jobs or pictures of one answer, where nothing else is asked for, and at most."""
IDS_MAX = (1 << 63) - 1
"""What SQLite counts to."""
SEARCH_WORDS_MAX = 20
"""Of a search in the gallery: a prompt rarely has more, and each is looked for in every text."""
WHOLE: Schema = {"type": "integer", "minimum": 1}


def one(site: Site, job: JobRecord) -> dict[str, Any]:
    """A job as JSON, alone."""
    return job_told(site.queue, job, places(site.queue) if job.state == QUEUED else {})


def create_job(site: Site, call: Asking) -> Any:
    """A picture is asked for: checked, and put in the queue."""
    from smalti.runtime.choice import chosen
    from smalti.server.asked import opened

    asked = opened(call.body, site.folders())
    if asked.device is not None:
        known = [chosen(worker.device) for worker in site.workers]
        if asked.device not in known:
            raise InputError(f"device is {asked.device!r:.80}; this server works on "
                             f"{', '.join(known)}")
    return one(site, site.queue.submit(call.body, asked.device))


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


def cancel_job(site: Site, call: Asking) -> Any:
    """End a job that waits, or that runs."""
    return one(site, site.queue.cancel(call.path["id"]))


def retry_job(site: Site, call: Asking) -> Any:
    """Ask for the same again."""
    _only(call.body)
    return one(site, site.queue.retry(call.path["id"]))


def move_job(site: Site, call: Asking) -> Any:
    """Put a job at another place in the queue."""
    from smalti.diffusion.kinds import WholeKind

    _only(call.body, "place")
    place = WholeKind(1, QUEUE_MAX).checked("place", call.body.get("place"))
    site.queue.job(call.path["id"])
    return one(site, site.queue.move(call.path["id"], place))


def pause_jobs(site: Site, call: Asking) -> Any:
    """Begin no more jobs, or go on."""
    _only(call.body, "paused")
    paused = call.body.get("paused", True)
    if not isinstance(paused, bool):
        raise InputError(f"paused is {paused!r:.80}; expected true or false")
    site.queue.pause(paused)
    return {"paused": paused}


def _only(body: dict[str, Any], *known: str) -> None:
    """Raise InputError where a body says something else."""
    from smalti.diffusion.keywords import check_known

    check_known(body, known)


def list_pictures(site: Site, call: Asking) -> Any:
    """Pictures, the newest first."""
    from smalti.server.asked import whole

    search = call.query.get("search", "")
    if len(search.split()) > SEARCH_WORDS_MAX:
        raise InputError(f"search has {len(search.split())} words; expected at most "
                         f"{SEARCH_WORDS_MAX}")
    return {"pictures": [picture_told(each) for each in site.archive.pictures(
        job=call.query.get("job", ""), search=search,
        before=whole("before", call.query.get("before", "0"), 0, IDS_MAX),
        limit=whole("limit", call.query.get("limit", str(LISTED)), 1, LISTED_MAX))]}


def _picture(site: Site, call: Asking) -> PictureRecord:
    from smalti.server.asked import whole

    found = site.archive.picture(whole("the id of a picture", call.path["id"], 1, IDS_MAX))
    if found is None:
        raise UnknownJobError(f"there is no picture {call.path['id']:.40}")
    return found


def get_picture(site: Site, call: Asking) -> Any:
    """One picture, and how it was made."""
    return picture_told(_picture(site, call))


def get_picture_file(site: Site, call: Asking) -> Response:
    """The file of a picture, as it lies in the folder of results."""
    found = _picture(site, call)
    path = site.gallery.file(found)
    if path is None:
        return problem(404, "NotFound", f"the file of the picture {found.id} is gone")
    return FileResponse(path, media_type="image/png", filename=path.name,
                        content_disposition_type="inline",
                        headers={"cache-control": "private, max-age=31536000, immutable"})


def list_models(site: Site, call: Asking) -> Any:
    """All files in the folders of models, and the model that ships with Smalti."""
    return {"models": [{name: value for name, value in asdict(each).items() if name != "path"}
                       for each in site.folders().all()]}


def list_devices(site: Site, call: Asking) -> Any:
    """What pictures are made on, and all that is there."""
    from smalti.runtime.choice import chosen
    from smalti.runtime.devices import devices

    return {"working": [chosen(worker.device) for worker in site.workers],
            "devices": [{"id": each.id, "name": each.name, "kind": each.kind,
                         "memory_bytes": each.memory_bytes, "cores": each.cores}
                        for each in devices()]}


def request_body() -> Schema:
    """The schema of a request."""
    from smalti.server.asked import request_schema

    return request_schema()


def get_options(site: Site, call: Asking) -> Any:
    """Everything that decides a picture, as JSON Schema: types, ranges, defaults, what it is for.
    """
    return request_body()


def read_metadata(site: Site, call: Asking) -> Any:
    """The settings that a picture carries, as a request that makes it again."""
    from smalti.diffusion.metadata import carried, parse
    from smalti.diffusion.option_text import read
    from smalti.server.asked import as_json, read_picture

    _only(call.body, "picture")
    with read_picture(call.body.get("picture"), "picture") as picture:
        text = carried(picture)
    if not text:
        raise InputError("the picture carries no settings; expected one with a `parameters` text, "
                         "as Smalti, A1111 and others write it")
    found = read(parse(text))
    return {"text": text, "options": {name: as_json(value)
                                      for name, value in found.options.items()},
            "model": found.model, "version": found.version, "missing": found.missing,
            "unknown": found.unknown,
            "loras": [{"name": each.name, "weight": each.weight, "text_weight": each.text_weight}
                      for each in found.adapters]}


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


def _picture_body() -> Schema:
    return {"type": "object", "required": ["picture"], "additionalProperties": False,
            "properties": {"picture": {"type": "string", "contentEncoding": "base64"}}}


LIMIT: Schema = {**WHOLE, "maximum": LISTED_MAX, "default": LISTED}
STATE: Schema = {"type": "string", "enum": list(STATES)}
PAGE: dict[str, Schema] = {
    "job": {"type": "string"}, "search": {"type": "string"}, "limit": LIMIT,
    "before": {"type": "integer", "minimum": 0, "maximum": IDS_MAX}}

ENDPOINTS = (
    Endpoint("POST", "/api/jobs", "Ask for a picture", create_job, body=request_body, status=201,
             result="Job"),
    Endpoint("GET", "/api/jobs", "Jobs, those that run and wait first", list_jobs,
             query={"state": STATE, "limit": LIMIT}, result="Jobs"),
    Endpoint("POST", "/api/jobs/pause", "Begin no more jobs, or go on", pause_jobs,
             body=_pause_body, result="Paused"),
    Endpoint("GET", "/api/jobs/{id}", "One job", get_job, result="Job"),
    Endpoint("DELETE", "/api/jobs/{id}", "Cancel a job", cancel_job, result="Job"),
    Endpoint("POST", "/api/jobs/{id}/move", "Put a job at another place in the queue", move_job,
             body=_place_body, result="Job"),
    Endpoint("POST", "/api/jobs/{id}/retry", "Ask for the same again", retry_job, status=201,
             result="Job"),
    Endpoint("GET", "/api/pictures", "Pictures, the newest first", list_pictures, query=PAGE,
             result="Pictures"),
    Endpoint("GET", "/api/pictures/{id}", "One picture, and how it was made", get_picture,
             result="Picture"),
    Endpoint("GET", "/api/pictures/{id}/file", "The file of a picture", get_picture_file,
             result="image/png"),
    Endpoint("GET", "/api/models", "All model files", list_models, result="Models"),
    Endpoint("GET", "/api/devices", "What pictures are made on", list_devices, result="Devices"),
    Endpoint("GET", "/api/options", "Everything that decides a picture", get_options,
             result="Schema"),
    Endpoint("POST", "/api/metadata", "The settings that a picture carries", read_metadata,
             body=_picture_body, result="Metadata"),
    Endpoint("GET", "/api/openapi.json", "This document", describe_api, result="Schema"),
    Endpoint("GET", "/internal/ping", "Whether the server is there", ping, result="Schema",
             quick=True),
)


def streams(site: Site) -> list[Route]:
    """Server-sent events: of everything, for pages, and of one job until it has ended."""

    async def all_events(request: Request) -> Response:
        return EventStream(site.events.stream())

    async def job_events(request: Request) -> Response:
        try:
            job = await asyncio.to_thread(site.queue.job, request.path_params["id"])
        except UnknownJobError as error:
            return problem(404, "NotFound", str(error))
        return EventStream(site.events.stream(job.id))

    return [Route("/api/events", all_events, methods=["GET"]),
            Route("/api/jobs/{id}/events", job_events, methods=["GET"])]
