"""A cluster within this process, whose nodes and workers are lost when a test says so."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from smalti.cluster.interface import (
    Answer,
    ClusterNode,
    ClusterWorker,
    Declined,
    Lost,
    Ticket,
    Told,
)
from smalti.errors import SmaltiError


@dataclass(eq=False)
class FakeWorker:
    """A worker; what goes to it and comes from it is pickled, as on its way through a network."""

    node: str
    make: Callable[..., Any]
    arguments: Sequence[Any]
    cores: float = 0
    gpus: float = 0
    lost: bool = False
    made: Any = None

    def asked(self, method: str, *arguments: Any, seconds: float = 0.0) -> Answer:
        """The answer of a method."""
        if self.lost:
            return Lost("its node ended")
        try:
            if self.made is None:
                self.made = self.make(*self.arguments)
            return Told(pickle.loads(pickle.dumps(
                getattr(self.made, method)(*arguments))))
        except SmaltiError as error:
            return Declined(str(error))


@dataclass
class FakeCluster:
    """Nodes by their names; `event(cluster, answers so far)` is called before each answer, and
    `pick` chooses the next one of those that can come next, by the numbers of their questions."""

    here: dict[str, ClusterNode] = field(default_factory=dict)
    event: Callable[[FakeCluster, int], None] = lambda cluster, answers: None
    pick: Callable[[list[int]], int] = min
    workers: list[FakeWorker] = field(default_factory=list)
    answers: int = 0
    closed: bool = False
    most: int = 0
    """Questions that waited at a time."""
    _asked: dict[int, tuple[FakeWorker, str, tuple[Any, ...]]] = field(default_factory=dict)
    _numbers: int = 0

    def add(self, name: str, cores: int = 1, gpus: float = 0.0) -> None:
        """A node that comes."""
        self.here[name] = ClusterNode(name, name, cores, gpus)

    def lose(self, name: str) -> None:
        """A node that ends with all that is on it."""
        del self.here[name]
        for worker in self.workers:
            worker.lost |= worker.node == name

    def asked(self, method: str) -> list[FakeWorker]:
        """The workers that have a method asked of them."""
        return [worker for worker, each, _ in self._asked.values() if each == method]

    def nodes(self) -> list[ClusterNode]:
        return [*self.here.values()]

    def begin(self, node: ClusterNode, cores: float, make: Callable[..., Any],
              arguments: Sequence[Any], gpus: float = 0.0) -> FakeWorker:
        self.workers.append(FakeWorker(node.id, make, arguments, cores, gpus,
                                       lost=node.id not in self.here))
        return self.workers[-1]

    def begin_here(self, make: Callable[..., Any], arguments: Sequence[Any]) -> FakeWorker:
        return FakeWorker("here", make, arguments)

    def share(self, content: bytes) -> Any:
        return content

    def ask(self, worker: ClusterWorker, method: str, *arguments: Any) -> Ticket:
        assert isinstance(worker, FakeWorker)
        self._numbers += 1
        self._asked[self._numbers] = worker, method, arguments
        self.most = max(self.most, len(self._asked))
        return self._numbers

    def ready(self, tickets: Sequence[Ticket], seconds: float) -> list[tuple[Ticket, Answer]]:
        self.event(self, self.answers)
        self.answers += 1
        ticket = self.pick(self._next(tickets))
        worker, method, arguments = self._asked.pop(ticket)
        return [(ticket, worker.asked(method, *arguments))]

    def _next(self, tickets: Sequence[Ticket]) -> list[int]:
        """A worker answers one question after the other; of one that is lost, any may be told."""
        first: dict[int, int] = {}
        for ticket in sorted(tickets):
            first.setdefault(id(self._asked[ticket][0]), ticket)
        return [ticket for ticket in sorted(tickets)
                if ticket in first.values() or self._asked[ticket][0].lost]

    def end(self, worker: ClusterWorker) -> None:
        assert isinstance(worker, FakeWorker)
        worker.lost = True

    def close(self) -> None:
        self.closed = True


def need_ray(module: str = "ray", extra: str = "ray") -> None:
    """Leave tests out where Ray, or a part of it, is absent."""
    pytest.importorskip(module, reason=f"{module} is absent: pip install 'smalti[{extra}]', if it "
                                       f"has a wheel")
