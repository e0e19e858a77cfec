"""An endpoint as a record, of which the route, the checks and the OpenAPI document are made."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from smalti.dataclass import dataclass
from smalti.errors import InputError, OutputError
from smalti.server import late
from smalti.server.guard import BODY_BYTES_MAX, problem, too_large
from smalti.server.queue import QueueFullError, QueueStateError, UnknownJobError
from smalti.server.site import Site

Schema = dict[str, Any]

BODY_SECONDS_MAX = 60.0
"""In which the content of a request must have come, so that nobody holds connections open."""
SMALL_BYTES = 1 << 14
"""Of content that is read at once: less than a tenth of a millisecond, and than a thread costs."""
COMING_BYTES_MAX = 8 * BODY_BYTES_MAX
"""Of the contents of all requests that come at a time: they are kept in memory until each is whole.
"""
RETRY_SECONDS = 5
"""After which a client that was told that the queue is full may ask again."""


LISTED = 100
LISTED_MAX = 1000
"""Jobs or pictures of one answer, where nothing else is asked for, and at most."""
WHOLE: Schema = {"type": "integer", "minimum": 1}
LIMIT: Schema = {**WHOLE, "maximum": LISTED_MAX, "default": LISTED}


@dataclass(frozen=True)
class Asking:
    """A request: what stands in its path and behind the ?, and its JSON."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]


Answer = Callable[[Site, Asking], Any]


@dataclass(frozen=True)
class Endpoint:
    """What one method of one path does: `answer` gives JSON, or a Response.

    `query` are the parameters behind the ?, with their schemas; others are refused. `body` makes
    the schema of the JSON that is sent, `result` names that of what is answered. `at_once` answers
    without waiting for a thread, from memory alone; None where it cannot, and `answer` is asked.
    """

    method: str
    path: str
    summary: str
    answer: Answer
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Callable[[], Schema] | None = None
    status: int = 200
    result: str = ""
    at_once: Answer | None = None

    def route(self, site: Site) -> Route:
        """It as a route of the application."""

        async def called(request: Request) -> Response:
            body: dict[str, Any] = {}
            if self.method == "POST":
                found = await read_json(request)
                if isinstance(found, Response):
                    return found
                body = found
            call = Asking(request.path_params, dict(request.query_params), body)
            if self.at_once is not None and call.query.keys() <= self.query.keys():
                known = self.at_once(site, call)
                if known is not None:
                    return JSONResponse(known, self.status)
            return await run_in_threadpool(self._answered, site, call)

        return Route(self.path, called, methods=[self.method])

    def _answered(self, site: Site, call: Asking) -> Response:
        """What is answered."""
        late.load()
        from smalti.diffusion.keywords import check_known

        def answer() -> Any:
            check_known(call.query, list(self.query))
            return self.answer(site, call)

        found = answered(answer)
        return found if isinstance(found, Response) else JSONResponse(found, self.status)


class EventStream(StreamingResponse):
    """Server-sent events, as long as the client is there; what makes them ends with it.

    `ended` is called then, also where the client has gone before the first of them.
    """

    def __init__(self, said: AsyncGenerator[bytes, None],
                 ended: Callable[[], None] = lambda: None) -> None:
        super().__init__(said, media_type="text/event-stream",
                         headers={"x-accel-buffering": "no"})
        self._said, self._ended = said, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            async with aclosing(self._said):
                await super().__call__(scope, receive, send)
        finally:
            self._ended()


def answered(answer: Callable[[], Any]) -> Any:
    """What `answer` gives; errors that have a cause outside of Smalti are told with it."""
    try:
        return answer()
    except InputError as error:
        if isinstance(error, OutputError):
            return problem(507, type(error).__name__, str(error))
        return problem(422, type(error).__name__, str(error))
    except UnknownJobError as error:
        return problem(404, "NotFound", str(error))
    except QueueStateError as error:
        return problem(409, "Conflict", str(error))
    except QueueFullError as error:
        return problem(429, "QueueFull", str(error), {"retry-after": str(RETRY_SECONDS)})
    except sqlite3.OperationalError as error:
        return problem(507, "OutputError", f"the queue cannot be written: {error}")


def only(body: Mapping[str, Any], *known: str) -> None:
    """Raise InputError where a body says something else."""
    from smalti.diffusion.keywords import check_known

    check_known(body, known)


def unknown_query(request: Request) -> Response | None:
    """Why the query of an address that takes none is refused; None where there is none."""
    if not request.query_params:
        return None
    return answered(lambda: only(dict(request.query_params)))


def told_whether(name: str, value: object) -> bool:
    """What a body says by true or false. Raises InputError."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r:.80}; expected true or false")
    return value


async def read_content(request: Request) -> bytes | Response:
    """What a request sends, or why it is refused."""
    content, everyone = bytearray(), request.app.state
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                content += chunk
                everyone.coming = getattr(everyone, "coming", 0) + len(chunk)
                if len(content) > BODY_BYTES_MAX:
                    return too_large()
                if everyone.coming > COMING_BYTES_MAX:
                    return problem(503, "Busy", "too many large requests come at a time; try again",
                                   {"retry-after": str(RETRY_SECONDS)})
    except TimeoutError:
        return problem(408, "Timeout", f"the content did not come within {BODY_SECONDS_MAX:g} s")
    except ClientDisconnect:
        return problem(400, "BadRequest", "the content did not come")
    finally:
        everyone.coming = getattr(everyone, "coming", 0) - len(content)
    return bytes(content)


async def read_json(request: Request) -> dict[str, Any] | Response:
    """The object that a request sends, empty where it sends nothing; or why it is refused."""
    content = await read_content(request)
    if isinstance(content, Response):
        return content
    if not content:
        return {}
    try:
        found = _parsed(content) if len(content) <= SMALL_BYTES else (
            await run_in_threadpool(_parsed, content))
    except (ValueError, RecursionError) as error:
        return problem(400, "BadRequest", f"the content is no JSON: {error}")
    if not isinstance(found, dict):
        return problem(422, "InputError", f"the content is a {type(found).__name__}; expected an "
                                          f"object")
    return found


def _parsed(content: bytes) -> Any:
    """What JSON says, that all readers understand alike. Raises ValueError, RecursionError."""
    return json.loads(content, parse_constant=_refused, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one that says a thing twice is not understood alike by all who read it."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r:.80} is there twice")
        found[name] = value
    return found


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
