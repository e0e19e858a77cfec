"""Smalti's own API: the models in the folders, and what is known of each."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from starlette.responses import Response

from smalti.server.endpoint import Asking, Endpoint, only
from smalti.server.events import MODELS
from smalti.server.guard import problem
from smalti.server.site import Site

PREVIEW_SIDE = 512
"""Pixels of the picture of a model, at most."""
PREVIEWS_KEPT = 2000
"""On the disk, 30 kB each: of a picture that is another one now the old one stays else for ever."""
PREVIEW_SECONDS = 60
"""For which a browser need not ask again whether it is another one."""


def list_models(site: Site, call: Asking) -> Any:
    """All files in the folders of models, and the model that ships with Smalti."""
    from smalti.server.beside import Listings
    from smalti.server.hashes import SHOWN_DIGITS

    listings, models = Listings(), []
    for each in site.folders().all():
        sha256 = site.hashes.of(each.path)
        models.append({
            **{name: value for name, value in asdict(replace(each, network=None)).items()
               if name not in ("path", "network")},
            "hash": None if sha256 is None else sha256[:SHOWN_DIGITS],
            "preview": listings.picture_of(each.path) is not None})
    return {"models": models, "warnings": site.folders().warnings}


def refresh_models(site: Site, call: Asking) -> Any:
    """Look into all files anew, whether they seem to have changed or not."""
    only(call.body)
    site.folders().forget()
    found = list_models(site, call)
    site.events.note(MODELS)
    return found


def get_model_preview(site: Site, call: Asking) -> Response:
    """The picture that lies beside a model file."""
    import hashlib
    import os

    from smalti.server.beside import Listings

    file = site.folders().named(call.query.get("name"), call.query.get("kind", "model"))
    picture = Listings().picture_of(file.path)
    if picture is None or not picture.is_file():
        return problem(404, "NotFound", f"no picture lies beside {file.name}")
    state = picture.stat()
    digest = hashlib.sha256(b"%s %d %d" % (os.fsencode(picture), state.st_mtime_ns,
                                           state.st_size)).hexdigest()[:32]
    content = site.gallery.thumbnails.of(picture, f"models/{digest}", PREVIEW_SIDE, PREVIEWS_KEPT)
    return Response(content, media_type="image/webp",
                    headers={"cache-control": f"private, max-age={PREVIEW_SECONDS}"})


def get_model_defaults(site: Site, call: Asking) -> Any:
    """What a model makes where nothing else is asked for, and what it was made for."""
    from smalti.server import guide
    from smalti.server.models import MODEL

    name = call.query.get("name")
    file = site.folders().recent()[0] if name is None else site.folders().named(name, MODEL)
    return {"name": file.name, "family": guide.family_title(file), "defaults": file.defaults,
            "multiple": file.multiple, "sizes": guide.sizes(file),
            "about": guide.about(file), "draws": guide.draws(file)}


NAME = {"name": {"type": "string"}}

ENDPOINTS = (
    Endpoint("GET", "/api/models", "All model files", list_models, result="Models"),
    Endpoint("POST", "/api/models/refresh", "Look into all model files anew", refresh_models,
             result="Models"),
    Endpoint("GET", "/api/models/preview", "The picture beside a model file, of at most 512 pixels",
             get_model_preview, query={**NAME, "kind": {"type": "string", "default": "model"}},
             result="image/webp"),
    Endpoint("GET", "/api/models/defaults", "What a model was made for", get_model_defaults,
             query=NAME, result="ModelDefaults"),
)
