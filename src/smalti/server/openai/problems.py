"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smalti.errors import InputError

PLACES = ("/v1/images", "/v1/models")
"""Where this API is."""
INVALID = "invalid_request_error"
CODES = {401: "invalid_api_key", 404: "not_found", 413: "content_too_large",
         429: "rate_limit_exceeded"}
"""Of errors that stand for themselves."""
NO_RETRY = {"x-should-retry": "false"}
"""Tells the client not to ask again by itself, where the same would happen."""


class RefusedError(InputError):
    """A field cannot be what it is; `param` is its name, `code` says why in one word."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value",
                 status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    def answer(self) -> JSONResponse:
        """It as an answer."""
        return refusal(self.status, str(self), self.param, self.code)


def told(status: int, message: str, param: str | None = None, code: str | None = None
         ) -> dict[str, Any]:
    """What is said of an error, in an answer or in a stream of events."""
    kind = INVALID if status < 500 and status != 429 else (
        "rate_limit_error" if status == 429 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param,
                      "code": code or CODES.get(status)}}


def refusal(status: int, message: str, param: str | None = None, code: str | None = None,
            headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong."""
    found = {**(NO_RETRY if status in (408, 409) or status >= 500 else {}), **(headers or {})}
    return JSONResponse(told(status, message, param, code), status, found)


def is_here(path: str) -> bool:
    """Whether a path is one of this API.

    >>> is_here("/v1/models"), is_here("/v1/images/edits"), is_here("/v1/modelsx")
    (True, True, False)
    """
    return any(path == place or path.startswith(f"{place}/") for place in PLACES)


class Problems:
    """Lets `app` answer; where it says what is wrong with a request of this API in other words,
    they are put into these."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not is_here(scope["path"]):
            await self._app(scope, receive, send)
            return
        begun: list[Message] = []
        content = bytearray()

        async def reworded(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                begun.append(message)
            elif not begun:
                await send(message)
            else:
                content.extend(message.get("body", b""))
                if not message.get("more_body"):
                    await _respond(begun[0], bytes(content), send)

        await self._app(scope, receive, reworded)


async def _respond(start: Message, content: bytes, send: Send) -> None:
    """Send an error, as this API says it."""
    said = json.loads(content) if content[:1] == b"{" else {}
    if not isinstance(said.get("error"), dict):
        content = json.dumps(told(start["status"], said.get("message", "refused"))).encode()
        start = {**start, "headers": [
            *((name, value) for name, value in start["headers"]
              if name not in (b"content-length", b"content-type")),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode())]}
    await send(start)
    await send({"type": "http.response.body", "body": content})
