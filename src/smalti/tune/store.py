"""What was measured on this computer, in one SQLite file that several processes use at once.

    store = ScheduleStore(settings.cache_folder() / NAME)
    store.note(scope, kernel_text, [MeasuredSchedule("MapSchedule(grain=4)", 2.1e-5, 0.93, True)])
    store.best(scope)[digest(kernel_text)]       # the fastest that was verified

A time depends on what else runs, so a schedule is judged by its `ratio`: its time over that of the
schedule that a kernel has without a store, both measured in turns. Each note is one transaction: an
interrupted run loses nothing that was noted. A file that is damaged, or of another layout, is moved
aside. Where nothing can be written, nothing is kept, and a warning says so once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.schedule import parse

NAME = "schedules.sqlite"
LAYOUT = 2
"""The version of the tables and of the texts in them: 2 since schedules name an algorithm."""
WAIT_SECONDS = 10.0
"""How long a process waits for another one that writes."""
RATIO_MAX = 0.98
"""What is not faster by 2 % is no better."""
TABLES = """
CREATE TABLE IF NOT EXISTS kernels (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS measured (
    kernel TEXT NOT NULL, device TEXT NOT NULL, level TEXT NOT NULL, threads INTEGER NOT NULL,
    precision TEXT NOT NULL, driver TEXT NOT NULL, code TEXT NOT NULL, objective TEXT NOT NULL,
    schedule TEXT NOT NULL, seconds REAL NOT NULL, ratio REAL NOT NULL, verified INTEGER NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (kernel, device, level, threads, precision, driver, code, objective, schedule)
) WITHOUT ROWID;
"""
CODE_DIGITS = 12
"""Of the hash of code, for people."""
KINDS = {"str": str, "int": int, "float": float, "bool": bool}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MeasurementScope:
    """Where measurements hold: on this device, at this feature level, with so many threads, for
    weights of this precision, for the code that makes kernels now, and this objective."""

    device: str
    level: str
    threads: int
    precision: str
    code: str
    driver: str = ""
    objective: str = "latency"

    def __str__(self) -> str:
        driver = f", driver {self.driver}" if self.driver else ""
        return (f"{self.device}{driver}, {self.level}, threads {self.threads}, {self.precision}, "
                f"{self.objective}, code {self.code[:CODE_DIGITS]}")


@dataclass(frozen=True)
class MeasuredSchedule:
    """A schedule (as text), its median seconds, these over those of the first choice, whether its
    results were compared with the reference, and when that was."""

    schedule: str
    seconds: float
    ratio: float
    verified: bool
    at: str = ""


@dataclass(frozen=True)
class TakenOver:
    """What came of the lines of another store: measurements by their scopes, those that were
    refused since they are of other code, and how many were known as well here, or better."""

    taken: Mapping[MeasurementScope, int]
    refused: Mapping[MeasurementScope, int]
    known: int


NAMES = ("kernel", *(f.name for f in fields(MeasurementScope)),
         *(f.name for f in fields(MeasuredSchedule)))
COLUMNS, VALUES = ", ".join(NAMES), ", ".join("?" * len(NAMES))
OVER = ", ".join(f"{f.name} = excluded.{f.name}" for f in fields(MeasuredSchedule)[1:])
NEWER = "WHERE (excluded.verified, excluded.at) > (measured.verified, measured.at)"
WHERE = " AND ".join(f"{f.name} = ?" for f in fields(MeasurementScope))


def digest(kernel: str) -> str:
    """What the text of a kernel is filed under."""
    return hashlib.sha256(kernel.encode()).hexdigest()


class ScheduleStore:
    """The file at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False

    def note(self, scope: MeasurementScope, kernel: str, found: Iterable[MeasuredSchedule]) -> None:
        """Keep what was measured of a kernel; earlier measurements of the same schedule go."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [(digest(kernel), *astuple(scope), *astuple(m)[:-1], m.at or now) for m in found]
        self._write([(digest(kernel), kernel)], rows)

    def best(self, scope: MeasurementScope) -> dict[str, MeasuredSchedule]:
        """The fastest verified schedule of each kernel for which one is better than the first
        choice, by its digest."""
        if not self.path.exists():
            return {}
        rows: list[tuple] = self._using(lambda known: known.execute(
            f"SELECT kernel, schedule, seconds, min(ratio), verified, at FROM measured "
            f"WHERE verified AND ratio <= {RATIO_MAX} AND {WHERE} GROUP BY kernel",
            astuple(scope)).fetchall(), [], "read")
        return {kernel: MeasuredSchedule(schedule, seconds, ratio, bool(verified), at)
                for kernel, schedule, seconds, ratio, verified, at in rows}

    def known(self, scope: MeasurementScope, kernel: str) -> list[MeasuredSchedule]:
        """All that was measured of a kernel, by its digest, the fastest first."""
        if not self.path.exists():
            return []
        rows: list[tuple] = self._using(lambda known: known.execute(
            f"SELECT schedule, seconds, ratio, verified, at FROM measured WHERE {WHERE} AND "
            f"kernel = ? ORDER BY ratio, schedule", (*astuple(scope), kernel)).fetchall(), [],
            "read")
        return [MeasuredSchedule(schedule, seconds, ratio, bool(verified), at)
                for schedule, seconds, ratio, verified, at in rows]

    def lines(self) -> Iterator[str]:
        """Everything, as JSON: a line for each measurement, with the text of its kernel."""
        if not self.path.exists():
            return
        rows: list[tuple] = self._using(lambda known: known.execute(
            f"SELECT text, {', '.join(NAMES[1:])} FROM measured JOIN kernels "
            f"ON kernel = digest ORDER BY {COLUMNS}").fetchall(), [], "read")
        for row in rows:
            entry = dict(zip(NAMES, row, strict=True))
            yield json.dumps({**entry, "verified": bool(entry["verified"])})

    def take(self, lines: Iterable[str], code: str) -> TakenOver:
        """Keep what `lines` of another store say, which was measured with this `code`; what was
        measured with another one is refused, since its kernels are others.

        Where both know a schedule of a kernel in a scope, one that was verified counts, else the
        later one. All lines are understood or none is kept: raises InputError naming one that is
        none of `lines`.
        """
        kernels, rows = {}, []
        taken, refused = dict[MeasurementScope, int](), dict[MeasurementScope, int]()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            kernel, scope, measured = _entry(line, number)
            counted = taken if scope.code == code else refused
            counted[scope] = counted.get(scope, 0) + 1
            if scope.code == code:
                kernels[digest(kernel)] = kernel
                rows.append((digest(kernel), *astuple(scope), *astuple(measured)))
        changed = self._write(list(kernels.items()), rows, NEWER)
        return TakenOver(taken, refused, len(rows) - changed)

    def scopes(self) -> dict[MeasurementScope, int]:
        """Where it has measurements, and how many."""
        if not self.path.exists():
            return {}
        names = ", ".join(f.name for f in fields(MeasurementScope))
        rows: list[tuple] = self._using(lambda known: known.execute(
            f"SELECT {names}, count(*) FROM measured GROUP BY {names} ORDER BY {names}"
            ).fetchall(), [], "read")
        return {MeasurementScope(*row[:-1]): row[-1] for row in rows}

    # ------------------------------------------------------------------ the file

    def _write(self, kernels: Sequence[tuple[str, str]], rows: Sequence[tuple],
               where: str = "") -> int:
        """Write rows, over those that are there `where` it is so; how many were written."""
        if not rows:
            return 0

        def write(known: sqlite3.Connection) -> int:
            with known:
                known.executemany("INSERT OR IGNORE INTO kernels VALUES (?, ?)", kernels)
                return known.executemany(
                    f"INSERT INTO measured ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO UPDATE SET "
                    f"{OVER} {where}", rows).rowcount

        return self._using(write, 0, "write")

    def _using(self, action: Callable[[sqlite3.Connection], Result], otherwise: Result,
               what: str) -> Result:
        """`action` on the open file; `otherwise` where it cannot be read or written."""
        for _ in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(self._opened()) as known:
                    return action(known)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
                    self._move_aside(f"it is damaged ({error})")
                    continue
                self._warn(what, error)
            except OSError as error:
                self._warn(what, error)
            break
        return otherwise

    def _opened(self) -> sqlite3.Connection:
        """A connection to a file with our tables."""
        known = sqlite3.connect(self.path, timeout=WAIT_SECONDS)
        try:
            known.execute("PRAGMA synchronous = NORMAL")  # safe in WAL, and no wait for the disk
            layout = known.execute("PRAGMA user_version").fetchone()[0]
            if layout != LAYOUT:
                if layout:
                    known.close()
                    self._move_aside(f"its layout is {layout}, and {LAYOUT} is expected")
                    return self._opened()
                known.execute("PRAGMA journal_mode = WAL")
                known.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {LAYOUT}; "
                                    f"COMMIT;")
        except BaseException:
            known.close()
            raise
        return known

    def _move_aside(self, why: str) -> None:
        """Give the file another name; the next use makes a new one."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        aside = self.path.with_name(f"{self.path.name}.{moment}")
        try:
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            self._warn("use", error)
            return
        _log.warning("the store of measured schedules %s cannot be used: %s; it was moved to %s, "
                     "and a new one is begun", self.path, why, aside.name)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("cannot %s the store of measured schedules %s (%s): what is measured is "
                         "not kept; set SMALTI_CACHE to a folder that can be written", what,
                         self.path, error)


def _entry(line: str, number: int) -> tuple[str, MeasurementScope, MeasuredSchedule]:
    """A line of an exported store, checked."""
    kinds = {"kernel": str} | {
        f.name: KINDS[str(f.type)] for record in (MeasurementScope, MeasuredSchedule)
        for f in fields(record)}
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"line {number} is no JSON") from None
    if not isinstance(entry, dict) or entry.keys() != kinds.keys():
        raise InputError(f"line {number} is no measurement; expected the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(entry[name]) is not kind or kind is float and not 0 < entry[name] < math.inf:
            raise InputError(f"line {number}: {name} is {entry[name]!r}, expected "
                             f"{'a positive number' if kind is float else kind.__name__}")
    try:
        parse(entry["schedule"])
    except InputError as error:
        raise InputError(f"line {number}: {error}") from None
    return (entry["kernel"], *(record(**{f.name: entry[f.name] for f in fields(record)})
                               for record in (MeasurementScope, MeasuredSchedule)))
