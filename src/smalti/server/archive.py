"""Jobs and pictures in one SQLite file, so that a server that is started again goes on.

Each change of a job's state is one transaction that names the state it comes from. So a job ends
once, whoever else wants to end it at the same time, and whenever the process is killed.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import InputError, OutputError

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
STATES = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)
ENDED = (DONE, FAILED, CANCELLED)
FORMAT = 2
"""Of the tables below; those before are changed into it, a later one is refused."""
ATTEMPTS_MAX = 3
"""Times that a job is begun: one that ended the process so often (out of memory, a driver that
crashes) would do it for ever."""
JOBS_KEPT = 10_000
"""Jobs that have ended and are still told of, some days of a busy server; pictures stay."""
REQUESTS_KEPT = 100
"""Of these, the last ones keep the pictures of their requests where they failed or were cancelled,
so that they can be tried again: each may have 64 MB of them."""

TABLES = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, position REAL NOT NULL, request TEXT NOT NULL,
    whole TEXT NOT NULL, device TEXT, created REAL NOT NULL, started REAL, ended REAL,
    attempts INTEGER NOT NULL,
    error TEXT, message TEXT, warnings TEXT NOT NULL, timings TEXT NOT NULL);
CREATE INDEX jobs_in_order ON jobs (state, position);
CREATE INDEX jobs_by_end ON jobs (ended);
CREATE TABLE pictures (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, path TEXT NOT NULL,
    created REAL NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, seed TEXT NOT NULL,
    model TEXT NOT NULL, prompt TEXT NOT NULL, text TEXT NOT NULL,
    favourite INTEGER NOT NULL DEFAULT 0);
CREATE INDEX pictures_of_job ON pictures (job);
CREATE TABLE switches (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE hashes (
    path TEXT PRIMARY KEY, changed INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL);
"""
CHANGES = {1: """
ALTER TABLE pictures ADD COLUMN favourite INTEGER NOT NULL DEFAULT 0;
CREATE TABLE hashes (
    path TEXT PRIMARY KEY, changed INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL);
"""}
"""What makes the tables of a format those of the next one."""
JOB = "id, state, position, request, device, created, started, ended, attempts, error, message, " \
      "warnings, timings"
PICTURE = "id, job, path, created, width, height, seed, model, prompt, text, favourite"


@dataclass(frozen=True)
class JobRecord:
    """What is kept of a job.

    `request` is what was asked for, as JSON gave it, without its pictures but for a job that is new
    or begins. `device` is the id of the one that it is for,
    None for any. Times are seconds since 1970. `error` is the name of an error of Smalti, `message`
    what it says; `timings` are seconds by stage.
    """

    id: str
    state: str
    position: float
    request: dict[str, Any]
    device: str | None
    created: float
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    error: str | None = None
    message: str | None = None
    warnings: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PictureRecord:
    """A picture in the gallery: its file, relative to the folder of results, and its settings.

    `text` is the whole of them, as the file carries them, `favourite` what a person says of it.
    `id` is 0 until it is kept.
    """

    id: int
    job: str
    path: str
    created: float
    width: int
    height: int
    seed: int
    model: str
    prompt: str
    text: str
    favourite: bool = False


class Archive:
    """The SQLite file of one server; all threads share it.

    Raises InputError where another server has it open or it is of another version, OutputError
    where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._turn = threading.RLock()
        self._bytes: dict[str, int] = {}  # of requests that wait: SQLite would read all of each
        try:
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None,
                                         timeout=0)
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            with self.transaction():
                version = self._base.execute("PRAGMA user_version").fetchone()[0]
                if version > FORMAT:
                    raise InputError(f"{path} is of format {version}, this Smalti reads up to "
                                     f"{FORMAT}; give another folder with --output")
            if version == 0:
                self._base.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
                version = FORMAT
            for before in range(version, FORMAT):
                self._base.executescript(f"BEGIN IMMEDIATE; {CHANGES[before]} "
                                         f"PRAGMA user_version = {before + 1}; COMMIT;")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise InputError(f"another smalti serve uses {path.parent}; stop it, or give "
                                 f"another folder with --output") from None
            raise OutputError(f"{path} cannot be opened: {error}") from None
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} is damaged ({error}); move it away: pictures stay, only the "
                             f"queue and the index of the gallery begin anew") from None

    def close(self) -> None:
        """End the use of the file; nothing is lost without it."""
        with self._turn:
            self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Inside, all changes become one, or none."""
        with self._turn:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._turn:
            return self._base.execute(query, values).fetchall()

    # jobs

    def add(self, job: JobRecord) -> JobRecord:
        """Keep a new job as the last of those that wait."""
        with self.transaction() as base:
            last = base.execute("SELECT max(position) FROM jobs").fetchone()[0]
            job = replace(job, position=1.0 + (last or 0.0))
            base.execute(f"INSERT INTO jobs ({JOB}, whole) VALUES ({', '.join('?' * 14)})", (
                job.id, job.state, job.position, json.dumps(without_pictures(job.request)),
                job.device, job.created, job.started, job.ended, job.attempts, job.error,
                job.message, "[]", "{}", json.dumps(job.request)))
        return job

    def job(self, id: str) -> JobRecord | None:
        """The job of this id."""
        return next((_job(row) for row in self._all(f"SELECT {JOB} FROM jobs WHERE id = ?", id)),
                    None)

    def jobs(self, state: str | None = None, limit: int = JOBS_KEPT) -> list[JobRecord]:
        """Those of a state, or all: first what runs, what waits, then what ended last."""
        with self._turn:  # so that no job goes from one of the lists to the next
            if state in ENDED:
                return self._listed("state = ? ORDER BY ended DESC", limit, state)
            found: list[JobRecord] = []
            for each in (RUNNING, QUEUED) if state is None else (state,):
                found += self._listed("state = ? ORDER BY position", limit - len(found), each)
            if state is None:
                found += self._listed("ended IS NOT NULL ORDER BY ended DESC", limit - len(found))
            return found

    def latest(self, waiting: int, ended: int) -> list[JobRecord]:
        """All jobs that run, the first ones that wait, and those that ended last."""
        with self._turn:
            return [*self._listed("state = ? ORDER BY position", JOBS_KEPT, RUNNING),
                    *self._listed("state = ? ORDER BY position", waiting, QUEUED),
                    *self._listed("ended IS NOT NULL ORDER BY ended DESC", ended)]

    def _listed(self, which: str, limit: int, *values: str) -> list[JobRecord]:
        """Jobs by a condition that an index answers, however many others there are."""
        return [_job(row) for row in self._all(f"SELECT {JOB} FROM jobs WHERE {which} LIMIT ?",
                                               *values, limit)]

    def count(self, state: str) -> int:
        """How many there are of a state."""
        return int(self._all("SELECT count(*) FROM jobs WHERE state = ?", state)[0][0])

    def queued_bytes(self) -> int:
        """What the requests of those that wait take, which is mostly their pictures."""
        with self._turn:
            known, self._bytes = self._bytes, {}
            for id in self.order():
                self._bytes[id] = known[id] if id in known else int(self._all(
                    "SELECT length(whole) FROM jobs WHERE id = ?", id)[0][0])
            return sum(self._bytes.values())

    def request(self, id: str) -> dict[str, Any] | None:
        """What a job asked for, with its pictures, as long as it is not done; None where they are
        not kept any more."""
        whole = self._all("SELECT whole FROM jobs WHERE id = ?", id)[0][0]
        return dict(json.loads(whole)) if whole else None

    def order(self) -> list[str]:
        """The ids of those that wait, the next one first."""
        return [row[0] for row in self._all(
            "SELECT id FROM jobs WHERE state = 'queued' ORDER BY position")]

    def begin(self, device: str) -> JobRecord | None:
        """The next job that this device may run, which runs from now on."""
        with self.transaction() as base:
            row = base.execute(
                f"SELECT {JOB} FROM jobs WHERE state = 'queued' AND (device IS NULL OR device = ?) "
                f"ORDER BY position LIMIT 1", (device,)).fetchone()
            if row is None:
                return None
            job = _job(row)
            job = replace(job, state=RUNNING, started=time.time(), attempts=job.attempts + 1,
                          request=self.request(job.id) or job.request)
            base.execute("UPDATE jobs SET state = 'running', started = ?, attempts = ? "
                         "WHERE id = ?", (job.started, job.attempts, job.id))
        return job

    def end(self, job: JobRecord, before: Sequence[str] = (RUNNING,),
            pictures: Sequence[PictureRecord] = ()) -> bool:
        """A job ends as `job` says, with these pictures; whether it was in a state `before`."""
        with self.transaction() as base:
            marks = ", ".join("?" * len(before))
            changed = base.execute(
                f"UPDATE jobs SET state = ?, ended = ?, error = ?, message = ?, warnings = ?, "
                f"timings = ?, whole = CASE ? WHEN 'done' THEN request ELSE whole END "
                f"WHERE id = ? AND state IN ({marks})",
                (job.state, job.ended or time.time(), job.error, job.message,
                 json.dumps(job.warnings), json.dumps(job.timings), job.state, job.id,
                 *before)).rowcount == 1
            if changed:
                base.executemany(
                    "INSERT INTO pictures (job, path, created, width, height, seed, model, prompt, "
                    "text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(each.job, each.path, each.created, each.width, each.height, str(each.seed),
                      each.model, each.prompt, each.text) for each in pictures])
        return changed

    def trim(self) -> list[str]:
        """Forget the jobs that ended before the last `JOBS_KEPT`; their ids. Those that ended
        before the last `REQUESTS_KEPT` lose the pictures of their requests."""
        with self.transaction() as base:
            base.execute(
                "UPDATE jobs INDEXED BY jobs_in_order SET whole = '' WHERE state IN (?, ?) "
                "AND ended < (SELECT ended FROM jobs WHERE ended IS NOT NULL "
                "ORDER BY ended DESC LIMIT 1 OFFSET ?) AND whole <> '' AND whole <> request",
                (FAILED, CANCELLED, REQUESTS_KEPT - 1))
            return [row[0] for row in base.execute(
                "DELETE FROM jobs WHERE ended < (SELECT ended FROM jobs WHERE ended IS NOT NULL "
                "ORDER BY ended DESC LIMIT 1 OFFSET ?) RETURNING id", (JOBS_KEPT,)).fetchall()]

    def give_back(self, id: str) -> None:
        """A job that runs waits again, as if it had not begun."""
        with self.transaction() as base:
            base.execute("UPDATE jobs SET state = 'queued', started = NULL, "
                         "attempts = attempts - 1 WHERE id = ? AND state = 'running'", (id,))

    def recover(self) -> list[JobRecord]:
        """What ran when the process was killed waits again, where it stood; what ran too often has
        failed. All of these jobs."""
        found = self.jobs(RUNNING)
        for job in found:
            if job.attempts >= ATTEMPTS_MAX:
                self.end(replace(job, state=FAILED, error="DeviceError", message=(
                    f"the server ended {job.attempts} times while it made this picture, without "
                    f"an error of its own: memory may be short, or a driver crash; choose a "
                    f"smaller size, or another device")))
            else:
                with self.transaction() as base:
                    base.execute("UPDATE jobs SET state = 'queued' WHERE id = ?", (job.id,))
        return found

    def move(self, id: str, place: int) -> bool:
        """Put a job that waits at a place in the queue, 1 the next one; whether it waits."""
        with self.transaction() as base:
            order = self.order()
            if id not in order:
                return False
            positions = sorted(row[0] for row in base.execute(
                "SELECT position FROM jobs WHERE state = 'queued'"))
            order.remove(id)
            order.insert(max(0, place - 1), id)
            base.executemany("UPDATE jobs SET position = ? WHERE id = ?",
                             list(zip(positions, order, strict=True)))
        return True

    @property
    def paused(self) -> bool:
        """Whether no new job begins."""
        return bool(self._all("SELECT 1 FROM switches WHERE name = 'paused'"))

    @paused.setter
    def paused(self, value: bool) -> None:
        with self.transaction() as base:
            base.execute("INSERT OR REPLACE INTO switches VALUES ('paused', '1')" if value else
                         "DELETE FROM switches WHERE name = 'paused'")

    def kept(self, name: str) -> str | None:
        """What was kept under a name."""
        rows = self._all("SELECT value FROM switches WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def keep(self, name: str, value: str) -> None:
        """Keep a text under a name."""
        with self.transaction() as base:
            base.execute("INSERT OR REPLACE INTO switches VALUES (?, ?)", (name, value))

    # pictures

    def picture(self, id: int) -> PictureRecord | None:
        """The picture of this id."""
        rows = self._all(f"SELECT {PICTURE} FROM pictures WHERE id = ?", id)
        return _picture(rows[0]) if rows else None

    def pictures(self, *, job: str = "", before: int = 0, search: str = "",
                 favourite: bool | None = None, limit: int = 100) -> list[PictureRecord]:
        """The newest first: of a job, older than that of the id `before`, whose settings contain
        the words of `search`, that are a `favourite` or not."""
        wanted: list[tuple[str, object]] = [("job = ?", job)] * bool(job)
        wanted += [("id < ?", before)] * bool(before)
        wanted += [("favourite = ?", favourite)] * (favourite is not None)
        wanted += [("instr(lower(text), lower(?)) > 0", word) for word in search.split()]
        rows = self._all(
            f"SELECT {PICTURE} FROM pictures "
            f"WHERE {' AND '.join(['1', *(which for which, _ in wanted)])} "
            f"ORDER BY id DESC LIMIT ?", *(value for _, value in wanted), limit)
        return [_picture(row) for row in rows]

    def mark(self, id: int, favourite: bool) -> None:
        """Say of a picture whether it is a favourite."""
        with self.transaction() as base:
            base.execute("UPDATE pictures SET favourite = ? WHERE id = ?", (favourite, id))

    def remove(self, id: int) -> None:
        """Forget a picture; ids are not used again."""
        with self.transaction() as base:
            base.execute("DELETE FROM pictures WHERE id = ?", (id,))

    # hashes of model files

    def hash(self, path: str, changed: int, size: int) -> str | None:
        """The SHA-256 of a file that was last changed then and has so many bytes, if it is known.
        """
        rows = self._all("SELECT sha256 FROM hashes WHERE (path, changed, bytes) = (?, ?, ?)",
                         path, changed, size)
        return str(rows[0][0]) if rows else None

    def keep_hash(self, path: str, changed: int, size: int, sha256: str) -> None:
        """Keep the SHA-256 of a file."""
        with self.transaction() as base:
            base.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)",
                         (path, changed, size, sha256))


def _job(row: tuple[Any, ...]) -> JobRecord:
    found = dict(zip(JOB.split(", "), row, strict=True))
    return JobRecord(**found | {name: json.loads(found[name])
                                for name in ("request", "warnings", "timings")})


def _picture(row: tuple[Any, ...]) -> PictureRecord:
    found = dict(zip(PICTURE.split(", "), row, strict=True))
    return PictureRecord(**found | {"seed": int(found["seed"]),
                                    "favourite": bool(found["favourite"])})


PICTURE_KEYS = ("image", "mask", "picture", "redux")
"""Of a request, which hold whole pictures in base64: they are read when they are needed only."""


def without_pictures(request: dict[str, Any]) -> dict[str, Any]:
    """What is told of a request, and kept when it is done: its pictures are large.

    >>> without_pictures({"prompt": "a", "image": "iVBO", "controls": [{"picture": "iVBO"}]})
    {'prompt': 'a', 'image': None, 'controls': [{'picture': None}]}
    """
    kept: dict[str, Any] = {}
    for key, value in request.items():
        if key in PICTURE_KEYS:
            kept[key] = None
        elif key == "controls" and isinstance(value, list):
            kept[key] = [without_pictures(each) if isinstance(each, dict) else each
                         for each in value]
        else:
            kept[key] = value
    return kept
