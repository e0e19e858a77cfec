"""Who is let in, and what every answer says; attacks.py has who is not."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import HOST, SECONDS, Client, opened, served
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from smalti.errors import InputError
from smalti.server import endpoint, guard, serve
from smalti.server.serve import listening

JSON = {"Content-Type": "application/json"}
TOKEN = "a secret of this tést"
BEARER = f"Bearer {TOKEN}".encode().decode("latin-1")  # the bytes of its text, as clients send it


@pytest.mark.parametrize("headers", [
    {"Host": "localhost"}, {"Host": "LOCALHOST:7860"}, {"Host": "[::1]:7860"},
    {"Host": "127.9.9.9"}, {"Authorization": ""}, {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Host": "localhost:1", "Origin": "http://localhost:1"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}])
def test_what_may_come_comes(client: Client, headers: dict[str, str]) -> None:
    assert client.ask("GET", "/internal/ping", headers=headers).status == 200


def test_content_that_grows_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_BYTES_MAX", 1000)
    assert client.ask("POST", "/api/jobs", b" " * 1001, JSON).status == 413


def test_contents_that_come_at_a_time_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    monkeypatch.setattr(endpoint, "COMING_BYTES_MAX", 1000)
    with socket.create_connection((HOST, client.port)) as slow:
        slow.sendall(f"POST /api/jobs HTTP/1.1\r\nHost: {HOST}:{client.port}\r\nContent-Type: "
                     f"application/json\r\nContent-Length: 950\r\n\r\n{' ' * 900}".encode())
        until = time.monotonic() + SECONDS
        while client.ask("POST", "/api/jobs", b" " * 200, JSON).status != 503:
            assert time.monotonic() < until
    while client.ask("POST", "/api/jobs", b" " * 200, JSON).status != 400:
        assert time.monotonic() < until


def test_every_answer_says_how_browsers_treat_it(client: Client) -> None:
    for path in ("/", "/none", "/internal/ping"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and "server" not in headers
        assert headers["cross-origin-resource-policy"] == "same-origin"
    asked = client.ask("OPTIONS", "/api/jobs", headers={
        "Access-Control-Request-Method": "POST"})
    assert asked.status == 405 and not any(
        name.lower().startswith("access-control") for name in asked.headers)


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    with served(opened(tmp_path_factory.mktemp("closed"), models), TOKEN) as found:
        yield found


@pytest.mark.parametrize(("given", "status"), [
    (BEARER, 200), (BEARER.replace("B", "b"), 200), (basic(TOKEN), 200), (f"{BEARER}x", 401),
    (TOKEN, 401), (f"Digest {TOKEN}", 401), (basic(f"{TOKEN}:"), 401), (f"Basic {TOKEN}", 401)])
def test_a_token_is_asked_for(closed: Client, given: str, status: int) -> None:
    answer = closed.ask("GET", "/internal/ping", headers={"Authorization": given})
    assert answer.status == status
    assert status == 200 or answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("token", [None, "", "short"])
def test_other_computers_are_let_in_with_a_token_only(token: str | None) -> None:
    with pytest.raises(InputError, match="give a token of at least 8 characters"):
        listening("0.0.0.0", 0, token)


def test_a_port_that_is_taken_is_told() -> None:
    with listening(HOST, 0, None) as taken:
        taken.listen()
        with pytest.raises(InputError, match="cannot listen on 127.0.0.1, port"):
            listening(HOST, taken.getsockname()[1], None)


def test_wrong_tokens_of_an_address_wait_for_each_other(closed: Client,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WRONG_SECONDS", 0.02)
    monkeypatch.setattr(guard, "WRONG_MAX", 3)
    wrong, right = ({"Authorization": each} for each in (f"{BEARER}x", BEARER))
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as clients:
        found = [*clients.map(lambda _: closed.ask("GET", "/internal/ping", headers=wrong).status,
                              range(40))]
    waited = found.count(401)
    assert {*found} == {401, 429} and time.monotonic() - begun >= 0.02 * waited
    assert closed.ask("GET", "/internal/ping", headers=right).status == 200
    assert closed.ask("GET", "/internal/ping").status == 401  # a browser that is asked for it


def test_a_defect_is_answered_with_the_same_headers() -> None:
    request = Request({"type": "http", "path": "/api/jobs", "headers": []})
    answer = asyncio.run(serve.defect(request, RuntimeError("x")))
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(("token", "address", "status"), [
    (None, "192.168.0.2", 403), (None, "fd00::1", 403), (None, "127.0.0.1", 200),
    (None, "::ffff:127.0.0.1", 200), ("12345678", "192.168.0.2", 401)])
def test_without_a_token_only_its_own_computer_is_let_in(token: str | None, address: str,
                                                         status: int) -> None:
    sent: list[int] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("in")(scope, receive, send)

    async def send(message: Message) -> None:
        sent.append(message.get("status", 0))

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    asyncio.run(guard.Guard(answer, {"localhost"}, token)({
        "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8000")], "client": (address, 1)}, receive, send))
    assert sent[0] == status
