"""The queue: what waits, what runs, who hears of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from smalti.server import archive as archive_module
from smalti.server import queue as queue_module
from smalti.server.archive import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Archive
from smalti.server.queue import JobQueue, QueueFullError, QueueStateError, UnknownJobError


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue(Archive(tmp_path / "a.sqlite"))


def test_a_job_that_waits_is_cancelled_at_once(queue: JobQueue) -> None:
    job = queue.submit({"prompt": "a"})
    assert queue.cancel(job.id).state == CANCELLED
    assert queue.cancel(job.id).state == CANCELLED, "again is no error"


def test_a_job_that_runs_is_cancelled_by_its_worker(queue: JobQueue) -> None:
    id = queue.submit({"prompt": "a"}).id
    job = queue.take("cpu")
    assert job is not None and not queue.unwanted(id)
    assert queue.cancel(id).state == RUNNING and queue.unwanted(id)
    queue.drop(job)
    assert queue.job(id).state == CANCELLED and queue.progress(id) is None


def test_a_job_that_runs_when_the_server_stops_waits_for_the_next_start(queue: JobQueue) -> None:
    id = queue.submit({"prompt": "a"}).id
    job = queue.take("cpu")
    assert job is not None
    queue.stop()
    assert queue.unwanted(id) and queue.take("cpu") is None
    queue.drop(job)
    found = queue.job(id)
    assert (found.state, found.attempts) == (QUEUED, 0)


def test_what_has_ended_is_not_changed(queue: JobQueue) -> None:
    id = queue.submit({"prompt": "a", "image": "iVBO"}).id
    job = queue.take("cpu")
    assert job is not None
    queue.finish(job, [], ["a warning"], {"denoise": 1.0})
    queue.fail(job, "DeviceError", "too late")
    found = queue.job(id)
    assert (found.state, found.warnings, found.request["image"]) == (DONE, ["a warning"], None)
    for change in (queue.cancel, queue.retry, lambda id: queue.move(id, 1)):
        with pytest.raises(QueueStateError, match="is done"):
            change(id)
    with pytest.raises(UnknownJobError, match="there is no job 'none'"):
        queue.cancel("none")


def test_a_job_that_failed_is_tried_again_as_a_new_one(queue: JobQueue) -> None:
    first = queue.submit({"prompt": "a", "image": "iVBO"})
    job = queue.take("cpu")
    assert job is not None and job.request == first.request
    assert queue.job(first.id).request["image"] is None, "read when it is needed only"
    queue.fail(job, "NumericsError", "NaN in conv_1")
    again = queue.retry(first.id)
    assert again.id != first.id and again.request == first.request
    assert queue.job(first.id).state == FAILED


def test_pictures_of_requests_are_kept_for_the_last_jobs_only(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "REQUESTS_KEPT", 2)
    requests = [{"prompt": "a"}, {"prompt": "b", "image": "iVBO"}, {"prompt": "c", "image": "iVBO"},
                {"prompt": "d", "image": "iVBO"}]
    ids = [queue.submit(each).id for each in requests]
    for id in ids[:3]:
        job = queue.take("cpu")
        assert job is not None and job.id == id
        queue.fail(job, "NumericsError", "NaN in conv_1")
    queue.cancel(ids[3])
    assert queue.retry(ids[0]).request == requests[0], "it has no pictures"
    with pytest.raises(QueueStateError, match=f"job {ids[1]} was given are not kept any more"):
        queue.retry(ids[1])
    assert [queue.retry(id).request for id in ids[2:]] == requests[2:]


def test_a_paused_queue_begins_nothing(queue: JobQueue) -> None:
    queue.pause(True)
    id, taken = queue.submit({"prompt": "a"}).id, threading.Event()

    def take() -> None:
        queue.take("cpu")
        taken.set()

    threading.Thread(target=take, daemon=True).start()
    assert not taken.wait(0.05) and queue.job(id).state == QUEUED
    queue.pause(False)
    assert taken.wait(30) and queue.job(id).state == RUNNING


def test_the_queue_is_bounded(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "QUEUE_MAX", 2)
    queue.submit({})
    queue.submit({})
    with pytest.raises(QueueFullError, match="2 jobs wait already"):
        queue.submit({})
    monkeypatch.setattr(queue_module, "QUEUE_MAX", 9)
    monkeypatch.setattr(queue_module, "QUEUE_BYTES_MAX", 4)
    with pytest.raises(QueueFullError):
        queue.submit({})


def test_watchers_hear_of_each_change(queue: JobQueue) -> None:
    heard: list[str] = []
    states: list[str] = []
    with queue.watching(heard.append), queue.watching(states.append, steps=False):
        id = queue.submit({}).id
        queue.take("cpu")
        queue.advance(id, step=1, steps=2)
    queue.cancel(id)
    assert (heard, states) == ([id] * 3, [id] * 2)


def test_who_begins_to_watch_waits_for_no_disk(queue: JobQueue) -> None:
    """The thread that answers does so; a request with large pictures takes seconds to be kept."""
    entered = threading.Event()

    def watch() -> None:
        with queue.watching(lambda id: None):
            entered.set()

    with queue._changed:
        threading.Thread(target=watch, daemon=True).start()
        assert entered.wait(30)


def test_what_runs_and_how_many_wait_is_known_without_the_archive(queue: JobQueue) -> None:
    assert queue.waiting_known is None and queue.waiting() == 0 == queue.waiting_known
    id = queue.submit({"prompt": "a", "image": "iVBO"}).id
    assert queue.waiting_known is None and queue.waiting() == 1
    job = queue.take("cpu")
    assert job is not None and [each.id for each in queue.running()] == [id]
    running = queue.running_job(id)
    assert running is not None and running == queue.job(id), "without its picture"
    queue.advance(id, step=1, steps=2)
    assert queue.waiting() == 0
    queue.finish(job, [], [], {})
    assert queue.running() == [] and queue.running_job(id) is None


def test_a_job_that_ended_just_now_is_known_without_the_archive(
        queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "ENDED_KEPT", 2)
    ids = [queue.submit({"prompt": "a", "image": "iVBO"}).id for _ in range(3)]
    ends = (lambda job: queue.finish(job, [], [], {}), lambda job: queue.fail(job, "Defect", "no"),
            lambda job: queue.finish(job, [], ["a warning"], {"denoise": 1.5}))
    for end in ends:
        assert queue.at_hand(ids[2]) is None, "it waits, which the archive knows"
        job = queue.take("cpu")
        assert job is not None
        end(job)
    assert [queue.at_hand(id) for id in ids] == [None, *map(queue.job, ids[1:])]
    monkeypatch.setattr(archive_module, "JOBS_KEPT", 0)
    queue.fail(job, "Defect", "it has ended")
    assert queue.at_hand(ids[1]) is None is queue.known(ids[1])
