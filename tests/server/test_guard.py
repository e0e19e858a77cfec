"""Attacks that a server on one's own computer sees: each row is one, none gets through."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import HOST, Client, opened, served

from smalti.errors import InputError
from smalti.server import endpoint
from smalti.server.guard import BODY_BYTES_MAX
from smalti.server.serve import listening

JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"prompt": "a"}).encode()
TOKEN = "a secret of this tést"
BEARER = f"Bearer {TOKEN}".encode().decode("latin-1")  # the bytes of its text, as clients send it


@pytest.mark.parametrize(("headers", "status"), [
    ({"Host": "evil.example"}, 403),  # DNS rebinding
    ({"Host": "evil.example:7860"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "192.168.0.7"}, 403),
    ({"Host": "0.0.0.0"}, 403),
    ({"Host": ""}, 403),
    ({"Host": "127.0.0.1:80@evil.example"}, 403),
    ({"Host": "127.0.0.1, evil.example"}, 403),
    ({"Host": "2130706433"}, 403),
    ({"Host": "localhost:1\tx"}, 403),
    ({"Origin": "http://evil.example"}, 403),  # a foreign page
    ({"Origin": "null"}, 403),
    ({"Origin": "http://127.0.0.1"}, 403),  # another port is another page
    ({"Origin": "file://"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Content-Type": "text/plain"}, 415),  # what a form may send without asking
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
    ({"Content-Type": ""}, 415),
    ({"Content-Type": "text/plain; application/json"}, 415),
    ({"Content-Length": str(BODY_BYTES_MAX + 1)}, 413),
    ({"Content-Length": "9" * 18}, 413),
])
def test_requests_from_where_none_may_come_are_refused(client: Client, headers: dict[str, str],
                                                       status: int) -> None:
    before = client.get("/api/jobs").json["jobs"]
    answer = client.ask("POST", "/api/jobs", BODY, {**JSON, **headers})
    assert answer.status == status and "access-control-allow-origin" not in answer.headers
    assert client.get("/api/jobs").json["jobs"] == before


@pytest.mark.parametrize("headers", [
    {"Host": "localhost"}, {"Host": "LOCALHOST:7860"}, {"Host": "[::1]:7860"},
    {"Host": "127.9.9.9"}, {"Authorization": ""}, {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Host": "localhost:1", "Origin": "http://localhost:1"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}])
def test_what_may_come_comes(client: Client, headers: dict[str, str]) -> None:
    assert client.ask("GET", "/internal/ping", headers=headers).status == 200


@pytest.mark.parametrize("path", [
    "/api/pictures/../../etc/passwd", "/api/pictures/%2e%2e%2f%2e%2e%2fetc%2fpasswd/file",
    "/api/pictures/..%5c..%5cwindows/file", "/api/pictures/1%00.png/file", "/../etc/passwd",
    "//etc/passwd", "/api/pictures/-1/file", "/api/pictures/%D9%A1/file",
    "/api/jobs/..%2f..%2fetc%2fpasswd", "/api/jobs/%ff%fe", "/api/pictures/1e3/file",
    "/api/pictures?job='%20OR%201=1--", "/api/pictures?search=%25%25'%3B%20DROP%20TABLE%20jobs"])
def test_no_path_leads_to_a_file(client: Client, path: str) -> None:
    answer = client.ask("GET", path)
    assert b"root:" not in answer.content and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.status in (404, 422) or answer.json == {"pictures": []}


@pytest.mark.parametrize(("content", "status"), [
    (b"{", 400), (b"[" * 100_000, 400), (b'{"prompt": NaN}', 400), (b'{"seed": -Infinity}', 400),
    (b"\xff\xfe\x00", 400), (b'{"prompt": "\\ud800"}', 422), (b'"text"', 422), (b"null", 422),
    (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", 400),
    (b'{"prompt": "a", "guidance_scale": 1e999}', 422), (b'{"__proto__": {}}', 422)])
def test_content_that_is_no_request_is_refused(client: Client, content: bytes, status: int
                                               ) -> None:
    answer = client.ask("POST", "/api/jobs", content, JSON)
    assert answer.status == status and answer.json["message"]


def test_content_that_grows_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_BYTES_MAX", 1000)
    assert client.ask("POST", "/api/jobs", b" " * 1001, JSON).status == 413


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
    (BEARER, 200), (BEARER.replace("B", "b"), 200), (basic(TOKEN), 200),
    ("", 401), ("Bearer", 401), ("Bearer ", 401), (f"{BEARER}x", 401), (TOKEN, 401),
    (f"Digest {TOKEN}", 401), (basic(""), 401), (basic(f"{TOKEN}:"), 401), ("Basic %%%", 401),
    (f"Basic {TOKEN}", 401), ("Bearer \xff", 401)])
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
