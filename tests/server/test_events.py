"""The events of all: what pages are told, that they agree, and that a slow one costs nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from served import HOST, SECONDS, Client

from smalti.server import archive as archive_module
from smalti.server import events as events_module
from smalti.server.archive import Archive
from smalti.server.events import Events, LoopEvents
from smalti.server.queue import JobQueue

APPLE: dict[str, Any] = {"prompt": "a red apple", "model": "tiny", "steps": 2}


class Page:
    """What a page hears, in a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self.heard: list[tuple[str, Any]] = []
        self._connection, self._news = connection, threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        name = ""
        for line in self._connection.makefile("rb"):
            text = line.decode().strip()
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                with self._news:
                    self.heard.append((name, json.loads(text.removeprefix("data: "))))
                    self._news.notify_all()

    def leave(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)
        self._connection.close()

    def until(self, wanted: Any) -> Any:
        """The first thing heard that is `wanted(name, data)`."""
        with self._news:
            assert self._news.wait_for(lambda: any(wanted(*each) for each in self.heard), SECONDS)
            return next(data for name, data in self.heard if wanted(name, data))


@contextmanager
def page(client: Client) -> Iterator[Page]:
    connection = socket.create_connection((HOST, client.port), SECONDS)
    connection.sendall(f"GET /api/events HTTP/1.0\r\nHost: {HOST}:{client.port}\r\n\r\n".encode())
    found = Page(connection)
    try:
        yield found
    finally:
        found.leave()


def test_two_pages_hear_the_same_of_all_that_changes(client: Client) -> None:
    with page(client) as first, page(client) as second:
        for each in (first, second):
            hello = each.until(lambda name, data: name == "hello")
            assert hello["paused"] is False and hello["version"]
        client.post("/api/jobs/pause")
        id = client.post("/api/jobs", APPLE).json["id"]
        for each in (first, second):
            each.until(lambda name, data: name == "queue" and data["paused"] and (
                data["order"] == [id]))
        client.post("/api/jobs/pause", {"paused": False})
        ended = [each.until(lambda name, data: name == "job" and data["state"] == "done")
                 for each in (first, second)]
        assert ended[0] == ended[1] == client.get(f"/api/jobs/{id}").json
        for each in (first, second):
            made = each.until(lambda name, data: name == "picture")
            assert made == ended[0]["pictures"][0]
            each.until(lambda name, data: name == "queue" and not data["order"])
        at = f"/api/pictures/{made['id']}"
        client.post(f"{at}/favourite")
        for each in (first, second):
            each.until(lambda name, data: name == "picture" and data["favourite"])
        with page(client) as late:
            told = late.until(lambda name, data: name == "hello")
            assert told["jobs"][0] == {**ended[0], "pictures": [{**made, "favourite": True}]}
        client.ask("DELETE", at)
        for each in (first, second):
            each.until(lambda name, data: name == "removed" and data["id"] == made["id"])
            each.until(lambda name, data: name == "job" and data["state"] == "done" and (
                not data["pictures"]))


def test_nothing_is_noted_where_nobody_listens(client: Client) -> None:
    with page(client) as one:
        one.until(lambda name, data: name == "hello")
        assert client.site.events.watched
    client.made(**APPLE)
    for _ in range(100):
        if not client.site.events.watched:
            break
        threading.Event().wait(0.05)
    assert not client.site.events.watched and not client.site.queue._watchers


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue(Archive(tmp_path / "a.sqlite"))


async def said(stream: AsyncGenerator[bytes, None]) -> list[tuple[str, Any]]:
    """What the next part of a stream says."""
    text = (await asyncio.wait_for(anext(stream), SECONDS)).decode()
    return [(part.split("\n")[0].removeprefix("event: "),
             json.loads(part.split("\n")[1].removeprefix("data: ")))
            for part in text.split("\n\n") if part]


def test_the_end_of_a_job_is_told_at_once(queue: JobQueue, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    """Others wait for the next round, which here never comes."""
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 10 * SECONDS)

    async def scenario() -> None:
        events = LoopEvents(queue)
        stream = events.stream()
        await said(stream)
        queue.submit({"prompt": "a"})
        await said(stream)
        job = queue.take("cpu")
        assert job is not None
        queue.advance(job.id, step=1, steps=2)
        queue.fail(job, "InputError", "no")
        found = [data for name, data in await said(stream) if name == "job"]
        assert [each["state"] for each in found] == ["failed"]
        await stream.aclose()
        queue.stop()

    asyncio.run(scenario())


def test_how_far_a_job_is_is_told_without_a_thread_and_the_archive(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is made pays for all that its server does meanwhile."""
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 0.001)
    id = queue.submit({"prompt": "a"}).id

    async def scenario() -> None:
        events = LoopEvents(queue)
        everything = events.stream()
        await said(everything)
        queue.take("cpu")
        while ("queue", {"order": [], "paused": False}) not in await said(everything):
            pass
        monkeypatch.setattr(events, "_said", None)  # what threads run
        monkeypatch.setattr(events, "_state_of", None)
        one = events.stream(id)
        queue.advance(id, step=1, steps=2)
        for each in (one, everything):
            (name, job), = await said(each)
            assert (name, job["state"], job["progress"]["step"]) == ("job", "running", 1)
            await each.aclose()
        queue.stop()

    asyncio.run(scenario())


def test_of_a_job_only_the_last_state_waits_for_a_page(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 0.001)

    async def scenario() -> None:
        events = LoopEvents(queue)
        slow, quick = events.stream(), events.stream()
        for each in (slow, quick):
            assert [name for name, _ in await said(each)] == ["hello"]
        id = queue.submit({"prompt": "a"}).id
        queue.take("cpu")
        for step in range(1, 6):
            queue.advance(id, step=step, steps=5)
            while not any(name == "job" and data["progress"]["step"] == step
                          for name, data in await said(quick)):
                pass
        found = await said(slow)
        assert sorted(name for name, _ in found) == ["job", "queue"]
        assert [data["progress"]["step"] for name, data in found if name == "job"] == [5]
        for each in (slow, quick):
            await each.aclose()
        assert not events.listeners

    asyncio.run(scenario())


def test_a_page_that_takes_nothing_is_told_the_whole_state_again(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(events_module, "PENDING_BYTES_MAX", 5000)

    async def scenario() -> None:
        events = LoopEvents(queue)
        stream = events.stream()
        await said(stream)
        (listener,) = events.listeners
        ids = []
        for _ in range(40):
            ids.append(queue.submit({"prompt": "a" * 50}).id)
            await asyncio.sleep(0.002)
            assert sum(map(len, listener.pending.values())) <= 5000
        names, found = zip(*await said(stream), strict=True)
        assert names == ("hello",) and {each["id"] for each in found[0]["jobs"]} == {*ids}
        await stream.aclose()

    asyncio.run(scenario())


def test_pages_of_two_event_loops_hear_the_same(queue: JobQueue) -> None:
    events, heard = Events(queue), [[], []]
    there = threading.Barrier(3)

    async def listens(own: list[str]) -> None:
        stream = events.stream()
        ((name, _),) = await said(stream)
        own.append(name)
        await asyncio.to_thread(there.wait, SECONDS)
        while not {"job", "queue"} <= {*own}:
            own += [name for name, _ in await said(stream)]
        await stream.aclose()

    threads = [threading.Thread(target=asyncio.run, args=(listens(own),)) for own in heard]
    for each in threads:
        each.start()
    there.wait(SECONDS)
    assert events.watched
    queue.submit({"prompt": "a"})
    for each in threads:
        each.join(SECONDS)
    assert [sorted({*own}) for own in heard] == [["hello", "job", "queue"]] * 2
    assert not events.watched and not queue._watchers


def test_of_jobs_that_wait_the_first_ones_are_told_and_of_all_the_order(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "WAITING_TOLD", 2)
    ids = [queue.submit({"prompt": "a"}).id for _ in range(4)]

    async def scenario() -> None:
        stream = LoopEvents(queue).stream()
        ((name, hello),) = await said(stream)
        assert name == "hello" and [each["id"] for each in hello["jobs"]] == ids[:2]
        assert hello["order"] == ids and hello["jobs"][1]["place"] == 2
        await stream.aclose()

    asyncio.run(scenario())


def test_jobs_that_are_forgotten_are_gone(queue: JobQueue, monkeypatch: pytest.MonkeyPatch
                                          ) -> None:
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(archive_module, "JOBS_KEPT", 1)

    async def scenario() -> None:
        events = LoopEvents(queue)
        stream, heard = events.stream(), []
        await said(stream)
        ids = [queue.submit({"prompt": "a"}).id for _ in range(4)]
        for id in ids:
            queue.cancel(id)
            await asyncio.sleep(0.002)  # the clock of some systems does not tell them apart
        while ("gone", {"id": ids[0]}) not in heard:
            heard += await said(stream)
        await stream.aclose()

    asyncio.run(scenario())


@pytest.mark.sweep
def test_a_page_that_reads_nothing_holds_nobody_up_and_takes_no_memory(client: Client) -> None:
    client.post("/api/jobs/pause")
    deaf = socket.create_connection((HOST, client.port), SECONDS)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(f"GET /api/events HTTP/1.0\r\nHost: {HOST}:{client.port}\r\n\r\n".encode())
    with page(client) as other:
        ids = [client.post("/api/jobs", {**APPLE, "prompt": "a" * 30_000}).json["id"]
               for _ in range(120)]
        # told of the last one, or where much was to be told meanwhile, told the whole state anew
        other.until(lambda name, data: name == "job" and data["id"] == ids[-1] or name == "hello"
                    and any(job["id"] == ids[-1] for job in data["jobs"]))
        most = max(sum(map(len, each.pending.values()))
                   for events in client.site.events._all() for each in events.listeners)
        assert most <= events_module.PENDING_BYTES_MAX
        for id in ids:
            client.ask("DELETE", f"/api/jobs/{id}")
        other.until(lambda name, data: name == "queue" and not data["order"] or name == "hello"
                    and data["jobs"] and all(job["state"] == "cancelled" for job in data["jobs"]))
    deaf.close()
    client.post("/api/jobs/pause", {"paused": False})


def test_a_state_that_is_told_is_never_followed_by_an_older_one(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round reads a job; the job ends; a page connects: its whole state is the last word."""
    monkeypatch.setattr(events_module, "ROUND_SECONDS", 0.001)
    reads, read, ended = LoopEvents._said, threading.Event(), threading.Event()

    def lags(self: LoopEvents, *given: Any) -> Any:
        found = reads(self, *given)
        read.set()
        assert ended.wait(SECONDS)
        return found

    monkeypatch.setattr(LoopEvents, "_said", lags)

    async def scenario() -> None:
        events = LoopEvents(queue)
        first = events.stream()
        await said(first)
        queue.submit({"prompt": "a"})
        job = queue.take("cpu")
        assert job is not None
        await asyncio.to_thread(read.wait, SECONDS)
        late = events.stream()
        hello = asyncio.create_task(said(late))
        await asyncio.sleep(0.01)
        queue.fail(job, "NumericsError", "NaN")
        ended.set()
        states = [each["state"] for _, data in await hello for each in data["jobs"]]
        assert states == ["failed"]
        later = await said(late)
        assert [data["state"] for name, data in later if name == "job"] in ([], ["failed"])
        for each in (first, late):
            await each.aclose()

    asyncio.run(scenario())


def test_streams_end_with_the_server(queue: JobQueue) -> None:
    async def scenario() -> None:
        events = LoopEvents(queue)
        stream = events.stream()
        await said(stream)
        queue.stop()
        async with asyncio.timeout(SECONDS):
            assert len([part async for part in stream]) <= 1
        assert not events.listeners

    asyncio.run(scenario())
