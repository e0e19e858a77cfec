"""What is asked of a cluster, whatever it is: which nodes there are, workers on them, and answers.

A worker is an object that lives in a process of its own on a node. It is made there by a function
of a module and its arguments, and is asked for one method after the other:

    worker = cluster.begin(node, cores=2, make=Maker, arguments=(folder,))
    ticket = cluster.ask(worker, "make", record)
    for ticket, answer in cluster.ready([ticket], seconds=5.0):
        ...                              # Told(value), Declined(why) or Lost(why)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class ClusterNode:
    """A computer of a cluster, or a part of one: what people call it, and the cores and GPUs that
    are given out there."""

    id: str
    name: str
    cores: int
    gpus: float = 0.0


@dataclass(frozen=True)
class Told:
    """What a method returned."""

    value: Any


@dataclass(frozen=True)
class Declined:
    """The message of a SmaltiError that a method raised, and the worker goes on; or why no worker
    can begin on the node, whose code is another."""

    why: str


@dataclass(frozen=True)
class Lost:
    """Nobody knows what came of it: the worker or its node ended, or the way there."""

    why: str


Answer: TypeAlias = Told | Declined | Lost
Ticket: TypeAlias = Any
"""What an answer is known by; it can be looked up in dicts."""


def cpu_share(cores: int, threads: int | None, workers: int) -> tuple[int, int]:
    """Threads of each of several workers on the CPU of a node, which share so many or else its
    cores; and the cores that it takes.

    >>> cpu_share(8, None, 3), cpu_share(2, 4, 1)
    ((2, 2), (4, 2))
    """
    each = max(1, (threads or cores) // workers)
    return each, min(each, cores)


class ClusterWorker(Protocol):
    """A worker. Other workers may be given it, and ask it as well."""

    def asked(self, method: str, *arguments: Any, seconds: float) -> Answer:
        """The answer of a method, waited for so long."""


class Cluster(Protocol):
    """A cluster that this process is part of."""

    def nodes(self) -> list[ClusterNode]:
        """Those that are alive and give out cores."""

    def begin(self, node: ClusterNode, cores: float, make: Callable[..., Any],
              arguments: Sequence[Any], gpus: float = 0.0) -> ClusterWorker:
        """A worker on a node, which waits until so many cores and GPUs are free there; its object
        is made for the first question."""

    def begin_here(self, make: Callable[..., Any], arguments: Sequence[Any]) -> ClusterWorker:
        """A worker on the computer of this process, which takes no core."""

    def share(self, content: bytes) -> Any:
        """Stands for these bytes as an argument of `ask`: they are kept once for all workers, for
        as long as it is held."""

    def ask(self, worker: ClusterWorker, method: str, *arguments: Any) -> Ticket:
        """Ask for a method of a worker, behind what it was asked for before."""

    def ready(self, tickets: Sequence[Ticket], seconds: float) -> list[tuple[Ticket, Answer]]:
        """The answers that are there, as soon as there is one; none after so long."""

    def end(self, worker: ClusterWorker) -> None:
        """End a worker whatever it does, if it still is. Nothing waits for its end: a question that
        comes at once may still be answered."""

    def close(self) -> None:
        """End all workers, and leave the cluster."""
