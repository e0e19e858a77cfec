"""Turns: enough runs each, disturbed ones repeated, and errors of an engine's process."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_suite import TINY_CASES

from smalti.benchmark import turns
from smalti.benchmark.engines import Job
from smalti.benchmark.turns import TURN_SECONDS_MIN, Turn, Worker, alternate, take_turn
from smalti.errors import DeviceError, InputError


def test_a_turn_is_many_short_runs_or_one_long_one() -> None:
    many = take_turn(lambda: time.sleep(0.01))
    assert many.runs >= TURN_SECONDS_MIN / 0.02 and 0.01 <= many.seconds < 0.02
    assert take_turn(lambda: time.sleep(TURN_SECONDS_MIN)).runs == 1


class Scripted:
    """Stands in for a worker: gives turns from a list."""

    def __init__(self, *taken: Turn) -> None:
        self.taken = list(taken)

    def ask(self, message: str) -> Turn:
        assert message == "run"
        return self.taken.pop(0)


CALM, ROUGH = Turn(1.0, 1, 0.0), Turn(5.0, 1, 0.9)


def test_disturbed_turns_are_repeated() -> None:
    said: list[str] = []
    a, b = Scripted(CALM, ROUGH, CALM, CALM), Scripted(ROUGH, CALM, CALM, CALM)
    assert alternate([a, b], 2, said.append, 4) == [[1.0, 1.0], [1.0, 1.0]] and not said
    assert len(a.taken) == len(b.taken) == 1, "turns are taken together"


def test_a_machine_that_stays_busy_is_told() -> None:
    said: list[str] = []
    assert alternate([Scripted(CALM, ROUGH, ROUGH)], 2, said.append, 1) == [[1.0, 5.0, 5.0]]
    assert len(said) == 1 and "not quiet" in said[0]


def test_a_worker_computes_in_its_own_process(tmp_path: Path) -> None:
    case = TINY_CASES["decode"]
    with Worker("smalti", Job(case, "f32", 1, tmp_path)) as worker:
        (picture,) = worker.ask("outputs")
        turn = worker.ask("run")
        assert "kernels" in worker.ask("note")
    assert picture.shape == (1, 3, 32, 32) and turn.runs > 1 and turn.seconds > 0


def test_ctrl_c_ends_the_process_whatever_it_computes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with Worker("smalti", Job(TINY_CASES["decode"], "f32", 1, tmp_path)) as worker:
            worker._pipe.send("run")
            raise KeyboardInterrupt
    assert worker._process.exitcode == -signal.SIGTERM


def test_what_smalti_refuses_there_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="f8"):
        Worker("smalti", Job(TINY_CASES["decode"], "f8", 1, tmp_path))


def test_a_process_that_ends_is_named(tmp_path: Path) -> None:
    case = replace(TINY_CASES["decode"], inputs=_end)
    with pytest.raises(DeviceError, match="Smalti with decode ended with code 3"):
        Worker("smalti", Job(case, "f32", 1, tmp_path))


def _end() -> None:
    raise SystemExit(3)


def test_busy_seconds_grow_with_work() -> None:
    before = turns._busy_seconds()
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass
    grown = turns._busy_seconds() - before
    assert grown > 0 or not turns.STATISTICS.exists()
