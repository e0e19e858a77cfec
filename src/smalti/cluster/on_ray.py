"""A cluster of Ray (https://docs.ray.io): a worker is an actor, what is shared an object.

Nothing else in Smalti knows of Ray, which is an extra: `pip install 'smalti[ray]'`.
"""

from __future__ import annotations

import importlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from smalti import settings
from smalti.cluster.interface import (
    Answer,
    ClusterNode,
    ClusterWorker,
    Declined,
    Lost,
    Ticket,
    Told,
)
from smalti.dataclass import dataclass
from smalti.errors import InputError, SmaltiError

EXTRA = "pip install 'smalti[ray]'"
ADDRESS = re.compile(r"auto|[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
GET_SECONDS = 120.0
"""For the bytes of an answer that is there to come over: a picture has some megabytes."""
WHY_CHARACTERS = 200
"""Of what Ray says of a loss, which is long."""
CONNECT_SECONDS = 10.0
"""For the head of a cluster to take a connection."""
HEAD_SECONDS = 60.0
"""For the head of a cluster to tell of its nodes: as long as Ray takes one for gone, and Kubernetes
to begin one anew."""
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
"""Ray ends a process whose head is gone, in the middle of what it does; this one is to end by
itself before, with a message."""
GONE = ("the cluster of Ray does not answer any more{why}; begin it anew, and give the same "
        "command again")
SAME = "install the same Smalti on all computers of the cluster"
ABSENT = ("Ray is not installed: {extra}, on every computer of the cluster, in the same versions "
          "(there are wheels for CPython on Linux, macOS on ARM64 and Windows on x86-64)")


class Host:
    """What an actor is: an object that is made for the first question, and its methods."""

    def __init__(self, make: Callable[..., Any] | None = None, arguments: Sequence[Any] = ()
                 ) -> None:
        self._make, self._arguments = make, arguments
        self._made: Any = None

    def load(self, module: str) -> None:
        """Load a module, for what is to be told to `become`."""
        importlib.import_module(module)

    def become(self, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Tell what to make, where that was not known at first."""
        self._make, self._arguments = make, arguments

    def call(self, method: str, *arguments: Any) -> Answer:
        """What a method returns, or refuses."""
        if self._make is None:
            return Declined(f"a worker cannot begin there, since code is absent that it needs; "
                            f"{SAME}")
        try:
            if self._made is None:
                self._made = self._make(*self._arguments)
            return Told(getattr(self._made, method)(*arguments))
        except SmaltiError as error:
            return Declined(str(error))


@dataclass(frozen=True)
class RayWorker:
    """An actor."""

    actor: Any

    def asked(self, method: str, *arguments: Any, seconds: float) -> Answer:
        """The answer of a method, waited for so long."""
        return _answer(self.actor.call.remote(method, *arguments), seconds)


class RayCluster:
    """The cluster that `ray.init` joined."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._host = ray.remote(Host)
        self._ahead: dict[str, tuple[float, Any]] = {}

    def nodes(self) -> list[ClusterNode]:
        """Those that are alive and give out cores."""
        found = []
        for each in self._told_nodes():
            cores = int(each["Resources"].get("CPU", 0))
            if each["Alive"] and cores:
                name = f"{each['NodeManagerHostname']} ({each['NodeID'][:6]})"
                found.append(ClusterNode(each["NodeID"], name, cores,
                                  float(each["Resources"].get("GPU", 0))))
        return found

    def _told_nodes(self) -> list[dict[str, Any]]:
        """What Ray tells of nodes. Raises InputError where its head does not answer, which Ray
        itself would wait for."""
        told: list[list[dict[str, Any]]] = []

        def ask() -> None:
            with suppress(self._ray.exceptions.RayError):
                told.append(self._ray.nodes())

        asking = threading.Thread(target=ask, name="nodes of Ray", daemon=True)
        asking.start()
        asking.join(HEAD_SECONDS)
        if not told:
            raise InputError(GONE.format(why=", its head is gone, or the way to it"))
        return told[0]

    def begin_ahead(self, module: str, cores: Callable[[int], float]) -> None:
        """On each node without a GPU begin what the first worker there becomes, if it takes as many
        cores as `cores` gives for those of the node; a module is loaded there meanwhile."""
        for node in self.nodes():
            if not node.gpus:
                taken = cores(node.cores)
                self._ahead[node.id] = taken, self._actor(node.id, taken, 0).remote()
                self._ahead[node.id][1].load.remote(module)

    def begin(self, node: ClusterNode, cores: float, make: Callable[..., Any],
              arguments: Sequence[Any], gpus: float = 0.0) -> RayWorker:
        """An actor on a node, which is never begun anew: what it did is decided here."""
        taken, actor = self._ahead.pop(node.id, (None, None))
        if actor is not None and (taken, 0) == (cores, gpus):
            actor.become.remote(make, tuple(arguments))
            return RayWorker(actor)
        if actor is not None:  # it is in the way
            self._ray.kill(actor)
        return RayWorker(self._actor(node.id, cores, gpus).remote(make, tuple(arguments)))

    def begin_here(self, make: Callable[..., Any], arguments: Sequence[Any]) -> RayWorker:
        """An actor on the node of this process."""
        here = self._ray.get_runtime_context().get_node_id()
        return RayWorker(self._actor(here, 0, 0).remote(make, tuple(arguments)))

    def _actor(self, node: str, cores: float, gpus: float) -> Any:
        """The class of actors on a node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._host.options(
            num_cpus=cores, num_gpus=gpus, max_restarts=0, max_task_retries=0,
            enable_task_events=False,  # nobody reads them here, and Ray's head keeps them
            scheduling_strategy=place)

    def share(self, content: bytes) -> Any:
        """An object of Ray's store."""
        return self._ray.put(content)

    def ask(self, worker: ClusterWorker, method: str, *arguments: Any) -> Ticket:
        """Ask for a method of a worker."""
        assert isinstance(worker, RayWorker)
        return worker.actor.call.remote(method, *arguments)

    def ready(self, tickets: Sequence[Ticket], seconds: float) -> list[tuple[Ticket, Answer]]:
        """The answers that are there, as soon as there is one; none after so long."""
        here, _ = self._ray.wait([*tickets], num_returns=1, timeout=seconds)
        return [(ticket, _answer(ticket, GET_SECONDS)) for ticket in here]

    def end(self, worker: ClusterWorker) -> None:
        """End an actor, whatever it does."""
        assert isinstance(worker, RayWorker)
        self._ray.kill(worker.actor)

    def close(self) -> None:
        """Leave the cluster, which ends all actors of this process."""
        self._ray.shutdown()


def _answer(ticket: Ticket, seconds: float) -> Answer:
    """What came of a question. Raises InputError where the cluster itself is gone, and whatever
    a method raised that is no SmaltiError. A worker that cannot begin, because its node has not
    the code that it needs, is no loss: it would be lost again and again."""
    import ray
    from ray import exceptions

    lost = (exceptions.RayActorError, exceptions.ActorUnschedulableError,
            exceptions.ObjectLostError, exceptions.WorkerCrashedError,
            exceptions.NodeDiedError, exceptions.OutOfMemoryError, exceptions.GetTimeoutError)
    try:
        return ray.get(ticket, timeout=seconds)
    except lost as error:
        if isinstance(error, exceptions.RayActorError) and error.actor_init_failed:
            return Declined(f"a worker cannot begin there: {str(error).strip().splitlines()[-1]}; "
                            f"{SAME}")
        return Lost(_first_line(error))
    except exceptions.RaySystemError as error:
        raise InputError(GONE.format(why=f" ({error})")) from None


def _first_line(error: Exception) -> str:
    """Of what Ray says, which is long."""
    return str(error).strip().partition("\n")[0][:WHY_CHARACTERS]


def check_address(address: str) -> None:
    """Raise InputError for what is no address of a cluster."""
    if not ADDRESS.fullmatch(address):
        raise InputError(f"--ray is {address!r:.80}; expected auto, or HOST:PORT of the cluster's "
                         f"head, on a computer that is part of the cluster")


def joined(address: str) -> RayCluster:
    """The cluster at an address (HOST:PORT of its head; "auto": the one that this computer is part
    of). Raises InputError where there is none, or no Ray."""
    check_address(address)
    settings.give({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a change to come
                   "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of what nobody waits for
                   **PATIENCE})
    try:
        import ray
    except ImportError:
        raise InputError(ABSENT.format(extra=EXTRA)) from None
    try:
        if address != "auto":  # Ray itself waits for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except ray.exceptions.AuthenticationError:
        raise InputError(f"the cluster of Ray at {address} asks for its token, which is not here; "
                         f"copy ~/.ray/auth_token of its head to this computer") from None
    except (RuntimeError, ValueError, OverflowError, OSError) as error:
        raise InputError(f"no cluster of Ray answers at {address} ({_first_line(error)}); begin "
                         f"one with `ray start --head`, and `ray start --address=HOST:PORT` on "
                         f"each computer") from None
    return RayCluster()


@contextmanager
def joined_ahead(address: str, module: str, cores: Callable[[int], float] | None
                 ) -> Iterator[Callable[[], RayCluster]]:
    """Inside, a cluster, whether it is asked for or not, on which workers are begun ahead where
    `cores` is given. If it cannot be joined, or is gone at once, asking for it raises InputError.
    """
    why = ""
    with ExitStack() as until:
        try:
            cluster = until.enter_context(closing(joined(address)))
            if cores is not None:
                cluster.begin_ahead(module, cores)
        except InputError as error:
            why = str(error)

        def asked() -> RayCluster:
            if why:
                raise InputError(why)
            return cluster

        yield asked
