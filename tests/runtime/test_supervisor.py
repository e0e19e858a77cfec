"""A supervisor finds faster schedules while a program runs, and loses little time by it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from smalti.compiler.module import Beside
from smalti.errors import NumericsError
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.known import scope, store
from smalti.runtime.supervisor import Supervisor
from smalti.schedule import parse

WEIGHTS = {"w": np.random.default_rng(1).standard_normal((32, 48), np.float32)}
INPUTS = {"x": np.random.default_rng(0).standard_normal((640, 32), np.float32)}
PROMISED = 0.03


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a store of the test's own."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def compiled() -> NativeProgram:
    g = Graph("product")
    x = g.apply("silu", g.apply("mat_mul", g.input("x", (640, 32)), g.parameter("w", (32, 48))))
    g.output("y", x)
    program = compile_graph(g, threads=1)
    program.bind(WEIGHTS)
    return program


class World:
    """Time that passes as kernels run: a hundredth of a second for each row of pixels in a tile, at
    most half as much again as at first; and a tenth of a second for code that is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.took, self.useful = 0.0, np.zeros(0), 0.0
        run, beside, make = NativeProgram.run, NativeProgram.run_beside, Alternative.__init__

        def cost(program: NativeProgram, others: dict) -> np.ndarray:
            first = parse(program.module.regions[0].schedule)
            now = others[0].schedule if 0 in others else first
            return np.array([min(now.tile_x, 1.5 * first.tile_x) / 100])

        def running(program, inputs, instead):
            self.took = cost(program, instead)
            self.now += self.took.sum()
            return run(program, inputs, instead)

        def running_beside(program, inputs, others, instead):
            self.took, theirs = cost(program, instead), cost(program, others)
            self.now += self.took.sum() + sum(theirs[region] for region in others)
            outputs, found = beside(program, inputs, others, instead)
            return outputs, {region: Beside(self.took[region], theirs[region], each.same)
                             for region, each in found.items()}

        def making(self_, *arguments):
            make(self_, *arguments)
            self.now += 0.1

        monkeypatch.setattr(NativeProgram, "run", running)
        monkeypatch.setattr(NativeProgram, "run_beside", running_beside)
        monkeypatch.setattr(NativeProgram, "kernel_seconds", lambda program: self.took.copy())
        monkeypatch.setattr(Alternative, "__init__", making)


def test_faster_schedules_are_found_at_little_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled()
    expected = program.run(INPUTS)["y"]
    world = World(monkeypatch)
    watched = Supervisor(program, lambda: world.now)
    normal = parse(program.module.regions[0].schedule).tile_x / 100
    ahead = 0.0
    for number in range(1, 401):
        outputs = watched.run_checked(INPUTS)
        assert outputs["y"].tobytes() == expected.tobytes()
        ahead = max(ahead, world.now / (number * normal))
        assert watched.regret <= PROMISED * watched.spent
    assert 1.0 < ahead < 1 + PROMISED
    assert world.took.sum() < 0.6 * normal and world.now < 0.97 * 400 * normal
    (known,) = store().best(scope(program.module.target, 1, "f32")).values()
    assert known.ratio < 0.6 and compiled().module.regions[0].schedule == known.schedule
    again = Supervisor(program, lambda: world.now)
    again.run_checked(INPUTS)
    watched.begin()
    assert (watched.spent, watched.regret) == (0.0, 0.0) and watched.tried >= 5


def test_what_gives_other_bytes_is_never_used(monkeypatch: pytest.MonkeyPatch,
                                              caplog: pytest.LogCaptureFixture) -> None:
    program = compiled()
    expected = program.run(INPUTS)["y"]
    world = World(monkeypatch)
    beside = NativeProgram.run_beside

    def lying(*arguments):
        outputs, found = beside(*arguments)
        return outputs, {n: each._replace(same=False) for n, each in found.items()}

    monkeypatch.setattr(NativeProgram, "run_beside", lying)
    watched = Supervisor(program, lambda: world.now)
    for _ in range(120):
        assert watched.run_checked(INPUTS)["y"].tobytes() == expected.tobytes()
    assert watched.tried and "bug of the compiler" in caplog.text
    assert not store().best(scope(program.module.target, 1, "f32"))


def test_runs_that_are_too_short_pay_for_nothing() -> None:
    watched = Supervisor(compiled())
    for _ in range(20):
        watched.run_checked(INPUTS)
    assert watched.tried == 0 and watched.spent > 0


def test_two_threads_may_run_at_once_and_errors_are_those_of_the_program() -> None:
    watched = Supervisor(compiled())
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(watched.run_checked(INPUTS)["y"]))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(np.array_equal(y, found[0]) for y in found)
    with pytest.raises(NumericsError, match="the input 'x' holds NaN"):
        watched.run_checked({"x": np.full((640, 32), np.nan, np.float32)})


def test_another_image_is_watched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled()
    world = World(monkeypatch)
    watched = Supervisor(program, lambda: world.now)
    for _ in range(120):
        watched.run_checked(INPUTS)
    assert watched.tried
    program._take(compiled().module)
    program.bind(WEIGHTS)
    watched.run_checked(INPUTS)
    assert watched.tried == 0
