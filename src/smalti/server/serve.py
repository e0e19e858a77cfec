"""A site behind HTTP: the application, and the process that serves it on one address."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from smalti.errors import InputError
from smalti.server import native, page_files
from smalti.server.connection import Connection
from smalti.server.guard import HEADERS, Guard, problem
from smalti.server.openai.problems import Problems, is_here, refusal
from smalti.server.openai.routes import routes as openai_routes
from smalti.server.sdapi.routes import routes as sdapi_routes
from smalti.server.site import Site

CONNECTIONS_MAX = 512
"""At a time; each takes some kB, and more of them than this is nobody's browser."""
THREADS = 40
"""That wait for disks and pictures at a time, as many as Starlette has for its own."""
GRACE_SECONDS = 2
"""For answers that are being sent when the server is stopped."""
POLLED = ("/internal/ping", "/api/jobs/{id}", "/sdapi/v1/progress", "/internal/progress",
          "/v1/internal/ping", "/v1/internal/progress")
"""What clients ask for all the time: looked for before the other hundred addresses."""
FOR_EACH_PICTURE = (
    "/api/jobs", "/api/jobs/{id}/events", "/api/pictures/{id}/file", "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img", "/v1/sdapi/v1/txt2img", "/v1/sdapi/v1/img2img", "/v1/images/generations")
"""What they ask for once or twice a picture: looked for next."""
TOKEN_CHARACTERS_MIN = 8
"""Fewer can be tried out over a network."""


def application(site: Site, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The ASGI application of a site that is reached as `host`, with a `token` or without."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        site.start()
        yield

    names = {"localhost", socket.gethostname(), *({host} if not is_address(host) else ())}
    guard = Middleware(Guard, names=names, token=token, open_to_others=not is_loopback(host))
    routes = [*page_files.routes(), *native.streams(site),
              *(each.route(site) for each in native.ENDPOINTS), *sdapi_routes(site),
              *openai_routes(site)]
    return Starlette(
        routes=sorted(routes, key=_seldom),
        middleware=[Middleware(Problems), guard], lifespan=lifespan,
        exception_handlers={HTTPException: refused, Exception: defect})


def _seldom(route: BaseRoute) -> int:
    """How seldom an address is asked for."""
    path = route.path if isinstance(route, Route) else ""
    return 0 if path in POLLED else 1 if path in FOR_EACH_PICTURE else 2


async def refused(request: Request, error: Exception) -> Response:
    """An address or a method that is none."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    said = {404: f"there is nothing at {request.url.path:.200}",
            405: f"{request.method} is nothing that {request.url.path:.200} does"}
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return problem(status, "NotFound" if status == 404 else "Refused",
                   said.get(status, str(error)), headers)


async def defect(request: Request, error: Exception) -> Response:
    """A defect of Smalti: the log has where it is."""
    message = f"a defect in Smalti: {type(error).__name__}; the log of the server has the place"
    answer = (refusal(500, message) if is_here(request.url.path)
              else problem(500, "Defect", message))
    for name, value in HEADERS.items():  # it is made outside of the guard, which adds them else
        answer.headers.setdefault(name, value)
    return answer


class HttpServer(uvicorn.Server):
    """Tells when it answers, and ends what waits for jobs before it ends connections."""

    def __init__(self, config: uvicorn.Config, site: Site, ready: Callable[[], None],
                 unwanted: Callable[[], bool] | None = None) -> None:
        super().__init__(config)
        self._site, self._ready, self._unwanted = site, ready, unwanted

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        return await super().on_tick(counter) or (self._unwanted is not None and self._unwanted())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the queue first, so that streams of events end, and all else at last: SIGTERM ends
        the process as soon as this has returned."""
        self._site.queue.stop()
        await super().shutdown(sockets)
        await asyncio.to_thread(self._site.stop)


def configured(site: Site, host: str, token: str | None) -> uvicorn.Config:
    """How the application of a site is served."""
    return uvicorn.Config(
        application(site, host, token), log_level="warning", access_log=False, ws="none",
        server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=GRACE_SECONDS, loop="asyncio", http=Connection, lifespan="on")


def serve(site: Site, bound: socket.socket, host: str, token: str | None,
          ready: Callable[[], None], unwanted: Callable[[], bool] | None = None) -> None:
    """Answer requests until Ctrl-C, or until `unwanted` says so; `ready` is called when the first
    one is answered."""
    try:
        HttpServer(configured(site, host, token), site, ready, unwanted).run(sockets=[bound])
    finally:
        site.stop()


def listening(host: str, port: int, token: str | None) -> socket.socket:
    """A socket at an address. Raises InputError where it cannot be had, or is open to others and
    has no token."""
    if not is_loopback(host) and (token is None or len(token) < TOKEN_CHARACTERS_MIN):
        raise InputError(f"--host {host} lets other computers in; give a token of at least "
                         f"{TOKEN_CHARACTERS_MIN} characters with --token-file or SMALTI_TOKEN, "
                         f"which they have to send")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends without delay where it knows by the protocol that this is TCP; else every
        # second answer of a connection waits 40 ms for the acknowledgement of its first part
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # on Windows that name means another thing: two servers at one port, and nobody is told
        found.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE",
                                                    socket.SO_REUSEADDR), 1)
        found.bind(address)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}; choose "
                         f"another --port") from None
    return found


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this computer only."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is given by number."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
