"""The SQLite file: what is kept, in which order, and who may open it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.errors import InputError, OutputError
from smalti.server.archive import (
    ATTEMPTS_MAX,
    CANCELLED,
    DONE,
    QUEUED,
    RUNNING,
    Archive,
    JobRecord,
    PictureRecord,
)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "a.sqlite")


def job(id: str) -> JobRecord:
    return JobRecord(id, QUEUED, 0.0, {"prompt": id}, None, 1.0)


def test_a_job_ends_once(archive: Archive) -> None:
    archive.add(job("a"))
    begun = archive.begin("cpu")
    assert begun is not None and begun.state == RUNNING and archive.begin("cpu") is None
    assert archive.end(replace(begun, state=DONE))
    assert not archive.end(replace(begun, state=CANCELLED))
    found = archive.job("a")
    assert found is not None and found.state == DONE and found.ended is not None


def test_jobs_are_listed_as_they_run_wait_and_ended(archive: Archive) -> None:
    for id in "abcde":
        archive.add(job(id))
    for id in "ab":
        begun = archive.begin("cpu")
        assert begun is not None and begun.id == id
        archive.end(replace(begun, state=DONE if id == "a" else CANCELLED))
    archive.begin("cpu")
    assert "".join(each.id for each in archive.jobs()) == "cdeba"
    assert "".join(each.id for each in archive.jobs(limit=2)) == "cd"
    assert [each.id for each in archive.jobs(QUEUED)] == ["d", "e"]
    assert [each.id for each in archive.jobs(DONE)] == ["a"]
    plan = archive._all("EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE state = ? ORDER BY position "
                        "LIMIT 9", RUNNING)
    assert "jobs_in_order" in plan[0][3], "whatever the number of jobs that have ended"


def test_jobs_begin_in_order_and_on_their_device(archive: Archive) -> None:
    for id in "abc":
        archive.add(job(id))
    archive.add(replace(job("d"), device="vulkan:0"))
    assert archive.move("c", 1) and not archive.move("none", 1)
    begun = [archive.begin("cpu") for _ in range(4)]
    assert [each and each.id for each in begun] == ["c", "a", "b", None]
    last = archive.begin("vulkan:0")
    assert last is not None and last.id == "d"


def test_pictures_come_with_the_end_of_their_job_or_not_at_all(archive: Archive) -> None:
    archive.add(job("a"))
    begun = archive.begin("cpu")
    assert begun is not None
    picture = PictureRecord(0, "a", "x.png", 1.0, 8, 8, 2**64 - 1, "m", "a cat", "a cat\nSteps: 1")
    assert not archive.end(replace(begun, state=DONE), (QUEUED,), [picture])
    assert archive.pictures() == []
    archive.end(replace(begun, state=DONE), (RUNNING,), [picture, picture])
    found = archive.pictures(job="a")
    assert [each.id for each in found] == [2, 1] and found[0].seed == 2**64 - 1
    assert [each.id for each in archive.pictures(search="CAT steps")] == [2, 1]
    assert archive.pictures(search="cat dog") == [] and len(archive.pictures(before=2)) == 1


def test_what_ran_when_the_process_ended_waits_again_where_it_stood(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a.sqlite")
    archive.add(job("a"))
    archive.add(job("b"))
    for attempt in range(1, ATTEMPTS_MAX + 1):
        begun = archive.begin("cpu")
        assert begun is not None and (begun.id, begun.attempts) == ("a", attempt)
        archive.close()
        archive = Archive(tmp_path / "a.sqlite")
        assert [each.id for each in archive.recover()] == ["a"]
    failed = archive.job("a")
    assert failed is not None and f"ended {ATTEMPTS_MAX} times" in (failed.message or "")
    assert archive.order() == ["b"]


def test_a_file_is_of_one_server(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another smalti serve uses"):
        Archive(tmp_path / "a.sqlite")


def test_a_damaged_file_and_one_that_cannot_be_are_told(tmp_path: Path) -> None:
    (tmp_path / "b.sqlite").write_bytes(b"no data base" * 100)
    with pytest.raises(InputError, match="is damaged"):
        Archive(tmp_path / "b.sqlite")
    with pytest.raises(OutputError, match="cannot be opened"):
        Archive(tmp_path / "none" / "c.sqlite")


def test_a_file_of_the_first_format_is_changed_into_todays(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "a.sqlite")
    base.executescript("""
        PRAGMA user_version = 1;
        CREATE TABLE jobs (
            id TEXT PRIMARY KEY, state TEXT NOT NULL, position REAL NOT NULL, request TEXT NOT NULL,
            whole TEXT NOT NULL, device TEXT, created REAL NOT NULL, started REAL, ended REAL,
            attempts INTEGER NOT NULL,
            error TEXT, message TEXT, warnings TEXT NOT NULL, timings TEXT NOT NULL);
        CREATE INDEX jobs_in_order ON jobs (state, position);
        CREATE INDEX jobs_by_end ON jobs (ended);
        CREATE TABLE pictures (
            id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, path TEXT NOT NULL,
            created REAL NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
            seed TEXT NOT NULL, model TEXT NOT NULL, prompt TEXT NOT NULL, text TEXT NOT NULL);
        CREATE INDEX pictures_of_job ON pictures (job);
        CREATE TABLE switches (name TEXT PRIMARY KEY, value TEXT NOT NULL);
        INSERT INTO jobs VALUES ('b', 'queued', 1, '{}', '{}', NULL, 1, NULL, NULL, 0, NULL, NULL,
                                 '[]', '{}');
        INSERT INTO pictures VALUES (3, 'a', 'x.png', 1, 8, 8, '7', 'm', 'a cat', 'a cat');
    """)
    base.close()
    archive = Archive(tmp_path / "a.sqlite")
    (old,) = archive.pictures()
    assert (old.id, old.favourite, archive.order()) == (3, False, ["b"])
    archive.mark(3, True)
    archive.keep_hash("m.safetensors", 1, 2, "abc")
    archive.close()
    archive = Archive(tmp_path / "a.sqlite")
    assert archive.pictures(favourite=True)[0].favourite and not archive.pictures(favourite=False)
    assert archive.hash("m.safetensors", 1, 2) == "abc"
    assert archive.hash("m.safetensors", 2, 2) is None
    archive.close()
    base = sqlite3.connect(tmp_path / "a.sqlite")
    base.execute("PRAGMA user_version = 99")
    base.close()
    with pytest.raises(InputError, match="is of format 99, this Smalti reads up to"):
        Archive(tmp_path / "a.sqlite")


def steps_of(archive: Archive, ask: Callable[[], object]) -> int:
    """How many hundreds of instructions SQLite takes for something."""
    counted: list[None] = []
    archive._base.set_progress_handler(lambda: counted.append(None), 100)
    ask()
    archive._base.set_progress_handler(None, 0)
    return len(counted)


def test_the_pictures_of_a_job_are_found_however_many_others_there_are(archive: Archive) -> None:
    for name in ("a", "b"):
        archive.add(job(name))
        begun = archive.begin("cpu")
        assert begun is not None
        record = PictureRecord(0, name, "p.png", 1.0, 8, 8, 7, "m", "a", "a text")
        archive.end(replace(begun, state=DONE), pictures=[record] * (1 if name == "a" else 3000))
    assert [each.job for each in archive.pictures(job="a")] == ["a"]
    assert steps_of(archive, lambda: archive.pictures(job="a")) < 5


def test_requests_that_wait_are_counted_without_reading_them_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a.sqlite")
    for name in "abc":
        archive.add(replace(job(name), request={"image": "x" * 1000}))
    whole = archive.queued_bytes()
    assert whole > 3000
    archive.begin("cpu")
    read: list[str] = []
    archive._base.set_trace_callback(read.append)
    assert archive.queued_bytes() == whole * 2 // 3
    assert not [text for text in read if "whole" in text]
    archive._base.set_trace_callback(None)
    archive.close()
    assert Archive(tmp_path / "a.sqlite").queued_bytes() == whole * 2 // 3
