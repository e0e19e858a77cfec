"""All records of a batch, by this process or by several on this computer."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from smalti.batch.crew import Crew, Died, made_by
from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord
from smalti.batch.worker import BatchWork, Maker, serve
from smalti.checkpoint.folder import model_name
from smalti.claim import claimed
from smalti.cluster.greeting import every
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.named import fetched
from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.errors import InputError

WORKERS_MAX = 64
"""Each has the model in its own memory."""
SMALL_BYTES = 100 << 20
"""Of a model of which every core makes pictures of its own: of the one that ships (38 MB) two
processes of a thread make 100 in 0.7 of the time of one with two (bench/batch.py)."""
RECORDS_A_WORKER = 10
"""So many at least: a process begins in the time of five pictures of that model."""
JOIN_SECONDS = 5.0
"""For a worker to end by itself."""
PARTS = ("vae", "text_encoders", "refiner")
"""Of what is loaded, what is beside the model and may be large."""
TELLING = ("path", "vae", "text_encoders", "refiner", "loras", "embeddings", "prediction",
           "zero_terminal_snr", "precision")
"""What pictures depend on of that which is loaded."""
FORM = 1
"""Of what records are known by; another one makes all pictures anew."""


def check_workers(count: int) -> None:
    """Raise InputError for what is no number of workers."""
    if not 1 <= count <= WORKERS_MAX:
        raise InputError(f"workers is {count}; expected 1 to {WORKERS_MAX}")


def usual_workers(loading: Mapping[str, Any], threads: int, count: int) -> int:
    """How many workers make so many pictures where nothing is said: one for each thread, where the
    model is small and runs on the CPU, else one."""
    wanted = min(threads, count // RECORDS_A_WORKER, WORKERS_MAX)
    if wanted < 2 or any(loading[name] for name in PARTS):
        return 1
    path = Path(loading["path"] or SHIPPED_MODEL)
    small = path.is_file() and path.stat().st_size <= SMALL_BYTES
    return wanted if small and every(str(loading["device"])) == ("cpu",) else 1


def made(records: Sequence[BatchRecord], work: BatchWork, workers: int, tell: Callable[[str], None]
         ) -> Iterator[BatchOutcome]:
    """What became of each record, as it is done. Raises InputError where none can be made."""
    check_workers(workers)
    _await_others(BatchFolder(work.folder), tell)
    if workers == 1:
        maker = Maker.into(work)
        for record in records:
            about = maker.make(record)
            if about is not None:
                yield about
        return
    yield from made_by(_Processes(work, min(workers, len(records))), records)


def _await_others(folder: BatchFolder, tell: Callable[[str], None]) -> None:
    """Wait for workers of a batch that was killed, which end with the step that they make."""
    for path in sorted(folder.own.glob("worker-*.lock")):
        with claimed(path, lambda: tell("waiting for a worker of the batch before")):
            pass
    folder.clean()


class _Processes(Crew):
    """Processes on this computer, each with one record at a time."""

    def __init__(self, work: BatchWork, count: int) -> None:
        self._work = work
        self._spawn = multiprocessing.get_context("spawn")
        self._busy: dict[Connection, tuple[Any, BatchRecord]] = {}
        self._free: list[tuple[Connection, Any]] = []
        self._numbers = iter(range(1 << 30))
        self._count = count

    def has_room(self, left: int) -> bool:
        """Whether one is free, or may be begun."""
        return len(self._busy) < self._count

    def answers(self) -> Iterator[tuple[BatchRecord, BatchOutcome | Died]]:
        """What became of records, once there is news."""
        for pipe in wait([*self._busy]):
            assert isinstance(pipe, Connection)
            process, record = self._busy.pop(pipe)
            try:
                told = pipe.recv()
            except (EOFError, ConnectionError):
                process.join()
                yield record, Died(f"exit code {process.exitcode}")
                continue
            self._free.append((pipe, process))
            if isinstance(told, str):
                raise InputError(told)
            yield record, told

    def give(self, record: BatchRecord) -> None:
        """Have a worker make a record; a new one where none is free."""
        pipe, process = self._free.pop() if self._free else self._begun()
        self._busy[pipe] = process, record
        with suppress(ConnectionError):  # it died meanwhile, which is seen when it is read from
            pipe.send(record)

    def _begun(self) -> tuple[Connection, Any]:
        pipe, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=serve, args=(
            self._work, next(self._numbers) % WORKERS_MAX, theirs), daemon=True)
        process.start()
        theirs.close()
        return pipe, process

    def end(self) -> None:
        """End all workers: those that have nothing to do by themselves."""
        for pipe, _ in self._free:
            pipe.close()
        for pipe, (process, _) in self._busy.items():
            process.terminate()
            pipe.close()
        for process in (*(each for _, each in self._free),
                        *(each for each, _ in self._busy.values())):
            process.join(JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def resolved(asked: LoadOptions) -> tuple[dict[str, Any], str]:
    """What workers load, with paths of files that are here instead of names, and a text that tells
    it from other models and adapters, by the names and sizes of their files."""
    asked = fetched(asked)
    loading = {each.name: getattr(asked, each.name) for each in fields(asked)
               if each.name not in ("progress", "residents")}
    return loading, telling(loading)


def telling(loading: Mapping[str, Any]) -> str:
    """A text that tells what is loaded from other models and adapters."""
    told = {name: _told(value) for name, value in loading.items() if name in TELLING}
    if loading.get("defaults"):  # else as before there were any, so that nothing is made anew
        told["defaults"] = dict(loading["defaults"])
    return json.dumps({"version": FORM, **told}, sort_keys=True)


def _told(value: Any) -> Any:
    """A value as text and numbers; of a file its name and size."""
    if type(value) in (list, tuple):
        return [_told(each) for each in value]
    path = Path(value) if isinstance(value, str | Path) else None
    if path is None or not path.exists():
        return value if value is None or isinstance(value, bool | int | float) else str(value)
    files = [path] if path.is_file() else sorted(path.rglob("*.*"))
    return [model_name(path), *(each.stat().st_size for each in files if each.is_file())]
