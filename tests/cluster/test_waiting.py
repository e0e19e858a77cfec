"""Answers of workers that are asked at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from clusters import FakeCluster

from smalti.cluster import waiting
from smalti.cluster.interface import Answer, Ticket, Told


class Slow(FakeCluster):
    """No answer comes for some rounds."""

    rounds = 0

    def ready(self, tickets: Sequence[Ticket], seconds: float) -> list[tuple[Ticket, Answer]]:
        self.rounds += 1
        return [] if self.rounds % 4 else super().ready(tickets, seconds)


def test_who_is_late_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LATE_SECONDS", -1.0)
    cluster, told = Slow(), list[str]()
    cluster.add("one")
    cluster.add("two")
    asked = {cluster.ask(cluster.begin(node, 1, str, ("abc",)), "upper"): node
             for node in cluster.nodes()}
    found = dict(waiting.answers(cluster, asked, told.append))
    assert [*found.values()] == [Told("ABC"), Told("ABC")]
    assert [each.partition(",")[0] for each in told] == ["waiting for one", "waiting for two"]
    assert "one, two, whose cores may be taken" in told[0]
