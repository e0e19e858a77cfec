"""`smalti batch`: pictures of a table, once each, whatever stops it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from PIL import Image

from smalti.batch import run as batch_run
from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord
from smalti.batch.worker import BatchWork
from smalti.cli import batch as command
from smalti.cluster import on_ray
from smalti.errors import InputError


def table(folder: Path, *rows: object) -> Path:
    path = folder / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def results(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results.csv", encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


@pytest.fixture
def arguments(model_path: Path, tmp_path: Path) -> list[object]:
    return ["-m", model_path, "-o", tmp_path / "out", "--device", "cpu", "--threads", "1"]


class FakeMaker:
    """Makes red pictures at once."""

    made: list[BatchRecord] = []

    def __init__(self, work: BatchWork) -> None:
        self._work = work

    into = classmethod(lambda cls, work: cls(work))

    def make(self, record: BatchRecord) -> BatchOutcome:
        self.made.append(record)
        if record.options["prompt"] == "bad":
            return BatchOutcome(record.digest, error="steps are too many for this model")
        Image.new("RGB", (9, 9), "red").save(self._work.folder / record.file)
        return BatchOutcome(record.digest, .1, 9, 9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeMaker]:
    monkeypatch.setattr(batch_run, "Maker", FakeMaker)
    monkeypatch.setattr(FakeMaker, "made", [])
    return FakeMaker


def test_what_is_there_is_not_made_again(
        arguments: list[object], tmp_path: Path, fake: type[FakeMaker]) -> None:
    path = table(tmp_path, {"prompt": "a", "seed*": "1..3"}, "b", "b")
    told = run("batch", path, *arguments)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0] == \
        "5 pictures, 1 of them twice: 0 are there, 4 are to be made"
    assert "5 pictures, results.csv, contact-sheet.png" in told.stdout
    rows = results(tmp_path / "out")
    assert [row["seed"] for row in rows] == ["1", "2", "3", "7", "7"]  # 7 is the usual one
    assert rows[3]["file"] == rows[4]["file"]
    (tmp_path / "out" / rows[1]["file"]).unlink()
    assert "3 are there, 1 are to be made" in run("batch", path, *arguments).stdout
    assert len(fake.made) == 5
    run("batch", path, *arguments, "--steps", "3", "--sweep", "sampler=euler|heun")
    assert len(fake.made) == 5 + 2 * 4


def test_a_cluster_is_needed_only_where_something_is_to_be_made(
        arguments: list[object], tmp_path: Path, fake: type[FakeMaker],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    path = table(tmp_path, "a")
    run("batch", path, *arguments)
    told = run("batch", path, *arguments, "--ray", "auto")
    assert told.exit_code == 0 and "1 are there, 0 are to be made" in told.stdout, told.output
    told = run("batch", table(tmp_path, "b"), *arguments, "--ray", "auto")
    assert told.exit_code == 2 and "Ray is not installed: pip install" in told.stderr
    refused(run("batch", table(tmp_path, {"step": 3}), *arguments, "--ray", "auto"),
            "p.jsonl:1: ")


def test_a_cluster_that_is_gone_once_joined_is_left_and_told_of_where_it_is_needed(
        arguments: list[object], tmp_path: Path, fake: type[FakeMaker],
        monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []

    class Gone:
        def begin_ahead(self, module: str, cores: object) -> None:
            raise InputError("its head is gone")

        def close(self) -> None:
            left.append(True)

    monkeypatch.setattr(on_ray, "joined", lambda address: Gone())
    path = table(tmp_path, "a")
    told = run("batch", path, *arguments, "--ray", "auto")
    assert told.exit_code == 2 and "its head is gone" in told.stderr, told.output
    run("batch", path, *arguments)
    told = run("batch", path, *arguments, "--ray", "auto")
    assert told.exit_code == 0 and "0 are to be made" in told.stdout and left == [True, True]


def test_workers_have_ended_when_what_they_made_cannot_be_noted(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def work() -> Iterator[BatchOutcome]:
        try:
            yield BatchOutcome("a")
            yield BatchOutcome("b")
        finally:
            ended.append(True)

    def full(folder: BatchFolder, about: BatchOutcome) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(BatchFolder, "note", full)
    with pytest.raises(OSError, match="no space left") as held:  # with what was being gone through
        command._watch(work(), BatchFolder(tmp_path), [])
    assert ended and held.tb is not None


def test_records_that_fail_are_told_and_tried_again(
        arguments: list[object], tmp_path: Path, fake: type[FakeMaker]) -> None:
    path = table(tmp_path, "a", "bad")
    for number in (2, 1):
        told = run("batch", path, *arguments)
        assert told.exit_code == 2 and f"{number} are to be made" in told.stdout
        assert "1 of 2 pictures could not be made, such as that of p.jsonl:2: steps are" in \
            told.stderr
    assert [row["error"] for row in results(tmp_path / "out")] == [
        "", "steps are too many for this model"]


def test_a_log_has_lines_of_how_far_a_batch_is(
        arguments: list[object], tmp_path: Path, fake: type[FakeMaker],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TOLD_SECONDS", 0.0)
    told = run("batch", table(tmp_path, "a", "b"), *arguments)
    assert "1 of 2 pictures, about 0 minutes left\n2 of 2 pictures" in told.stderr


def test_a_dry_run_makes_nothing(arguments: list[object], tmp_path: Path) -> None:
    told = run("batch", table(tmp_path, "a"), *arguments, "--dry-run")
    assert told.stdout == "1 pictures: 0 are there, 1 are to be made\n"
    assert not [*(tmp_path / "out").glob("*.png")]


@pytest.mark.parametrize(("row", "more", "said"), [
    ({"prompt": "a", "stepz": 1}, (), "did you mean steps"),
    ("a", ("--sweep", "seed"), "expected NAME=VALUES"),
    ("a", ("--sweep", "sed=1"), "there is no option sed; did you mean seed"),
    ("a", ("--workers", "0", "--dry-run"), "expected 1 to 64"),
    ("a", ("--ray", "nowhere", "--dry-run"), "expected auto, or HOST:PORT"),
    ("a", ("-m", "none.safetensors"), "none")])
def test_what_is_refused(arguments: list[object], tmp_path: Path, row: object,
                         more: tuple[str, ...], said: str) -> None:
    result = run("batch", table(tmp_path, row), *arguments, *more)
    assert result.exit_code == 2 and said in result.stderr, result.output


def test_threads_are_shared() -> None:
    assert [command._share(8, count) for count in (1, 3, 16)] == [8, 2, 1]


def test_a_table_that_is_none_is_one_message(arguments: list[object], tmp_path: Path) -> None:
    refused(run("batch", tmp_path / "p.txt", *arguments), "no table by its name")


@pytest.mark.sweep  # processes that load a model
def test_workers_make_the_same_pictures(
        arguments: list[object], tmp_path: Path, model_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, {"prompt": "a", "seed*": "1..4", "steps": 2},
                 {"prompt": "b", "width": 17, "height": 17})
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, workers in ((one, 1), (two, 2)):
        told = run("batch", path, *arguments, "-o", folder, "--workers", workers)
        assert "1 of 5 pictures could not be made, such as that of p.jsonl:2: width is" in \
            told.stderr
    files = sorted(each.name for each in one.glob("*.png"))
    assert len(files) == 5  # with the contact sheet
    for name in files:
        if not name.startswith("contact"):
            assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.sweep  # starts processes
def test_killed_at_random_moments_nothing_is_made_twice_and_nothing_is_missing(
        arguments: list[object], tmp_path: Path, environment: dict[str, str]) -> None:
    rows = [{"prompt": "a", "seed*": "1..16", "steps": 40}]
    asked = [sys.executable, "-m", "smalti", "batch", str(table(tmp_path, *rows)),
             *map(str, arguments), "--workers", "2", "--threads", "2"]
    out, kills = tmp_path / "out", 0
    while True:
        process = subprocess.Popen(asked, env=environment, stdout=subprocess.PIPE, text=True)
        before = len([*out.glob("*.png")])
        while process.poll() is None and len([*out.glob("*.png")]) < before + 4:
            time.sleep(.01)
        time.sleep(.005 * kills)  # somewhere within a picture
        if process.poll() is not None or kills == 3:
            told = process.communicate()[0]
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode == 0 and "16 pictures, results.csv" in told
    assert kills == 3
    digests = [json.loads(line)["digest"]
               for line in (out / ".smalti-batch/journal.jsonl").read_text().splitlines()]
    assert len(digests) == len({*digests})  # nothing twice
    assert len([*out.glob("*.png")]) == 17 and not [*out.glob("*.part")]
    for row in results(out):
        Image.open(out / row["file"]).load()


def dies(work: BatchWork, number: int, pipe: object) -> None:
    """A worker that dies of its first record."""
    os._exit(9)


@pytest.mark.sweep  # starts processes
def test_a_worker_that_dies_is_replaced_and_the_third_time_it_is_an_error(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "serve", dies)
    record = BatchRecord(1, "a:1", {"prompt": "a"}, {"prompt": "a"}, "0" * 64)
    [found] = batch_run.made([record], BatchWork(BatchFolder(tmp_path).path), 2, print)
    assert "died 3 times" in found.error


def test_workers_are_not_without_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers is 65"):
        [*batch_run.made([], BatchWork(BatchFolder(tmp_path).path), 65, print)]
