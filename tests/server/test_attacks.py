"""Attacks through real sockets: each is answered within a second, refused, and changes nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import HOST, PORT, Attack, all_attacks, request
from served import Client, opened, served

from smalti.server import connection, guard
from smalti.server.events import LISTENERS_MAX

SECONDS = float(os.environ.get("ATTACK_SECONDS", "10"))
"""An answer takes no longer; `bench/serve.py` asks for 1, on a computer that does nothing else."""
TOKEN = "a secret of this test"
SECRET = b"what no attack may show"


@pytest.fixture(scope="module")
def open_one(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A server with one picture."""
    with served(opened(tmp_path_factory.mktemp("open"), models)) as found:
        assert found.made(prompt="a", model="tiny", steps=1, seed=1)["state"] == "done"
        yield found


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A server that asks for a token."""
    with served(opened(tmp_path_factory.mktemp("closed"), models), TOKEN) as found:
        yield found


def exchanged(port: int, sent: bytes, to_the_end: bool = False) -> tuple[int, bytes, bytes]:
    """What a server answers: the status, 0 where it ends the connection, the head, the content."""
    until = time.monotonic() + SECONDS
    with socket.create_connection((HOST, port), SECONDS) as link:
        found = b""
        try:
            link.sendall(sent.replace(PORT, str(port).encode()))
            while to_the_end or not whole(found):
                link.settimeout(max(0.001, until - time.monotonic()))
                more = link.recv(1 << 16)
                if not more:
                    break
                found += more
        except (ConnectionResetError, BrokenPipeError):
            pass
        head, _, content = found.partition(b"\r\n\r\n")
        return int(head.split(maxsplit=2)[1]) if head else 0, head.lower(), content


def whole(found: bytes) -> bool:
    """Whether an answer has all of its content."""
    head, end, content = found.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end and length) and len(content) >= int(length[0].partition(b":")[2])


def state(client: Client) -> tuple[object, ...]:
    """What an attack may not change."""
    site = client.site
    files = sorted(str(path) for path in site.gallery.root.rglob("*") if path.suffix == ".png")
    return ([job.id for job in site.archive.jobs()], site.archive.paused, files,
            [each.id for each in site.archive.pictures()])


ATTACKS = all_attacks()


@pytest.mark.filterwarnings("ignore:Tag data larger", "ignore:Corrupt EXIF")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.title)
def test_an_attack_is_refused_and_changes_nothing(
        open_one: Client, closed: Client, attack: Attack) -> None:
    client = closed if attack.token else open_one
    before = state(client)
    status, head, content = exchanged(client.port, attack.sent, attack.ends)
    assert status in attack.expected | {0}, (head, content[:300])
    assert state(client) == before
    assert b"root:" not in content and b"import annotations" not in content
    assert not [line for line in head.split(b"\r\n")
                if line.startswith((b"access-control", b"set-cookie", b"upgrade", b"server:"))]
    assert not attack.ends or b"HTTP/1.1" not in content
    assert b"text/html" not in head and len(content) < 100_000
    if b"content-type: application/json" in head:
        assert b"x-content-type-options: nosniff" in head
    assert b'"defect"' not in content.lower()


def test_there_are_attacks_of_all_kinds() -> None:
    assert len(ATTACKS) >= 60 and len({attack.title for attack in ATTACKS}) == len(ATTACKS)


def test_a_token_is_compared_in_constant_time(closed: Client, monkeypatch: pytest.MonkeyPatch
                                              ) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(guard.hmac, "compare_digest",
                        lambda given, own: bool(compared.append((given, own))))
    for wrong in (TOKEN[:-1], "b" + TOKEN[1:], TOKEN, "x"):
        assert exchanged(closed.port, request("GET", "/api/jobs", [
            ("Authorization", f"Bearer {wrong}")]))[0] == 401
    assert len(compared) == 4 and {own for _, own in compared} == {TOKEN.encode()}


@pytest.mark.parametrize("kind", ["symbolic", "hard", "page"])
def test_what_is_put_in_the_place_of_a_picture_is_not_shown(
        open_one: Client, tmp_path: Path, kind: str) -> None:
    (picture,) = open_one.site.archive.pictures()
    file = open_one.site.gallery.root / picture.path
    content, secret = file.read_bytes(), tmp_path / "secret"
    secret.write_bytes(SECRET)
    file.unlink()
    try:
        if kind == "symbolic":
            file.symlink_to(secret)
        elif kind == "hard":
            file.hardlink_to(secret)
        else:
            file.write_bytes(b"<script>" + SECRET)
        for name in ("file", "thumbnail"):
            answer = open_one.get(f"/api/pictures/{picture.id}/{name}")
            assert answer.status in (404, 422) and SECRET not in answer.content
    finally:
        file.unlink()
        file.write_bytes(content)


def test_there_are_not_so_many_streams_that_nobody_else_is_answered(open_one: Client) -> None:
    links = []
    try:
        for _ in range(LISTENERS_MAX + 1):
            links.append(socket.create_connection((HOST, open_one.port), SECONDS))
            links[-1].sendall(request("GET", "/api/events").replace(
                PORT, str(open_one.port).encode()))
            assert links[-1].recv(12)[-3:] == (
                b"200" if len(links) <= LISTENERS_MAX else b"503")
        assert open_one.get("/internal/ping").status == 200
    finally:
        for link in links:
            link.close()
    until = time.monotonic() + 5 * SECONDS
    while open_one.site.events.watched:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_requests_that_do_not_end_hold_up_nobody(
        open_one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads and contents of which a byte comes now and then, and connections that say nothing."""
    monkeypatch.setattr(connection, "HEAD_SECONDS_MAX", 0.3)
    slow = [socket.create_connection((HOST, open_one.port), SECONDS) for _ in range(60)]
    try:
        for at, link in enumerate(slow):
            link.sendall([b"", b"GET /api/jobs HTTP/1.1\r\nHost: 127",
                          request("GET", "/internal/ping").replace(PORT, b"1") + b"G",
                          request("POST", "/api/jobs", [("Content-Length", "9"), (
                              "Content-Type", "application/json")])][at % 4])
        began = time.monotonic()
        assert open_one.get("/internal/ping").status == 200
        assert time.monotonic() - began < SECONDS
        for at, link in enumerate(slow):
            if at % 4 < 3:  # the content of a request has a minute
                link.settimeout(SECONDS * 3)
                while link.recv(1 << 16):
                    pass
    finally:
        for link in slow:
            link.close()


def test_more_connections_than_there_may_be_are_told_so(
        open_one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    links = []
    try:
        for _ in range(600):
            links.append(socket.create_connection((HOST, open_one.port), SECONDS))
        status, head, _ = exchanged(open_one.port, request("GET", "/internal/ping"))
        assert status == 503 and b"retry-after" not in head
    finally:
        for link in links:
            link.close()
    until = time.monotonic() + 5 * SECONDS
    while exchanged(open_one.port, request("GET", "/internal/ping"))[0] != 200:
        assert time.monotonic() < until
        time.sleep(0.05)
