"""Pictures that replicas make for a server: the same ones, and every end of a job."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from served import SECONDS, full_once, opened

from smalti.server import on_ray
from smalti.server.archive import (
    ATTEMPTS_MAX,
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    JobRecord,
)
from smalti.server.messages import Advanced, Finished, Message
from smalti.server.remote import ReplicaLostError, Send
from smalti.server.replica import PictureReplica, Relay
from smalti.server.site import Site

APPLE = {"prompt": "a red apple", "model": "tiny", "steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def replica(models: Path) -> PictureReplica:
    return PictureReplica([models], "cpu", threads=1)


def over_a_network(replica: PictureReplica) -> Send:
    """Jobs and what is told of them are pickled on their way."""
    def send(job: JobRecord) -> Generator[Message, None, None]:
        for message in replica.make(pickle.loads(pickle.dumps(job))):
            yield pickle.loads(pickle.dumps(message))

    return send


@pytest.fixture
def site(tmp_path: Path, models: Path, replica: PictureReplica) -> Iterator[Site]:
    found = Site(tmp_path, [models], send=over_a_network(replica))
    found.start()
    yield found
    found.stop()


def made(site: Site, **request: Any) -> JobRecord:
    return site.queue.wait(site.queue.submit({**APPLE, **request}).id, SECONDS)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_pictures_are_those_of_a_server_that_makes_them(site: Site, tmp_path: Path, models: Path,
                                                        count: int) -> None:
    local = opened(tmp_path / "local", models)
    local.start()
    files = []
    for each in (site, local):
        job = made(each, batch_size=count)
        assert (job.state, job.message) == (DONE, None) and job.timings["denoise"] > 0
        files.append([each.gallery.file(picture) for picture in each.archive.pictures(job=job.id)])
    local.stop()
    assert len(files[0]) == count
    for ours, theirs in zip(*files, strict=True):
        with Image.open(ours) as one, Image.open(theirs) as other:
            assert one.tobytes() == other.tobytes() and one.info == other.info
    assert [worker.place for worker in site.workers] == ["cluster"]


def test_steps_and_previews_come_while_a_picture_is_made(site: Site) -> None:
    shown: dict[int, bytes] = {}

    def watch(id: str) -> None:
        latest = site.previews.shown(id)
        if latest is not None:
            shown[latest.number] = latest.jpeg

    with site.queue.watching(watch):
        assert made(site, steps=200).state == DONE
    assert shown and all(each.startswith(b"\xff\xd8") for each in shown.values())


def test_errors_are_those_of_the_job(site: Site) -> None:
    job = made(site, model="none")
    assert job.state == FAILED and "no model is named" in (job.message or "")
    assert made(site).state == DONE


def test_a_job_that_is_cancelled_stops_there(site: Site, replica: PictureReplica) -> None:
    asked: set[str] = set()

    def watch(id: str) -> None:
        progress = site.queue.progress(id)
        if progress is not None and progress.step and id not in asked:
            asked.add(id)
            site.queue.cancel(id)

    with site.queue.watching(watch):
        assert made(site, steps=1000).state == CANCELLED
    assert replica._relay.unwanted("") and made(site).state == DONE


def test_a_replica_of_serve_stops_what_is_cancelled(models: Path, replica: PictureReplica,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []
    advance, drop = Relay.advance, Relay.drop

    def held(self: Relay, id: str, **known: Any) -> None:
        advance(self, id, **known)
        if id == "one" and known.get("step"):
            self._unwanted.wait(SECONDS)

    def noted(self: Relay, job: JobRecord) -> None:
        dropped.append(job.id)
        drop(self, job)

    monkeypatch.setattr(Relay, "advance", held)
    monkeypatch.setattr(Relay, "drop", noted)
    monkeypatch.setattr(on_ray, "given_gpus", list)
    served = on_ray.Replica([], "cpu", {})
    served._made = replica
    begun = asyncio.Event()

    async def last(id: str) -> Message:
        job = JobRecord(id, RUNNING, 0.0, APPLE, None, 0.0)
        async for told in served.make(job, "tiny"):
            if isinstance(told, Advanced) and told.known.get("step"):
                begun.set()
        return told

    async def asked() -> Message:
        cancelled = asyncio.create_task(last("one"))
        await asyncio.wait_for(begun.wait(), SECONDS)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        return await asyncio.wait_for(last("two"), SECONDS)

    assert isinstance(asyncio.run(asked()), Finished) and dropped == ["one"]


def test_how_a_job_ended_is_noted_again_where_the_disk_is_full(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = full_once(monkeypatch)
    assert made(site).state == DONE and len(refused) == 1


@pytest.mark.parametrize("losses", [1, ATTEMPTS_MAX])
def test_a_job_whose_replica_is_lost_is_made_by_another(tmp_path: Path, models: Path, losses: int,
                                                        replica: PictureReplica) -> None:
    lost: list[str] = []

    def send(job: JobRecord) -> Generator[Message, None, None]:
        yield Advanced({"doing": "loading"})
        if len(lost) < losses:
            lost.append(job.id)
            raise ReplicaLostError("its node ended")
        yield from replica.make(job)

    site = Site(tmp_path, [models], send=send)
    site.start()
    job = made(site)
    site.stop()
    if losses < ATTEMPTS_MAX:
        assert job.state == DONE and len([*tmp_path.glob("*/*.png")]) == 1
    else:
        assert job.state == FAILED and "3 replicas ended" in (job.message or "")
