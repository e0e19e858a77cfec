"""A server on loopback that speaks the hub's protocol, and fails in whatever way it is told to.

What it answers is what the hub's documentation and its own client say: `/api/models/...` lists
files with sizes and hashes; `/OWNER/NAME/resolve/REVISION/FILE` answers HEAD with `X-Repo-Commit`,
`ETag` or, for large files, `X-Linked-Etag` and `X-Linked-Size`, and redirects those to a second
host, the content delivery network, which serves ranges. `/api/v1/...` is civitai's API.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 10_000
"""From which on a file is in LFS."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"

Fault = Callable[["Handler"], bool]
"""What goes wrong with one question; whether it was answered by that."""


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class HubServer:
    """Repositories by name, faults by the kind of question, and what was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    civitai: dict[int, dict[str, Any]] = field(default_factory=dict)
    faults: defaultdict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    served: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    cdn: str = ""

    def of(self, kind: str) -> list[tuple[str, str, Mapping[str, str]]]:
        """What was asked of a kind."""
        return [each for each in self.asked if each[0] == kind]

    def listing(self, name: str) -> dict[str, Any]:
        """What the API says of a repository."""
        siblings = []
        for file, content in self.repositories[name].items():
            told: dict[str, Any] = {"rfilename": file, "size": len(content),
                                    "blobId": git_hash(content)}
            if len(content) >= LARGE_BYTES:
                told["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 130}
            siblings.append(told)
        return {"id": name, "modelId": name, "sha": COMMIT, "private": False, "gated": False,
                "disabled": False, "downloads": 7, "likes": 1, "tags": [],
                "cardData": {"license": "openrail++"}, "siblings": siblings, **self.info}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self.route("GET")

    def do_HEAD(self) -> None:
        self.route("HEAD")

    def route(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/cdn/"):
            kind = "cdn"
        elif path.startswith("/api/"):
            kind = "info"
        else:
            kind = "head" if method == "HEAD" else "file"
        self.hub.asked.append((kind, path, dict(self.headers.items())))
        waiting = self.hub.faults[kind]
        if waiting and waiting.pop(0)(self):
            return
        {"cdn": self.content, "info": self.api}.get(kind, self.resolve)(path)

    def api(self, path: str) -> None:
        if found := re.fullmatch(r"/api/v1/models/(\d+)", path):
            told = self.hub.civitai.get(int(found[1]))
            self.send(200 if told else 404, json.dumps(told or {"error": "no model"}).encode())
            return
        if path == "/api/models":
            self.send(200, json.dumps([self.hub.listing(name)
                                       for name in self.hub.repositories]).encode())
            return
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if not found or found[1] not in self.hub.repositories:
            self.send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif found[2] not in (None, "main", COMMIT):
            self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self.send(200, json.dumps(self.hub.listing(found[1])).encode())

    def resolve(self, path: str) -> None:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        content = self.hub.repositories.get(found[1], {}).get(found[3]) if found else None
        if content is None:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        headers = {"X-Repo-Commit": COMMIT}
        if len(content) < LARGE_BYTES:
            self.send(200, content, {**headers, "ETag": f'"{git_hash(content)}"'})
            return
        digest = sha256(content)
        self.hub.served.setdefault(digest, content)
        self.send(302, b"", {**headers, "X-Linked-Etag": f'"{digest}"',
                             "X-Linked-Size": str(len(content)),
                             "Location": f"{self.hub.cdn}/cdn/{digest}"})

    def content(self, path: str, etag: str = "") -> None:
        content = self.hub.served[path.rpartition("/")[2]]
        tag = f'"{etag or path[-8:]}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, tag)
        if asked is None or not same:
            self.send(200, content, {"ETag": tag, "Accept-Ranges": "bytes"})
            return
        start, end = int(asked[1]), int(asked[2] or len(content) - 1)
        if start >= len(content):
            self.send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        part = content[start:end + 1]
        self.send(206, part, {"ETag": tag, "Content-Range":
                              f"bytes {start}-{start + len(part) - 1}/{len(content)}"})

    def send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None,
             sent: int | None = None) -> None:
        """An answer, of which only so many bytes are `sent` before the connection ends."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if sent is None else content[:sent])
        if sent is not None:
            self.wfile.flush()
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no error here."""


@contextmanager
def served() -> Iterator[HubServer]:
    """A hub on loopback, whose content is served by a second host."""
    hub = HubServer()
    handler = type("Handler", (Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url, hub.cdn = (f"http://127.0.0.1:{each.server_address[1]}" for each in servers)
    for each in servers:
        threading.Thread(target=each.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        for each in servers:
            each.shutdown()
            each.server_close()
