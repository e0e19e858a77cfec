"""The routes of OpenAI's API, with streams of pictures that are being made."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from smalti.errors import InputError
from smalti.server.archive import CANCELLED, DONE, JobRecord, PictureRecord
from smalti.server.endpoint import EventStream, answered, read_content, read_json
from smalti.server.gallery import encoded, is_transparent
from smalti.server.guard import problem
from smalti.server.openai.problems import NO_RETRY, RefusedError, refusal, told
from smalti.server.site import Site
from smalti.server.told import is_refused
from smalti.server.waiting import abandoned, changes, waited

if TYPE_CHECKING:
    from smalti.server.openai.request import AskedPictures

FILE = re.compile(r"(\d{1,18})\.(png|webp|jpeg)", re.ASCII)
"""The name of a picture in an address: its id, and the format that it is sent in."""
COMPRESSION = 90
"""The quality of webp and jpeg, in percent, where none is asked for."""
OPAQUE = "opaque"
"""The background of pictures that nothing shows through."""
USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0,
         "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
         "output_tokens_details": {"image_tokens": 0, "text_tokens": 0}}
"""Nothing is paid for here, so nothing is counted; clients want the numbers."""


def routes(site: Site) -> list[Route]:
    """The routes of this API."""

    async def generations(request: Request) -> Response:
        return await _made(site, request, edits=False)

    async def edits(request: Request) -> Response:
        return await _made(site, request, edits=True)

    async def answer(request: Request, answered: Callable[..., Response], *given: Any) -> Response:
        names = sorted(request.query_params)
        if names:
            return refusal(400, f"expected nothing behind the ?, not {', '.join(names)!r:.80}",
                           names[0])
        return await asyncio.to_thread(answered, *given)

    async def models(request: Request) -> Response:
        return await answer(request, _models, site)

    async def model(request: Request) -> Response:
        return await answer(request, _model, site, request.path_params["id"])

    async def file(request: Request) -> Response:
        return await asyncio.to_thread(_file, site, request.path_params["name"],
                                       dict(request.query_params))

    return [Route("/v1/images/generations", generations, methods=["POST"]),
            Route("/v1/images/edits", edits, methods=["POST"]),
            Route("/v1/images/files/{name}", file, methods=["GET"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{id:path}", model, methods=["GET"])]


def _models(site: Site) -> Response:
    """All models that make pictures."""
    from smalti.server.models import MODEL

    return JSONResponse({"object": "list", "data": [
        _shown(each) for each in site.folders().of_kind(MODEL) if each.usable]})


def _model(site: Site, id: str) -> Response:
    """One of them."""
    from smalti.server.models import MODEL

    try:
        return JSONResponse(_shown(site.folders().named(id, MODEL)))
    except InputError as error:
        return refusal(404, f"The model {id!r:.200} does not exist: {error}", "model",
                       "model_not_found")


def _shown(file: Any) -> dict[str, Any]:
    try:
        created = int(file.path.stat().st_mtime)
    except OSError:
        created = 0  # it went just now
    return {"id": file.name, "object": "model", "created": created, "owned_by": "smalti"}


async def _made(site: Site, request: Request, edits: bool) -> Response:
    """Pictures that are asked for, when they are made or while they are."""
    fields = await _fields(request, edits)
    if isinstance(fields, Response):
        return fields
    site.previews.look()
    found = await asyncio.to_thread(_submitted, site, fields, edits)
    if isinstance(found, Response):
        return found
    asked, job = found
    if asked.stream:
        return EventStream(_events(site, asked, job), lambda: abandoned(site, job))
    ended = await waited(site, job, request)
    return await asyncio.to_thread(_answer, site, asked, ended, str(request.base_url))


async def _fields(request: Request, edits: bool) -> dict[str, Any] | Response:
    """What a request says, in JSON or as a form."""
    kind = request.headers.get("content-type", "")
    if not edits or not kind.lower().startswith("multipart/form-data"):
        return await read_json(request)
    content = await read_content(request)
    if isinstance(content, Response):
        return content

    def read() -> dict[str, Any]:
        from smalti.server.openai.multipart import parts
        from smalti.server.openai.request import of_form

        return of_form(parts(content, kind))

    return await asyncio.to_thread(_in_words, read)


def _in_words(answer: Callable[[], Any]) -> Any:
    """What `answer` gives; what is wrong with a request is told as this API does."""
    try:
        return answer()
    except RefusedError as error:
        return error.answer()
    except InputError as error:
        return refusal(400, str(error), code="invalid_value")


def _submitted(site: Site, fields: dict[str, Any], edits: bool) -> Any:
    """What is asked for and its job, or why it is refused."""
    from smalti.server.asked import opened
    from smalti.server.openai.request import wanted

    def submit() -> tuple[AskedPictures, JobRecord]:
        asked = wanted(fields, site.folders(), edits)
        device = opened(asked.request, site.folders()).device
        return asked, site.queue.submit(asked.request, device)

    return answered(lambda: _in_words(submit))


def _failure(job: JobRecord) -> tuple[int, str, str] | None:
    """Why a job gives no pictures: a status, words, and one word."""
    if job.state == DONE:
        return None
    if job.state == CANCELLED:
        return 409, "The picture was cancelled.", "cancelled"
    status = 400 if is_refused(job) else 500
    return status, job.message or "the server was stopped", job.error or "stopped"


def _found(site: Site, job: JobRecord) -> list[tuple[PictureRecord, bytes]]:
    """The pictures of a job that are still there."""
    pictures = site.archive.pictures(job=job.id)[::-1]
    return [(each, content) for each in pictures if (content := site.gallery.content(each))]


def _answer(site: Site, asked: AskedPictures, job: JobRecord, base: str) -> Response:
    """All pictures of a job that has ended."""
    failure = _failure(job)
    if failure is not None:
        status, words, code = failure
        return refusal(status, words, code=code, headers=NO_RETRY)
    kind, pictures = asked.names["output_format"], _found(site, job)
    if asked.names["response_format"] == "url":
        compression = asked.numbers.get("output_compression")
        wishes = {} if compression is None else {"compression": str(compression)}
        if asked.names["background"] == OPAQUE:
            wishes["background"] = OPAQUE
        query = f"?{urlencode(wishes)}" if wishes else ""
        data = [{"url": f"{base}v1/images/files/{each.id}.{kind}{query}"} for each, _ in pictures]
    else:
        data = [{"b64_json": _base64(asked, content)} for _, content in pictures]
    size = f"{pictures[0][0].width}x{pictures[0][0].height}" if pictures else None
    return JSONResponse({"created": int(time.time()), "data": data, "size": size,
                         "background": _background(asked, [each for _, each in pictures]),
                         "output_format": kind, "quality": _quality(asked), "usage": USAGE})


def _base64(asked: AskedPictures, content: bytes) -> str:
    compression = asked.numbers.get("output_compression", COMPRESSION)
    kind = asked.names["output_format"].upper()
    flat = asked.names["background"] == OPAQUE
    return base64.b64encode(encoded(content, kind, compression, flat)).decode()


def _background(asked: AskedPictures, contents: Sequence[bytes]) -> str:
    """What is behind pictures as they are answered: models of some families make transparent ones.
    """
    flat = asked.names["background"] == OPAQUE or asked.names["output_format"] == "jpeg"
    return OPAQUE if flat or not any(map(is_transparent, contents)) else "transparent"


def _quality(asked: AskedPictures) -> str:
    from smalti.server.openai.request import SHOWN_QUALITIES

    quality = asked.names["quality"]
    return SHOWN_QUALITIES.get(quality, quality)


async def _events(site: Site, asked: AskedPictures, job: JobRecord) -> AsyncGenerator[bytes, None]:
    """A picture while it is made, as often as asked for, and when it is."""
    family = "image_edit" if asked.edits else "image_generation"
    count, shown = asked.numbers.get("partial_images", 0), 0
    async with aclosing(changes(site, job, steps=True)) as found:
        async for each in found:
            job = each or job
            site.previews.look()
            if each is None:
                yield b": still here\n\n"
            elif shown < count and _is_due(site, job, shown, count):
                preview = await asyncio.to_thread(_preview, site, asked, job)
                if preview is not None:
                    yield _event(asked, f"{family}.partial_image", preview,
                                 {"partial_image_index": shown})
                    shown += 1
    failure = _failure(job)
    if failure is not None:
        status, words, code = failure
        yield _said("error", told(status, words, code=code))
        return
    for picture, content in await asyncio.to_thread(_found, site, job):
        text = await asyncio.to_thread(_base64, asked, content)
        yield _event(asked, f"{family}.completed", text, {
            "usage": USAGE, "size": f"{picture.width}x{picture.height}",
            "background": await asyncio.to_thread(_background, asked, [content])})


def _is_due(site: Site, job: JobRecord, shown: int, count: int) -> bool:
    """Whether it is time to show a job again: `count` times, evenly, before it is done."""
    progress = site.queue.progress(job.id)
    return progress is not None and progress.steps > 0 and (
        progress.step / progress.steps >= (shown + 1) / (count + 1))


def _preview(site: Site, asked: AskedPictures, job: JobRecord) -> str | None:
    """What the picture of a job will be, in base64; None before its first preview."""
    from PIL import Image

    shown = site.previews.shown(job.id)
    if shown is None:
        return None
    with Image.open(io.BytesIO(shown.jpeg)) as small:
        image = small.resize(asked.size or small.size, Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, asked.names["output_format"].upper())
    return base64.b64encode(stream.getvalue()).decode()


def _event(asked: AskedPictures, kind: str, picture: str, more: dict[str, Any]) -> bytes:
    size = asked.size
    return _said(kind, {
        "type": kind, "b64_json": picture, "created_at": int(time.time()), "background": OPAQUE,
        "output_format": asked.names["output_format"], "quality": _quality(asked),
        "size": "auto" if size is None else f"{size[0]}x{size[1]}", **more})


def _said(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _file(site: Site, name: str, query: dict[str, str]) -> Response:
    """A picture, as long as it is in the gallery, in the format that its address says."""
    from smalti.server.openai.request import WHOLE

    found = FILE.fullmatch(name)
    record = site.archive.picture(int(found[1])) if found else None
    content = site.gallery.content(record) if record else None
    if found is None or content is None:
        return problem(404, "NotFound", f"there is no picture {name!r:.80}")
    given, flat = query.pop("compression", str(COMPRESSION)), query.get("background") == OPAQUE
    if flat:
        query.pop("background")
    low, high = WHOLE["output_compression"]
    if query or not (given.isascii() and given.isdigit() and len(given) <= 3
                     and low <= int(given) <= high):
        return refusal(400, f"expected nothing behind the ? but compression, {low} to {high}, "
                       "and background=opaque", "compression")
    return Response(encoded(content, found[2].upper(), int(given), flat),
                    media_type=f"image/{found[2]}")
