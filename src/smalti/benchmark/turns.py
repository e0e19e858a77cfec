"""Engines in processes of their own that take turns, with an eye on what else the machine does.

A process holds one engine with one model, so that thread pools, allocators and environment of one
do not disturb the other, and only one computes at a time. Messages: "run" -> `Turn`, "outputs" ->
arrays, "note" -> text; None ends it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from smalti.benchmark.engines import ENGINES, Job, prepared
from smalti.dataclass import dataclass
from smalti.errors import DeviceError, SmaltiError

PAUSE_SECONDS = 0.3
"""Before each turn: the other engine's threads have gone to sleep by then."""
TURN_SECONDS_MIN = 0.2
"""A turn is as many runs as fill this; what counts is their median."""
OTHERS_MAX = 0.15
"""Cores that other processes may keep busy in a turn that counts; an idle desktop takes less."""
TRIES_MAX = 8
"""Turns that may be repeated because they were disturbed."""
SECONDS_MAX = 60.0
"""No turn is repeated after so many seconds: on a machine that is never quiet the result is printed
all the same, with a note."""
STATISTICS = Path("/proc/stat")
"""Where Linux counts the time of each core."""


@dataclass(frozen=True)
class Turn:
    """Median seconds of one run, how many there were, and the cores that others kept busy."""

    seconds: float
    runs: int
    cores_of_others: float


def take_turn(run: Callable[[], object]) -> Turn:
    """Time runs until they fill a turn, with the machine watched."""
    busy, own, started = _busy_seconds(), time.process_time(), time.perf_counter()
    taken: list[float] = []
    last = started
    while not taken or last - started < TURN_SECONDS_MIN:
        run()
        now = time.perf_counter()
        taken.append(now - last)
        last = now
    others = _busy_seconds() - busy - (time.process_time() - own)
    return Turn(statistics.median(taken), len(taken), max(0.0, others) / (last - started))


def _busy_seconds() -> float:
    """Seconds that the cores this process may use have worked; 0 where none tells."""
    if not STATISTICS.exists():
        return 0.0
    cores, ticks = {f"cpu{number}" for number in os.sched_getaffinity(0)}, 0
    for line in STATISTICS.read_text().splitlines():
        name, *counts = line.split()
        if name in cores:
            user, nice, system, _, _, interrupts, soft, stolen = map(int, counts[:8])
            ticks += user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def alternate(workers: Sequence[Worker], rounds: int, say: Callable[[str], None],
              tries_max: int = TRIES_MAX) -> list[list[float]]:
    """Seconds of `rounds` undisturbed turns of each worker, one after the other.

    A turn is disturbed when other processes keep more than `OTHERS_MAX` of a core busy; it is
    repeated, up to `tries_max` turns beyond those asked for and not after `SECONDS_MAX`; then
    disturbed ones count too, and that is said.
    """
    calm: list[list[Turn]] = [[] for _ in workers]
    rough: list[list[Turn]] = [[] for _ in workers]
    started = time.monotonic()
    for turns in range(rounds + tries_max):
        if turns >= rounds and time.monotonic() - started > SECONDS_MAX:
            break
        for number, worker in enumerate(workers):
            turn = worker.ask("run")
            (calm if turn.cores_of_others <= OTHERS_MAX else rough)[number].append(turn)
        if min(map(len, calm)) >= rounds:
            return [[turn.seconds for turn in turns] for turns in calm]
    say("the machine is not quiet: other processes disturbed the runs")
    return [[turn.seconds for turn in (*good, *bad)]
            for good, bad in zip(calm, rough, strict=True)]


def serve(engine: str, job: Job, pipe: Connection) -> None:
    """The life of an engine's process; Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        runner = prepared(engine, job)
        pipe.send("ready")
        while (message := pipe.recv()) is not None:
            if message == "run":
                time.sleep(PAUSE_SECONDS)
                pipe.send(take_turn(runner.run))
            elif message == "outputs":
                pipe.send(runner.outputs())
            else:
                pipe.send(runner.note())
    except SmaltiError as error:
        pipe.send(error)


class Worker:
    """An engine in a process of its own; use it in a `with` statement.

    Ask for "outputs" before the first turn: a first run takes longer than others.

    Raises what Smalti raises there, and DeviceError when the process ends before it is told to.
    """

    def __init__(self, engine: str, job: Job) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.title = f"{ENGINES[engine].title} with {job.case.title}"
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(engine, job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, error: type[BaseException] | None, *more: object) -> None:
        if error is not None:
            self._process.terminate()
        elif self._process.is_alive():
            self._pipe.send(None)
        self._process.join()

    def ask(self, message: str) -> Any:
        """The answer to one message."""
        self._pipe.send(message)
        return self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise DeviceError(f"the process of {self.title} ended with code "
                              f"{self._process.exitcode}; what it printed stands above") from None
        if isinstance(answer, SmaltiError):
            raise answer
        return answer


def in_fresh_process(function: Callable[..., Any], *arguments: object) -> Any:
    """What `function` returns, computed in a new process that ends with it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()
