"""Answers of workers that are asked at the same time, as they come, and who is waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping

from smalti.cluster.interface import Answer, Cluster, ClusterNode, Ticket

POLL_SECONDS = 1.0
"""Waited for an answer at a time, so that Ctrl-C is heard."""
LATE_SECONDS = 30.0
"""Without an answer, after which people are told whose is waited for: a worker begins only when the
cores that it takes are free, which is never where a server has them."""


def answers(cluster: Cluster, asked: Mapping[Ticket, ClusterNode], tell: Callable[[str], None]
            ) -> Iterator[tuple[Ticket, Answer]]:
    """The answer to each question, asked of a worker on a node; `tell` hears who is late."""
    waiting, since = dict(asked), time.monotonic()
    while waiting:
        here = cluster.ready([*waiting], POLL_SECONDS)
        for ticket, answer in here:
            del waiting[ticket]
            yield ticket, answer
        if here:
            since = time.monotonic()
        elif time.monotonic() - since > LATE_SECONDS:
            since = math.inf  # once is enough
            names = ", ".join(node.name for node in waiting.values())
            tell(f"waiting for {names}, whose cores may be taken by other work of the cluster\n")
