"""Which requests are let in: what a browser can be made to send by a foreign page is not.

A server on this computer is reached by every page that a browser shows. So the name that a request
gives the server must be one of its own (a foreign name that leads here is DNS rebinding), the page
that it comes from must be its own (no CORS), and what changes something must be JSON, which foreign
pages cannot send without being asked for; or a form that comes with a token, which they cannot send
either. Beyond this computer a token is needed besides; a server without one answers this computer
alone, also behind a proxy that others reach.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
HEAD_BYTES_MAX = 32 << 10
"""Of the address and the headers of a request; those of browsers with many cookies have a fifth."""
BODY_BYTES_MAX = 64 << 20
"""Of a request: a picture of 4096 x 4096 pixels as PNG, in base64, takes up to that."""
WRONG_SECONDS = 0.1
"""For which a wrong token holds up the next wrong one of the same address: ten guesses a second."""
WRONG_MAX = 8
"""Wrong tokens of an address that wait so; beyond them nothing it sends is looked at."""
FORMS = ("/v1/images/edits",)
"""Paths that take a form with files, too: clients of OpenAI's API send pictures so."""
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
                               "form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer that does not say otherwise."""


def problem(status: int, error: str, message: str,
            headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong, with the keys that clients of several APIs look for."""
    return JSONResponse({"error": error, "message": message, "detail": message, "errors": message,
                         "body": ""}, status, headers)


class _Guesses:
    """The wrong tokens of an address that are held up."""

    def __init__(self) -> None:
        self.waiting, self.turn = 0, asyncio.Lock()


class Guard:
    """Lets through to `app` what comes from where it may: see the module.

    `names` are those of this server; addresses of IP are taken besides where it is reached from
    elsewhere (`open_to_others`), which needs a `token`.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], token: str | None = None,
                 open_to_others: bool = False) -> None:
        self._app, self._names, self._others = app, {name.lower() for name in names}, open_to_others
        self._token = None if token is None else token.encode()
        self._guesses: dict[str, _Guesses] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refused = (_unsound(scope) or self._guessed(scope, headers) or self._from_elsewhere(scope)
                   or self._refused(scope["method"], scope["path"], headers))
        if refused is not None and refused.status_code == 401 and "authorization" in headers:
            await self._hold_up(_address(scope))
        await (refused or self._app)(scope, receive, guarded)

    def _guessed(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        """That an address has sent too many wrong tokens just now; None where it has not."""
        guesses = self._guesses.get(_address(scope))
        if guesses is None or guesses.waiting < WRONG_MAX or "authorization" not in headers:
            return None
        return problem(429, "TooManyWrongTokens", "too many wrong tokens came from this address; "
                       "try again in a second", {"retry-after": "1"})

    def _from_elsewhere(self, scope: Scope) -> JSONResponse | None:
        """That another computer asks a server that nothing but its place guards; None where not. A
        proxy in front of it may listen for others, and the name in a request can be forged."""
        address = _address(scope)
        if self._token is not None or from_here(address):
            return None
        return problem(403, "Forbidden", f"the request comes from {address:.80}, and a server "
                                         f"without a token is for its own computer alone")

    async def _hold_up(self, address: str) -> None:
        """Let a wrong token wait for those before it."""
        guesses = self._guesses.setdefault(address, _Guesses())
        guesses.waiting += 1
        try:
            async with guesses.turn:
                await asyncio.sleep(WRONG_SECONDS)
        finally:
            guesses.waiting -= 1
            if not guesses.waiting:
                self._guesses.pop(address, None)

    def _refused(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        """Why a request is not let in; None where it is."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return problem(403, "Forbidden", f"the request is for the host {', '.join(hosts)!r:.80}"
                                             f", which is no name of this server")
        origins = {origin.lower() for origin in headers.getlist("origin")}
        foreign = origins - {f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower()}
        if foreign:
            return problem(403, "Forbidden", f"the request comes from a page of "
                           f"{min(foreign)!r:.80}; only pages of this server may send any")
        visit = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not visit:
            return problem(403, "Forbidden", "the request comes from a page of another site")
        if self._token is not None and not self._is_known(headers.get("authorization", "")):
            return problem(401, "Unauthorized", "this server asks for its token: as Bearer token, "
                           "or as password of any user", {"www-authenticate": 'Basic realm="Smalti"'
                                                          ', charset="UTF-8"'})
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        length = headers.get("content-length", "0")
        empty = not kind and length == "0" and "transfer-encoding" not in headers
        if method in ("POST", "PUT", "PATCH") and kind != "application/json" and not empty and (
                not _is_form(path, kind, headers)):
            return problem(415, "UnsupportedMediaType", f"the request is {kind or 'of no type'}; "
                           f"expected Content-Type: application/json" + (
                               ", or a form with Authorization: Bearer, whatever the token"
                               if path in FORMS else ""))
        if not length.isascii() or not length.isdigit() or int(length[:20]) > BODY_BYTES_MAX:
            return too_large()
        return None

    def _is_own(self, host: str) -> bool:
        """Whether the name in a request is one of this server."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower().strip("[]").removesuffix(".")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._others

    def _is_known(self, given: str) -> bool:
        """Whether an Authorization header has the token, compared in constant time."""
        scheme, _, value = given.partition(" ")
        secret = value.strip().encode("latin-1")  # the bytes that were sent
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, self._token or b"")


def _address(scope: Scope) -> str:
    """Where a request comes from."""
    return str((scope.get("client") or ("", 0))[0])


@lru_cache(maxsize=64)
def from_here(address: str) -> bool:
    """Whether a request from this address comes from this computer; so does one without a network.

    >>> [from_here(each) for each in ("127.0.0.1", "::ffff:127.0.0.1", "192.168.0.2", "")]
    [True, True, False, True]
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return True
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_form(path: str, kind: str, headers: Headers) -> bool:
    """Whether a request is a form where forms are taken. It has a Bearer token, whether this server
    has one or not: a foreign page could not send that without being asked for."""
    return path in FORMS and kind == "multipart/form-data" and (
        headers.get("authorization", "").lower().startswith("bearer "))


def _unsound(scope: Scope) -> JSONResponse | None:
    """Why a request is none that all readers understand alike; None where it is."""
    names = [name for name, _ in scope["headers"]]
    if b"transfer-encoding" in names and b"content-length" in names:
        return problem(400, "BadRequest", "the request has a Content-Length and is sent in chunks; "
                       "expected one of the two", {"connection": "close"})
    head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(
        len(name) + len(value) for name, value in scope["headers"])
    if head > HEAD_BYTES_MAX:
        return problem(431, "HeadTooLarge", f"the address and the headers have {head} bytes; "
                                            f"expected at most {HEAD_BYTES_MAX}")
    return None


def too_large() -> JSONResponse:
    """The answer to a request with more content than is read."""
    return problem(413, "ContentTooLarge", f"the request has more than {BODY_BYTES_MAX >> 20} MiB; "
                                           f"send smaller pictures")
