"""The description of the native API as OpenAPI 3.1, made of the records of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from smalti.server.archive import STATES
from smalti.server.endpoint import Endpoint, Schema

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
TIME: Schema = {"type": ["number", "null"], "description": "Seconds since 1970."}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(name: str) -> Schema:
    return {"type": "array", "items": _schema(name)}


def _schema(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: dict[str, Schema] = {
    "Schema": {"type": "object"},
    "Problem": _object(error=TEXT, message=TEXT, detail=TEXT, errors=TEXT, body=TEXT),
    "Progress": _object(step=WHOLE, steps=WHOLE, doing=TEXT,
                        seconds_left={"type": ["number", "null"]},
                        preview={"type": ["integer", "null"], "description":
                                 "Grows with each new preview."}),
    "Picture": _object(id=WHOLE, job=TEXT, created=NUMBER, width=WHOLE, height=WHOLE, seed=WHOLE,
                       model=TEXT, prompt=TEXT, file=TEXT, favourite={"type": "boolean"},
                       text={**TEXT, "description": "All settings, as the file carries them."}),
    "Deleted": _object(id=WHOLE),
    "Pictures": _object(pictures=_list("Picture")),
    "Job": _object(
        id=TEXT, state={**TEXT, "enum": list(STATES)}, device={"type": ["string", "null"]},
        place={"type": ["integer", "null"], "description": "In the queue, 1 the next one."},
        created=NUMBER, started=TIME, ended=TIME,
        progress={"anyOf": [_schema("Progress"), {"type": "null"}]},
        error={"anyOf": [_object(name=TEXT, message=TEXT), {"type": "null"}]},
        warnings={"type": "array", "items": TEXT},
        timings={"type": "object", "additionalProperties": NUMBER,
                 "description": "Seconds by stage."},
        request={"type": "object", "description": "What was asked for, without its pictures."},
        pictures=_list("Picture")),
    "Jobs": _object(paused={"type": "boolean"}, jobs=_list("Job")),
    "Kernel": _object(
        name=TEXT, form=TEXT, number=WHOLE, runs=WHOLE, seconds={"type": ["number", "null"]},
        expected={"type": ["number", "null"]}, share=NUMBER, limit=TEXT),
    "Stage": _object(name=TEXT, seconds=NUMBER, share=NUMBER,
                     expected={"type": ["number", "null"]}, kernels=_list("Kernel")),
    "Explanation": _object(programs={"type": "array", "items": _object(
        part=TEXT, stage=TEXT, text=TEXT)}),
    "Times": _object(stages=_list("Stage")),
    "Paused": _object(paused={"type": "boolean"}),
    "Model": _object(name=TEXT, bytes=WHOLE, kind=TEXT, family=TEXT, title=TEXT,
                     usable={"type": "boolean"}, problem=TEXT, defaults={"type": "object"},
                     multiple={**WHOLE, "description": "Of which width and height are multiples."},
                     guided={"type": "boolean", "description":
                             "Whether it takes distilled_guidance."},
                     purpose={**TEXT, "description":
                              "text, or how it reads a picture: reference (or none), edit, "
                              "control, inpaint, fill."},
                     pictures={**WHOLE, "description":
                               "How many pictures it takes at most, as image."},
                     untaken={"type": "array", "items": TEXT, "description":
                              "Options of a picture that mean nothing to it."},
                     controls={"type": "array", "items": TEXT, "description":
                               "The names of the ControlNets that fit it."},
                     holds={"type": "array", "items": TEXT, "description":
                            "Parts of models that are in the file."},
                     vae={**TEXT, "description": "The file that brings what this one lacks."},
                     text_encoders={"type": "array", "items": TEXT, "description":
                                    "Files that bring what this one lacks."},
                     lacks={"type": "array", "items": TEXT, "description":
                            "Parts that no file brings."},
                     words={"type": "array", "items": TEXT, "description":
                            "That an adapter was trained with."},
                     preview={"type": "boolean", "description": "Whether there is a picture."},
                     hash={"type": ["string", "null"], "description":
                           "10 digits of the SHA-256, null until it is known."}),
    "ModelDefaults": _object(
        name=TEXT, family=TEXT, defaults={"type": "object"}, about=TEXT, multiple=WHOLE,
        sizes={"type": "array", "items": {"type": "array", "items": WHOLE}},
        draws={"type": ["array", "null"], "items": TEXT}),
    "Models": _object(models=_list("Model"), warnings={"type": "array", "items": TEXT}),
    "Device": _object(id=TEXT, name=TEXT, kind=TEXT, memory_bytes=WHOLE, cores=WHOLE,
                      precisions={"type": "array", "items": TEXT}),
    "Loading": {**_object(precision=TEXT, threads={"type": ["integer", "null"]},
                          memory={"type": ["string", "integer", "null"]},
                          gpu_memory={"type": ["string", "integer", "null"]}),
                "description": "What models are loaded with; null is what there is."},
    "Devices": _object(working={"type": "array", "items": TEXT}, loading=_schema("Loading"),
                       devices=_list("Device")),
    "Metadata": _object(text=TEXT, options={"type": "object"}, model={"type": ["string", "null"]},
                        version=TEXT, precision=TEXT, missing={
                            "type": "object", "additionalProperties": TEXT, "description":
                            "What made it besides, by the name of the option that gives it."},
                        files={"type": "object", "additionalProperties": TEXT, "description":
                               "The names of such files, by the same."},
                        unknown={"type": "object", "additionalProperties": TEXT},
                        loras={"type": "array", "items": {"type": "object"}}),
}
PROBLEMS = {
    "400": "the content is no JSON", "401": "a token is needed",
    "403": "the request comes from where none may come from", "404": "there is no such thing",
    "409": "it is in another state", "413": "the content is too large",
    "415": "the content is not application/json", "422": "what is asked for cannot be",
    "429": "too many jobs wait", "507": "the disk refuses",
}


def document(endpoints: Sequence[Endpoint], version: str) -> Schema:
    """The OpenAPI document of some endpoints."""
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    paths["/api/jobs/{id}/events"] = {"get": _events(
        "job_events", "The progress of a job as server-sent events, each with the job as JSON, "
        "until it has ended", [_path_parameter("id")])}
    paths["/api/events"] = {"get": _events(
        "events", "All that changes as server-sent events: hello (jobs, paused, version) with the "
        "whole state, then job, gone, queue, picture, removed and models", [])}
    return {"openapi": "3.1.0",
            "info": {"title": "Smalti", "version": version,
                     "description": "Pictures are made by jobs, which wait in one queue."},
            "paths": paths,
            "components": {"schemas": SCHEMAS, "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"}}},
            "security": [{}, {"bearer": []}, {"basic": []}]}


def _events(name: str, summary: str, parameters: list[Schema]) -> Schema:
    """A stream of events."""
    return {"operationId": name, "summary": summary, "parameters": parameters, "responses": {
        "200": {"description": summary, "content": {"text/event-stream": {"schema": TEXT}}},
        **_problems()}}


def _operation(endpoint: Endpoint) -> Schema:
    """What a method of a path takes and gives."""
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    kind = endpoint.result if "/" in endpoint.result else "application/json"
    schema = {"type": "string", "contentMediaType": kind} if "/" in endpoint.result else (
        _schema(endpoint.result))
    found: Schema = {
        "operationId": endpoint.answer.__name__, "summary": endpoint.summary,
        "parameters": [*map(_path_parameter, names), *(
            {"name": name, "in": "query", "schema": each} for name, each in
            endpoint.query.items())],
        "responses": {str(endpoint.status): {
            "description": endpoint.summary, "content": {kind: {"schema": schema}}},
            **_problems()}}
    if endpoint.body is not None:
        body = {name: value for name, value in endpoint.body().items() if name != "$schema"}
        found["requestBody"] = {"required": True,
                                "content": {"application/json": {"schema": body}}}
    return found


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": TEXT}


def _problems() -> Schema:
    content = {"application/json": {"schema": _schema("Problem")}}
    return {status: {"description": text, "content": content}
            for status, text in PROBLEMS.items()}
