"""A tuning farm: who tries what, who judges, and what the store has at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from clusters import FakeCluster, FakeWorker

from smalti import settings
from smalti.cluster.farm import Farm, TunedKind, TuneWorker
from smalti.errors import InputError
from smalti.runtime.cache import code_digest
from smalti.runtime.known import GENERATORS, store
from smalti.tune.heats import Heat
from smalti.tune.store import MeasurementScope, digest

SCOPE = MeasurementScope("a CPU", "avx2", 2, "f32", code_digest(*GENERATORS))
SCHEDULES = [f"MapSchedule(grain={grain})" for grain in range(1, 7)]
TRUE = [1.0, .9, .7, 1.1, .8, .6]
"""Their ratios on computers of the kind."""
tried: list[list[str]] = []


class Measures:
    """A computer that measures what it is told to: `programs` has a row of ratios, and a scope, for
    each that is begun."""

    def __init__(self, code: str, programs: Any, threads: int, keeper: object) -> None:
        self._scope, self._ratios = next(programs)
        self._programs = iter(["first"])

    def begin(self, lines: Sequence[str]) -> tuple[int, str, MeasurementScope] | None:
        name = next(self._programs, None)
        return None if name is None else (1, name, self._scope)

    def search(self, heat: Heat, seconds: float) -> tuple[list[str], bool]:
        mine = [SCHEDULES[n] for n in heat.among("k", SCHEDULES, np.arange(6.0))]
        tried.append(mine)
        return [json.dumps({"kernel": "k", **asdict(self._scope), "schedule": each, "seconds": 1e-3,
                            "ratio": self._ratios[SCHEDULES.index(each)], "verified": True,
                            "at": ""}) for each in mine], False

    def judge(self, wanted: Mapping[str, Sequence[str]], seconds: float
              ) -> dict[tuple[str, str], tuple[float, float]]:
        return {("k", each): (1.0, self._ratios[SCHEDULES.index(each)]) for each in wanted["k"]}


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    tried.clear()


def tuned(cluster: FakeCluster, told: list[str], *machines: tuple[MeasurementScope, list[float]]
          ) -> Iterator[TunedKind]:
    for number in range(len(machines)):
        cluster.add(f"node {number}", cores=2)
    for part in Farm(cluster, iter(machines), None, 10.0, told.append, Measures).parts():
        assert part.name == "first"
        yield from part.kinds


def test_a_kind_shares_the_candidates_and_judges_together() -> None:
    lucky = [1.0, 1.2, .3, 1.1, .8, .6]
    [kind] = tuned(FakeCluster(), [], (SCOPE, lucky), (SCOPE, TRUE), (SCOPE, TRUE))
    assert sorted(sum(tried, [])) == SCHEDULES and [len(each) for each in tried] == [2, 2, 2]
    assert kind.tried == 6 and kind.nodes == ("node 0", "node 1", "node 2")
    judged = {schedule: told for (_, schedule), told in kind.finalists.items()}
    assert {*judged} == {SCHEDULES[2], SCHEDULES[4], SCHEDULES[5]} and kind.kept == 3
    assert all(median(ratios) == TRUE[SCHEDULES.index(schedule)] and len(ratios) == 3
               for schedule, (_, ratios) in judged.items())
    assert store().best(SCOPE)[digest("k")].schedule == SCHEDULES[5]
    known = {each.schedule: each for each in store().known(SCOPE, digest("k"))}
    assert {name for name, each in known.items() if each.verified} == {*judged}
    assert known[SCHEDULES[2]].ratio == .7 and len(known) == 6


def test_what_is_luck_on_one_computer_is_not_used() -> None:
    once = [1.0, .5, 1.0, 1.0, 1.0, 1.0]
    [kind] = tuned(FakeCluster(), [], (SCOPE, [1.0] * 6), (SCOPE, once), (SCOPE, [1.0] * 6))
    assert kind.kept == 0 and [*kind.finalists.values()] == [(.5, (1.0, .5, 1.0))]
    assert store().best(SCOPE) == {}


def test_kinds_do_not_mix() -> None:
    other = replace(SCOPE, device="another CPU")
    one, two = tuned(FakeCluster(), [], (SCOPE, TRUE), (other, TRUE[::-1]))
    assert [kind.tried for kind in (one, two)] == [6, 6] and one.nodes == ("node 0",)
    assert store().best(SCOPE)[digest("k")].schedule == SCHEDULES[5]
    assert store().best(other)[digest("k")].schedule == SCHEDULES[0]


def lost_after(answers: int, *names: str) -> Any:
    def event(cluster: FakeCluster, at: int) -> None:
        if at == answers:
            for name in names:
                cluster.lose(name)
    return event


def test_what_others_measured_is_kept_when_a_computer_is_lost() -> None:
    told: list[str] = []
    [kind] = tuned(FakeCluster(event=lost_after(3, "node 1")), told, (SCOPE, TRUE), (SCOPE, TRUE))
    assert "node 1 is left out: its node ended\n" in told
    assert kind.tried == 3 and store().best(SCOPE)[digest("k")].ratio == .7


@pytest.mark.parametrize("answers", [4, 5])
def test_when_all_are_lost_what_was_measured_is_kept(answers: int) -> None:
    cluster = FakeCluster(event=lost_after(answers, "node 0", "node 1"))
    with pytest.raises(InputError, match="node . is left out: its node ended"):
        [*tuned(cluster, [], (SCOPE, TRUE), (SCOPE, TRUE))]
    assert len(store().known(SCOPE, digest("k"))) == 6


def test_ctrl_c_keeps_what_was_measured() -> None:
    def event(cluster: FakeCluster, at: int) -> None:
        if at == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        [*tuned(FakeCluster(event=event), [], (SCOPE, TRUE), (SCOPE, TRUE))]
    assert len(store().known(SCOPE, digest("k"))) == 6


def test_a_cluster_without_nodes_is_told() -> None:
    with pytest.raises(InputError, match="no node that gives out cores"):
        [*tuned(FakeCluster(), [])]


def test_a_computer_tunes_in_a_store_of_its_own(tmp_path: Path) -> None:
    from smalti.cli.tune import programs_here
    from smalti.cluster.shared_cache import Keeper

    def programs(threads: int) -> Any:
        return programs_here("tiny_cnn", None, None, {}, "cpu", "f32", threads)

    keeper = FakeWorker("here", Keeper, (tmp_path,))
    worker = TuneWorker(code_digest(), programs, 1, keeper)
    begun = worker.begin([])
    assert begun is not None and begun[:2] == (1, "tiny_cnn") and begun[2].threads == 1
    lines, _ = worker.search(*heat_and_seconds())
    assert all(json.loads(line)["threads"] == 1 for line in lines)
    assert worker.judge({}, 0.1) == {}
    own = settings.cache_folder()
    assert own != tmp_path and own.is_dir()
    assert worker.begin([]) is None and not own.exists()


def heat_and_seconds() -> tuple[Heat, float]:
    from smalti.tune.heats import PartOf

    return PartOf(0, 2), 0.1
