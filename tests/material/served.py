"""A server in a thread of the test's process, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import base64
import http.client
import io
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti.server.archive import Archive
from smalti.server.serve import HttpServer, configured, listening
from smalti.server.site import Site

SECONDS = 60.0
"""That anything may take on a computer that is busy with others."""
LONG = {"steps": 1000, "width": 128, "height": 128}
"""What a request adds so that its picture of the tiny model takes eleven seconds on a core of
Zen 5, and each step of it a hundredth: it still runs when it is told to stop. At 16 x 16 the steps
were over in 0.24 s, and events come every 0.2."""
HOST = "127.0.0.1"


def base64_of(image: Image.Image) -> str:
    """A picture as programs send it."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def image_of(text: str) -> Image.Image:
    """A picture of an answer."""
    return Image.open(io.BytesIO(base64.b64decode(text)))


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Client:
    """Asks a server on a port of this computer; each request is a connection of its own."""

    port: int
    site: Site

    def ask(self, method: str, path: str, body: bytes | None = None,
            headers: dict[str, str] | None = None) -> Answer:
        """One request, with the headers that browsers send unless others are given."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            given = {"Host": f"{HOST}:{self.port}", **(headers or {})}
            if body is not None and "Content-Length" not in given:
                given["Content-Length"] = str(len(body))
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.ask("POST", path, json.dumps({} if body is None else body).encode(),
                        {"Content-Type": "application/json"})

    def made(self, **request: Any) -> dict[str, Any]:
        """The job of a request, when it has ended."""
        answer = self.post("/api/jobs", request)
        assert answer.status == 201, answer.content
        self.site.queue.wait(answer.json["id"], SECONDS)
        return self.get(f"/api/jobs/{answer.json['id']}").json


def opened(output: Path, models: Path) -> Site:
    """A site that has not started."""
    return Site(output, [models], ["cpu"], threads=1)


def full_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The disk is full when the end of a job is noted first; what was refused then."""
    ends: Any = Archive.end
    refused: list[Any] = []

    def refuses_once(self: Archive, *given: Any) -> bool:
        if not refused:
            refused.append(given)
            raise sqlite3.OperationalError("database or disk is full")
        return bool(ends(self, *given))

    monkeypatch.setattr("smalti.server.worker.RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Archive, "end", refuses_once)
    return refused


@contextmanager
def served(site: Site, token: str | None = None) -> Iterator[Client]:
    """Serve a site on a free port; it is stopped at the end."""
    bound, ready = listening(HOST, 0, token), threading.Event()
    server = HttpServer(configured(site, HOST, token), site, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield Client(bound.getsockname()[1], site)
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        site.stop()
