"""The store of what was measured: nothing is lost, nothing damaged is believed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from smalti.errors import InputError
from smalti.tune.store import (
    LAYOUT,
    NAME,
    MeasuredSchedule,
    MeasurementScope,
    ScheduleStore,
    digest,
)

SCOPE = MeasurementScope("a CPU", "avx2", 2, "f32", "code")
SLOW, FAST, WRONG = (
    MeasuredSchedule(f"MapSchedule(grain={n}, unroll=2, inner=1)", seconds, ratio, verified)
    for n, seconds, ratio, verified in (
        (1, 2e-6, 1.0, True), (2, 3e-6, 0.8, True), (3, 1e-6, 0.5, False)))


@pytest.fixture
def store(tmp_path: Path) -> ScheduleStore:
    """A store in a folder that does not exist yet."""
    return ScheduleStore(tmp_path / "not" / "yet" / NAME)


def test_the_best_is_the_one_of_the_least_ratio_that_was_verified(store: ScheduleStore) -> None:
    assert store.best(SCOPE) == {} and not store.path.exists()
    store.note(SCOPE, "kernel", [SLOW, WRONG])
    store.note(SCOPE, "kernel", [FAST])
    found = store.best(SCOPE)[digest("kernel")]
    assert replace(found, at="") == FAST and found.at
    assert [m.schedule for m in store.known(SCOPE, digest("kernel"))] == [
        WRONG.schedule, FAST.schedule, SLOW.schedule]
    store.note(SCOPE, "kernel", [replace(FAST, ratio=1.2)])
    assert store.best(SCOPE) == {}, "no faster than the first choice"


@pytest.mark.parametrize("other", [
    {"device": "another"}, {"level": "avx512"}, {"threads": 1}, {"precision": "bf16"},
    {"code": "edited"}, {"driver": "1.0"}, {"objective": "energy"}])
def test_what_was_measured_elsewhere_does_not_count(store: ScheduleStore, other: dict) -> None:
    store.note(SCOPE, "kernel", [FAST])
    assert store.best(replace(SCOPE, **other)) == {}


def write_many(path: Path, who: int) -> None:
    for n in range(20):
        ScheduleStore(path).note(SCOPE, f"kernel {who} {n}", [FAST])


def test_processes_write_at_the_same_time(store: ScheduleStore) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(store.path, who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(store.best(SCOPE)) == 60


def write_and_die(path: Path) -> None:
    import os

    ScheduleStore(path).note(SCOPE, "kept", [FAST])
    known = sqlite3.connect(path)
    known.execute("BEGIN IMMEDIATE")
    known.execute("DELETE FROM measured")
    os._exit(9)


def test_a_process_that_dies_in_the_middle_loses_nothing(store: ScheduleStore) -> None:
    one = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(store.path,))
    one.start()
    one.join()
    assert one.exitcode == 9 and list(store.best(SCOPE)) == [digest("kept")]


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_file_is_moved_aside(store: ScheduleStore, content: bytes,
                                       caplog: pytest.LogCaptureFixture) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        store.note(SCOPE, "kernel", [FAST])
    assert len(store.best(SCOPE)) == 1
    (aside,) = (p for p in store.path.parent.iterdir() if p.name.startswith(f"{NAME}.2"))
    assert aside.read_bytes() == content and aside.name in caplog.text


@pytest.mark.parametrize("layout", [1, LAYOUT + 1])
def test_a_file_of_another_layout_is_moved_aside(store: ScheduleStore, layout: int,
                                                 caplog: pytest.LogCaptureFixture) -> None:
    store.note(SCOPE, "kernel", [FAST])
    known = sqlite3.connect(store.path)
    known.execute(f"PRAGMA user_version = {layout}")
    known.close()
    assert store.best(SCOPE) == {} and "layout" in caplog.text
    store.note(SCOPE, "kernel", [FAST])
    assert len(store.best(SCOPE)) == 1


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = ScheduleStore(tmp_path / "file" / NAME)
    for _ in range(2):
        store.note(SCOPE, "kernel", [FAST])
    assert store.best(SCOPE) == {} and len(caplog.records) == 1


def test_one_store_takes_what_another_says(store: ScheduleStore, tmp_path: Path) -> None:
    store.note(SCOPE, "kernel", [SLOW, FAST])
    store.note(replace(SCOPE, threads=1), "another", [WRONG])
    other = ScheduleStore(tmp_path / "other")
    lines = list(store.lines())
    found = other.take([*lines, "\n"], SCOPE.code)
    assert found.taken == {SCOPE: 2, replace(SCOPE, threads=1): 1} == other.scopes()
    assert not found.refused and found.known == 0 and list(other.lines()) == lines
    assert other.take(lines, SCOPE.code).known == 3
    assert other.best(SCOPE) == store.best(SCOPE)


def entry(**changed: object) -> str:
    whole = {"kernel": "kernel", "device": "a CPU", "level": "avx2", "threads": 2,
             "precision": "f32", "code": "code", "driver": "", "objective": "latency",
             "schedule": SLOW.schedule, "seconds": 1e-6, "ratio": 1.0, "verified": True, "at": ""}
    return json.dumps({name: value for name, value in {**whole, **changed}.items()
                       if value is not None})


@pytest.mark.parametrize("line, why", [
    (entry(schedule="ContractionSchedule(tile_b=1, winograd=4)"), "has no winograd=4"),
    ("{", "no JSON"), ("[]", "no measurement"), (entry(ratio=None), "no measurement"),
    (entry(more=1), "no measurement"), (entry(threads="2"), "threads is '2', expected int"),
    (entry(seconds=-1.0), "expected a positive number"),
    (entry(ratio=float("nan")), "expected a positive number"),
    (entry(schedule="os.system('')"), "no schedule"),
    (entry(schedule="MapSchedule(grain=-1)"), "no size")])
def test_a_line_that_is_no_measurement_is_refused(store: ScheduleStore, line: str,
                                                  why: str) -> None:
    with pytest.raises(InputError, match=f"^line 2.*{why}"):
        store.take([entry(), line], "code")
    assert not list(store.lines())


def test_of_two_measurements_a_verified_one_counts_then_the_later_one(store: ScheduleStore) -> None:
    def after(*told: tuple[bool, str, float]) -> list[tuple[bool, str, float]]:
        store.path.unlink(missing_ok=True)
        for verified, at, ratio in told:
            store.take([entry(verified=verified, at=at, ratio=ratio)], "code")
        return [(each["verified"], each["at"], each["ratio"])
                for each in map(json.loads, store.lines())]

    old, new, wrong = (True, "2026-01", .9), (True, "2026-02", .8), (False, "2026-03", .7)
    for first, second, kept in ((old, new, new), (new, old, new), (old, wrong, old),
                                (wrong, old, old), (wrong, wrong, wrong)):
        assert after(first, second) == [kept]


def test_what_was_measured_with_other_code_is_refused(store: ScheduleStore) -> None:
    found = store.take([entry(), entry(code="older", driver="535.1", device="a GPU")], "code")
    [refused] = found.refused
    assert str(refused) == "a GPU, driver 535.1, avx2, threads 2, f32, latency, code older"
    assert [json.loads(line)["code"] for line in store.lines()] == ["code"]
