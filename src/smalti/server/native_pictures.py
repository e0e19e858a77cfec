"""Smalti's own API: the gallery, and what pictures carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from smalti.errors import InputError
from smalti.server.archive import PictureRecord
from smalti.server.endpoint import (
    LIMIT,
    LISTED,
    LISTED_MAX,
    Asking,
    Endpoint,
    Schema,
    only,
    told_whether,
)
from smalti.server.events import JOB, PICTURE
from smalti.server.guard import problem
from smalti.server.queue import UnknownJobError
from smalti.server.site import Site
from smalti.server.told import picture_told

IDS_MAX = (1 << 63) - 1
"""What SQLite counts to."""
SEARCH_WORDS_MAX = 20
"""Of a search in the gallery: a prompt rarely has more, and each is looked for in every text."""
FOR_EVER = {"cache-control": "private, max-age=31536000, immutable"}
"""Of what never changes under its address."""


def list_pictures(site: Site, call: Asking) -> Any:
    """Pictures, the newest first."""
    from smalti.server.asked import whole

    search, favourite = call.query.get("search", ""), call.query.get("favourite")
    if len(search.split()) > SEARCH_WORDS_MAX:
        raise InputError(f"search has {len(search.split())} words; expected at most "
                         f"{SEARCH_WORDS_MAX}")
    if favourite not in (None, "true", "false"):
        raise InputError(f"favourite is {favourite!r:.80}; expected true or false")
    return {"pictures": [picture_told(each) for each in site.archive.pictures(
        job=call.query.get("job", ""), search=search,
        before=whole("before", call.query.get("before", "0"), 0, IDS_MAX),
        favourite=None if favourite is None else favourite == "true",
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
    content = site.gallery.content(found)
    if content is None:
        return _gone(found)
    name = found.path.rpartition("/")[2]
    return Response(content, media_type="image/png", headers={
        **FOR_EVER, "content-disposition": f'inline; filename="{name}"'})


def get_thumbnail(site: Site, call: Asking) -> Response:
    """A picture in small."""
    found = _picture(site, call)
    content = site.gallery.thumbnail(found)
    if content is None:
        return _gone(found)
    return Response(content, media_type="image/webp", headers=FOR_EVER)


def _gone(picture: PictureRecord) -> Response:
    return problem(404, "NotFound", f"the file of the picture {picture.id} is gone")


def mark_picture(site: Site, call: Asking) -> Any:
    """Say of a picture whether it is a favourite."""
    only(call.body, "favourite")
    wanted = told_whether("favourite", call.body.get("favourite", True))
    found = _picture(site, call)
    site.archive.mark(found.id, wanted)
    _changed(site, found)
    return picture_told(_picture(site, call))


def delete_picture(site: Site, call: Asking) -> Any:
    """Delete a picture: its file, and what is known of it."""
    found = _picture(site, call)
    site.gallery.delete(found)
    site.archive.remove(found.id)
    _changed(site, found)
    return {"id": found.id}


def _changed(site: Site, picture: PictureRecord) -> None:
    """Tell pages of a picture, and of its job, which has it."""
    site.events.note(JOB, picture.job)
    site.events.note(PICTURE, str(picture.id))


def read_metadata(site: Site, call: Asking) -> Any:
    """The settings that a picture carries, as a request that makes it again."""
    from smalti.diffusion.metadata import carried, parse
    from smalti.diffusion.option_text import read
    from smalti.server.asked import as_json, read_picture

    only(call.body, "picture")
    with read_picture(call.body.get("picture"), "picture") as picture:
        text = carried(picture)
    if not text:
        raise InputError("the picture carries no settings; expected one with a `parameters` text, "
                         "as Smalti, A1111 and others write it")
    found = read(parse(text))
    return {"text": text, "options": {name: as_json(value)
                                      for name, value in found.options.items()},
            "model": found.model, "version": found.version,
            "precision": found.precision, "missing": found.missing,
            "files": found.files, "unknown": found.unknown,
            "loras": [{"name": each.name, "weight": each.weight, "text_weight": each.text_weight}
                      for each in found.adapters]}


def _object(required: bool = False, **properties: Schema) -> Callable[[], Schema]:
    """The schema of a body that has these and no others."""
    return lambda: {"type": "object", "additionalProperties": False, "properties": properties,
                    "required": list(properties) if required else []}


PAGE: dict[str, Schema] = {
    "job": {"type": "string"}, "search": {"type": "string"}, "limit": LIMIT,
    "before": {"type": "integer", "minimum": 0, "maximum": IDS_MAX},
    "favourite": {"type": "boolean"}}

ENDPOINTS = (
    Endpoint("GET", "/api/pictures", "Pictures, the newest first", list_pictures, query=PAGE,
             result="Pictures"),
    Endpoint("GET", "/api/pictures/{id}", "One picture, and how it was made", get_picture,
             result="Picture"),
    Endpoint("DELETE", "/api/pictures/{id}", "Delete a picture and its file", delete_picture,
             result="Deleted"),
    Endpoint("GET", "/api/pictures/{id}/file", "The file of a picture", get_picture_file,
             result="image/png"),
    Endpoint("GET", "/api/pictures/{id}/thumbnail", "A picture of at most 384 pixels",
             get_thumbnail, result="image/webp"),
    Endpoint("POST", "/api/pictures/{id}/favourite", "Whether a picture is a favourite",
             mark_picture, body=_object(favourite={"type": "boolean", "default": True}),
             result="Picture"),
    Endpoint("POST", "/api/metadata", "The settings that a picture carries", read_metadata,
             body=_object(True, picture={"type": "string", "contentEncoding": "base64"}),
             result="Metadata"),
)
