"""Programs take the schedules that the store has as best, where these give the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.known import scope, store
from smalti.schedule import choose, parse
from smalti.schedule.schedule import Direct
from smalti.tune.store import MeasuredSchedule

LEVEL = available_levels()[-1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a store of the test's own."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def product() -> Graph:
    g = Graph("product")
    g.output("y", g.apply("mat_mul", g.input("x", (64, 32)), g.parameter("w", (32, 48))))
    return g


def first():
    """The kernel of the graph, and what is chosen without a store."""
    (region,) = partition(product()).regions
    return region.kernel, parse(compiled().module.regions[0].schedule)


def compiled():
    return compile_graph(product(), threads=1, target=LEVEL)


def run(program) -> np.ndarray:
    random = np.random.default_rng(0)
    program.bind({"w": random.standard_normal((32, 48), np.float32)})
    return program.run({"x": random.standard_normal((64, 32), np.float32)})["y"]


def test_the_best_known_schedule_is_used_and_kept_in_the_cache(
        monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, chosen = first()
    other = replace(chosen, tile_x=7)
    before = run(compiled())
    store().note(scope(LEVEL, 1, "f32"), str(kernel),
                 [MeasuredSchedule(str(other), 1.0, 0.9, True)])
    found = compiled()
    assert found.module.regions[0].schedule == str(other)
    assert np.array_equal(run(found), before)
    monkeypatch.setattr("smalti.runtime.order.compiled", None)
    assert compiled().module.regions[0].schedule == str(other)
    store().note(scope(LEVEL, 1, "f32"), "another kernel",
                 [MeasuredSchedule(str(other), 1.0, 0.9, True)])
    assert compiled().module.regions[0].schedule == str(other), "other kernels change nothing"


def test_what_was_not_verified_or_cannot_be_applied_is_not_used() -> None:
    kernel, chosen = first()
    best = MeasuredSchedule(str(replace(chosen, tile_x=7)), 1.0, 0.9, False)
    store().note(scope(LEVEL, 1, "f32"), str(kernel), [best])
    assert compiled().module.regions[0].schedule == str(chosen)
    illegal = MeasuredSchedule(str(replace(chosen, rows=31)), 1.0, 0.8, True)
    store().note(scope(LEVEL, 1, "f32"), str(kernel), [illegal])
    assert compiled().module.regions[0].schedule == str(chosen)


def test_bytes_stay_what_they_are() -> None:
    kernel, chosen = first()
    assert choose(kernel, limits(level(LEVEL)), "bf16").weights == "bf16"
    other = replace(chosen, weights="bf16", algorithm=Direct())
    store().note(scope(LEVEL, 1, "f32"), str(kernel),
                 [MeasuredSchedule(str(other), 1.0, 0.5, True)])
    assert compiled().module.regions[0].schedule == str(chosen)
