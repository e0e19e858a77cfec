"""Tuning finds faster schedules of a program's kernels, and never one that gives other bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smalti.compiler.targets import TARGETS
from smalti.errors import VerificationError
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.cpu.trials import CpuTrials
from smalti.runtime.known import scope, store
from smalti.runtime.tuner import Tuner, kernels, thinned
from smalti.schedule import parse
from smalti.tune.contest import TRIALS
from smalti.tune.heats import ALL, Final, Heat, PartOf

WEIGHTS = {"w": np.random.default_rng(1).standard_normal((32, 48), np.float32)}
INPUTS = {"x": np.random.default_rng(0).standard_normal((640, 32), np.float32)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a store of the test's own."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def compiled() -> NativeProgram:
    g = Graph("product")
    g.output("y", g.apply("silu", g.apply("mat_mul", g.input("x", (640, 32)),
                                          g.parameter("w", (32, 48)))))
    program = compile_graph(g, threads=1)
    program.bind(WEIGHTS)
    return program


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take as many seconds as their schedules have rows of pixels in a tile."""
    running: dict[int, Alternative] = {}
    run = NativeProgram.run

    def noted(self, inputs, instead=running):
        running.clear()
        running.update(instead)
        return run(self, inputs, instead)

    def seconds(self) -> np.ndarray:
        return np.array([float((running[n].schedule if n in running else parse(region.schedule))
                               .tile_x) for n, region in enumerate(self.module.regions)])

    monkeypatch.setattr(NativeProgram, "run", noted)
    monkeypatch.setattr(NativeProgram, "kernel_seconds", seconds)


def test_what_is_faster_is_found_kept_and_compiled(timed: None) -> None:
    program = compiled()
    expected = program.run(INPUTS)["y"]
    tuner = Tuner(CpuTrials(program), INPUTS, WEIGHTS.__getitem__)
    for _ in range(8 * TRIALS):
        assert tuner.turn()
    (row,) = tuner.rows()
    assert row.regions == 1 and row.tried >= 8 and row.best_seconds < 0.5 * row.seconds
    assert parse(row.best).tile_x < parse(row.schedule).tile_x
    (known,) = store().best(scope(program.module.target, 1, "f32")).values()
    assert known.schedule == row.best and known.verified and known.ratio < 0.5
    again = compiled()
    assert again.module.regions[0].schedule == row.best
    assert again.run(INPUTS)["y"].tobytes() == expected.tobytes()
    second = Tuner(CpuTrials(again), INPUTS, WEIGHTS.__getitem__)
    assert second.entries[0].before == known.ratio, "what is in use is judged by the first choice"


def test_other_bytes_are_a_bug_and_named(timed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled()
    tuner = Tuner(CpuTrials(program), INPUTS, WEIGHTS.__getitem__)
    other = {"w": 2 * WEIGHTS["w"]}
    monkeypatch.setattr("smalti.runtime.cpu.alternative._layout", lambda packed: object())
    tuner._read = other.__getitem__
    with pytest.raises(VerificationError, match="other bytes come of ContractionSchedule"):
        for _ in range(8 * TRIALS):
            tuner.turn()
    assert not store().best(scope(program.module.target, 1, "f32"))


def test_kernels_are_those_of_every_run() -> None:
    program = compiled()
    (((text, schedule), regions),) = kernels(program.module).items()
    assert text.startswith("kernel contraction") and regions == [0]
    assert schedule == program.module.regions[0].schedule
    assert thinned(range(1000), 4) == [0, 333, 666, 999] and thinned([1, 2]) == [1, 2]


def test_regions_of_one_kernel_under_other_schedules_are_told_apart() -> None:
    g = Graph("twice")
    x = g.input("x", (1, 512, 64, 64))
    for name in "vw":
        x = g.apply("conv", x, g.parameter(name, (512, 512, 3, 3)), pads=(1,) * 4)
    g.output("y", x)
    program = NativeProgram(recipe_of(g, "f32", (), 1).module(TARGETS[available_levels()[0]]), 1)
    assert len({region.kernel for region in program.module.regions}) == 1
    assert [regions for _, regions in sorted(kernels(program.module).items())] == [[0, 1]]
    first, second = program.module.regions
    program.module.regions[1] = replace(second, schedule=first.schedule + " ")
    assert sorted(kernels(program.module).values()) == [[0], [1]]


def test_computers_try_parts_that_have_nothing_in_common_and_judge_the_same(timed: None) -> None:
    program = compiled()

    def tried(heat: Heat) -> set[str]:
        [entry] = Tuner(CpuTrials(program), INPUTS, WEIGHTS.__getitem__, heat).entries
        return {str(each) for each in entry.contest.candidates[1:]}

    every, parts = tried(ALL), [tried(PartOf(number, 3)) for number in range(3)]
    assert set.union(*parts) == every and sum(map(len, parts)) == len(every)
    sizes = sorted(map(len, parts))
    if sizes[0] < (len(every) + 1) // 3:  # it was dealt the program's own as well, which all try
        sizes[0] += 1
    assert max(sizes) - min(sizes) <= 1
    [text] = {text for text, _ in kernels(program.module)}
    wanted = sorted(every)[:2]
    tuner = Tuner(CpuTrials(program), INPUTS, WEIGHTS.__getitem__, Final({text: wanted}))
    while tuner.turn():
        pass
    [entry] = tuner.entries
    assert {*map(str, entry.contest.candidates[1:])} == {*wanted} and len(entry.contest.found) == 2
    assert Tuner(CpuTrials(program), INPUTS, WEIGHTS.__getitem__, Final({})).entries == []
