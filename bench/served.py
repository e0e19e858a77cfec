"""A server as a process of its own, and clients that speak plain HTTP to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
SECONDS_MAX = 600.0
"""That anything may take; what takes longer hangs."""
LOOK_SECONDS = 0.002
"""Between two attempts to reach a server that starts."""
LINKED = re.compile(r'(?:src|href)="(/[^"]+)"')
IMPORTED = re.compile(r'(?:from|import)\s*"(\.{1,2}/[^"]+)"')


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


class Server:
    """`smalti serve` with results in `folder`; `seconds` is how long the first answer took."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.port = folder, free_port()
        command = [sys.executable, "-m", "smalti", "serve", "--port", str(self.port), "--output",
                   str(folder), *arguments]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.get("/internal/ping")
                break
            except ConnectionRefusedError:
                if self.process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended") from None
                time.sleep(LOOK_SECONDS)
        self.seconds = time.perf_counter() - self.began

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """A request on a connection of its own: the status, and what is answered."""
        link = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS_MAX)
        try:
            sent = None if body is None else json.dumps(body).encode()
            link.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def get(self, path: str) -> Any:
        """The JSON at an address."""
        return json.loads(self.ask("GET", path)[1])

    def submit(self, **request: Any) -> str:
        """The id of a new job."""
        status, content = self.ask("POST", "/api/jobs", request)
        if status != 201:
            raise SystemExit(f"the job is refused: {content.decode()}")
        return str(json.loads(content)["id"])

    def events(self, id: str) -> Iterator[dict[str, Any]]:
        """A job whenever it changes, until it has ended."""
        link = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS_MAX)
        try:
            link.request("GET", f"/api/jobs/{id}/events")
            answer, name = link.getresponse(), ""
            while line := answer.readline().decode().rstrip("\n"):
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "data" and name in ("job", "hello"):
                    said = json.loads(value)
                    jobs = said["jobs"] if name == "hello" else [said]
                    yield from (each for each in jobs if each["id"] == id)
                    answer.readline()
        finally:
            link.close()

    def ended(self, id: str) -> dict[str, Any]:
        """A job when it has ended."""
        *_, last = self.events(id)
        return last

    def page(self) -> dict[str, int]:
        """All that a browser loads before the page can be used: addresses, and their bytes."""
        loaded: dict[str, int] = {}
        wanted = ["/"]
        while wanted:
            path = wanted.pop()
            if path in loaded:
                continue
            status, content = self.ask("GET", path)
            if status != 200:
                raise SystemExit(f"{path} of the page is answered with {status}")
            loaded[path] = len(content)
            text = content.decode(errors="replace")
            wanted += [each for each in LINKED.findall(text) if path == "/"]
            if path.endswith(".js"):
                wanted += [os.path.normpath(os.path.join(os.path.dirname(path), each))
                           for each in IMPORTED.findall(text)]
        return loaded

    def hello(self) -> None:
        """The first event that a page hears."""
        link = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS_MAX)
        try:
            link.request("GET", "/api/events")
            answer = link.getresponse()
            while not answer.readline().startswith(b"event: hello"):
                pass
        finally:
            link.close()

    def resident(self) -> int:
        """Bytes of memory of the process (Linux)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise SystemExit("the server has ended")

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as its user does."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server, which is stopped at the end."""
    server = Server(folder, *arguments)
    try:
        yield server
    finally:
        server.stop()


# clients that ask again and again, in a process of their own


@contextmanager
def polling(port: int, clients: int, every: float, paths: Sequence[str]
            ) -> Iterator[dict[str, list[float]]]:
    """Inside, `clients` ask for the paths in turn, each time `every` seconds after the last one.
    The seconds of each answer, by path, are there at the end."""
    told, end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_poll, args=(end, port, clients, every, tuple(paths)))
    process.start()
    found: dict[str, list[float]] = {}
    told.recv()  # all are connected
    try:
        yield found
    finally:
        told.send("end")
        found.update(told.recv())
        process.join()


def _poll(link: Connection, port: int, clients: int, every: float, paths: tuple[str, ...]) -> None:
    """The process of all clients."""
    found: dict[str, list[float]] = {path: [] for path in paths}

    async def client(at: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        turn = at
        await asyncio.sleep(every * at / clients)  # they do not ask all at once
        while True:
            path = paths[turn % len(paths)]
            turn += 1
            began = time.perf_counter()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                raise SystemExit(f"{path} is answered with {head[:40]!r}")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            took = time.perf_counter() - began
            found[path].append(took)
            await asyncio.sleep(max(0.0, every - took))

    async def all_clients() -> None:
        tasks = [asyncio.create_task(client(at)) for at in range(clients)]
        link.send("ready")
        await asyncio.to_thread(link.recv)
        failed = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        if failed:
            raise SystemExit(f"a client ended: {failed[0]!r}")

    asyncio.run(all_clients())
    link.send(found)
