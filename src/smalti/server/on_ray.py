"""The server on a cluster of Ray, by Ray Serve: a front, and replicas that make pictures.

    requests -> Serve's proxy -> the front: HTTP, queue, gallery -> routing.py -> replicas

The front is one process, with the server's own queue and the same HTTP APIs; it may have a port of
its own, since Serve's proxy makes each answer take ten times as long. Replicas, each with a device,
come when jobs wait, and go when none do. `serve run smalti.server.on_ray:app models=/m`
begins it, and so does a file of Serve or KubeRay: docs/cluster.md. Ray Serve is an extra, which
nothing but this module knows of: `pip install 'smalti[serve]'`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from smalti import settings
from smalti.cluster.greeting import every
from smalti.diffusion.keywords import check_known
from smalti.diffusion.placement import AUTO
from smalti.errors import InputError
from smalti.server.archive import JobRecord
from smalti.server.messages import Advanced, Dropped, Message
from smalti.server.remote import ReplicaLostError
from smalti.server.replica import PictureReplica
from smalti.server.routing import PATIENCE_SECONDS, Routing
from smalti.server.serve import (
    TOKEN_CHARACTERS_MIN,
    HttpServer,
    application,
    configured,
    is_loopback,
    listening,
)
from smalti.server.site import Site
from smalti.server.worker import PIPELINES_KEPT

OPTIONS: Mapping[str, Any] = {
    "models": "", "output": "smalti-pictures", "host": "127.0.0.1", "port": 0, "replicas_min": 0,
    "replicas_max": 1, "cores": 1.0, "gpus": 0.0, "idle_seconds": 300.0,
    "patience_seconds": PATIENCE_SECONDS, "device": "auto", "precision": "auto", "threads": 0,
    "memory": ""}
"""What `app` takes, and what it is where nothing is said."""
FRONT_ONGOING_MAX = 1000
"""Requests that the front answers at a time; most of them wait."""


def model_router() -> type:
    """The class of what gives each job to a replica, as `Routing` says."""
    from ray.serve.request_router import RequestRouter

    class ModelRouter(RequestRouter):
        """Serve's choice of a replica, by the models that each has."""

        def initialize_state(self, patience_seconds: float) -> None:
            """What is known of replicas: nothing yet."""
            self._routing = Routing(PIPELINES_KEPT, patience_seconds)

        async def choose_replicas(self, candidate_replicas: list[Any],
                                  pending_request: Any = None) -> list[list[Any]]:
            """Groups of replicas, of which a later one is asked if none before it is free."""
            if pending_request is None:
                return [candidate_replicas]
            pending_request.routing_context.should_backoff = True  # while none is free
            here = {str(each.replica_id): each for each in candidate_replicas}
            self._routing.alive(here.keys())
            waited = time.time() - pending_request.created_at
            order = self._routing.order([*here], pending_request.args[1], waited)
            return [[here[name] for name in group] for group in order]

        def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
            """A replica was given a job."""
            self._routing.sent(str(replica_id), pending_request.args[1])

    return ModelRouter


def __getattr__(name: str) -> Any:
    """`ModelRouter`, by which Serve asks this module for it: the module is there without Ray, too,
    the class is not."""
    if name == "ModelRouter":
        return model_router()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def given_gpus() -> list[str]:
    """The numbers of the GPUs that Ray gave this replica."""
    import ray

    return ray.get_runtime_context().get_accelerator_ids().get("GPU", [])


def own_device(device: str, gpus: Sequence[str]) -> str:
    """The device of a replica that Ray gave these GPUs of its computer. Ray tells CUDA alone which
    they are, and all replicas would take the first; so of "auto", where several are alike the
    fastest, each takes the one of its number."""
    alike = every(device)
    if gpus and alike == ("cpu",) and device == AUTO:
        print("Ray gave a replica a GPU, but Smalti finds none that it uses there: pictures are "
              "made on the CPU; `smalti devices` says why", file=sys.stderr, flush=True)
    number = int(gpus[0]) if gpus and gpus[0].isdigit() else 0
    return alike[number % len(alike)]


NICENESS = 10
"""Of threads that make pictures on a CPU: a tenth of what another thread has that wants the core
(weights of Linux's scheduler: 110 of 1024), so that pictures go on beside other work, too."""


def yield_to_others() -> None:
    """Have this thread, and those that it begins, give way to others of the computer: a picture
    takes seconds, an answer of the front on the same cores should take milliseconds. On Linux,
    where threads have a niceness of their own; elsewhere nothing is changed."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread,
                       max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


class Replica:
    """Makes pictures on its device, a job at a time."""

    def __init__(self, models: list[str], device: str, loading: dict[str, Any]) -> None:
        self._device = own_device(device, given_gpus())
        self._made = PictureReplica(models, self._device, **loading)

    async def make(self, job: JobRecord, model: str) -> AsyncGenerator[Message, None]:
        """What is told of a job; `model` is what it is routed by. Serve ends what it cancels only
        where that waits, so a thread makes the picture, and this one waits for what it tells."""
        loop, unwanted = asyncio.get_running_loop(), threading.Event()
        told: asyncio.Queue[Message] = asyncio.Queue()

        def work() -> None:
            if self._device == "cpu":
                yield_to_others()
            for message in self._made.make(job, unwanted):
                loop.call_soon_threadsafe(told.put_nowait, message)

        threading.Thread(target=work, name=f"told of {job.id}", daemon=True).start()
        try:
            message: Message = Advanced({})
            while isinstance(message, Advanced):
                message = await told.get()
                yield message
        finally:
            unwanted.set()


class Front:
    """The server: its HTTP, queue and gallery."""

    def __init__(self, replicas: Any, asked: dict[str, Any]) -> None:
        host, token = asked["host"], settings.token()  # that of the node which it came to
        check_token(host, token)
        bound = None if not asked["port"] else listening(
            "127.0.0.1" if is_loopback(host) else "0.0.0.0", asked["port"], token)
        self._make = replicas.options(stream=True).make
        self._site = Site(Path(asked["output"]), folders_of(asked), send=self.send,
                          remote=asked["replicas_max"], **loading_of(asked))
        self.answer = application(self._site, host, token)
        self._ended = threading.Event()
        self._site.start()
        if bound is not None:
            server = HttpServer(configured(self._site, host, token), self._site,
                                partial(tell_port, asked["port"]), self._ended.is_set)
            threading.Thread(target=server.run, kwargs={"sockets": [bound]},
                             name="HTTP of the front", daemon=True).start()

    def send(self, job: JobRecord) -> Generator[Message, None, None]:
        """Have a job made by a replica; one that becomes unwanted ends at once here, also while it
        waits for a replica."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        queue = self._site.queue
        told = self._make.remote(job, str(job.request.get("model") or ""))

        def look(id: str = "") -> None:
            if queue.unwanted(job.id):
                with suppress(RayError, RayServeException):
                    told.cancel()

        with queue.watching(look, steps=False):
            look()
            try:
                yield from told
            except (RayError, RayServeException) as error:
                if not queue.unwanted(job.id):
                    raise ReplicaLostError(str(error).partition("\n")[0]) from None
                yield Dropped()
            finally:
                told.cancel()

    def __del__(self) -> None:
        if "_ended" in self.__dict__:
            self._ended.set()
            self._site.stop()


def tell_port(port: int) -> None:
    """Say in the log of the front where it is."""
    print(f"the front answers at port {port} of {socket.gethostname()}, too", file=sys.stderr,
          flush=True)


async def forwarded(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application of the front that is in this process."""
    from ray import serve

    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await serve.get_replica_context().servable_object.answer(scope, receive, send)


def answering() -> Any:
    """What Serve asks for: the application, when it is in the process of the front."""
    return forwarded


def folders_of(asked: Mapping[str, Any]) -> list[Path]:
    """The folders of models, which are given with `:` between them."""
    return [Path(each) for each in asked["models"].split(":") if each]


def loading_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What replicas load models with."""
    return {"precision": asked["precision"], "threads": asked["threads"] or None,
            "memory": asked["memory"] or None}


def checked(args: Mapping[str, Any]) -> dict[str, Any]:
    """The options, of the types that they have. Raises InputError for others."""
    check_known(args, [*OPTIONS])
    found = dict(OPTIONS)
    for name, given in args.items():
        kind = type(OPTIONS[name])
        try:
            found[name] = kind(given)
        except (TypeError, ValueError):
            raise InputError(f"{name} is {given!r:.80}; expected a {kind.__name__}") from None
    if not 0 <= found["port"] < 1 << 16:
        raise InputError(f"port is {found['port']}; expected 1 to 65535, or 0 for none of its own")
    if not 0 <= found["replicas_min"] <= found["replicas_max"]:
        raise InputError(f"replicas_min is {found['replicas_min']}, and replicas_max "
                         f"{found['replicas_max']}; expected 0 <= replicas_min <= replicas_max")
    return found


def check_token(host: str, token: str | None) -> None:
    """Raise InputError where others are let in, and no token keeps anybody out."""
    if not is_loopback(host) and len(token or "") < TOKEN_CHARACTERS_MIN:
        raise InputError(f"host is {host!r:.80}, which lets other computers in; set SMALTI_TOKEN "
                         f"to a token of at least {TOKEN_CHARACTERS_MIN} characters, on all nodes")


def app(args: Mapping[str, Any]) -> Any:
    """The application of Serve; `args` are `OPTIONS`."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    asked = checked(args)
    check_token(asked["host"], settings.token())
    replicas = serve.deployment(Replica, name="replicas").options(
        max_ongoing_requests=1,
        ray_actor_options={"num_cpus": asked["cores"], "num_gpus": asked["gpus"]},
        autoscaling_config={
            "min_replicas": asked["replicas_min"], "max_replicas": asked["replicas_max"],
            "target_ongoing_requests": 1, "upscale_delay_s": 0.0,
            "downscale_delay_s": asked["idle_seconds"]},
        request_router_config=RequestRouterConfig(
            request_router_class=f"{__name__}:ModelRouter", initial_backoff_s=0.05,
            request_router_kwargs={"patience_seconds": asked["patience_seconds"]}),
    ).bind([str(each) for each in folders_of(asked)], asked["device"], loading_of(asked))
    front = serve.deployment(serve.ingress(answering)(Front), name="front").options(
        num_replicas=1, max_ongoing_requests=FRONT_ONGOING_MAX,
        logging_config={"enable_access_log": False},
        ray_actor_options={"num_cpus": 0})
    return front.bind(replicas, asked)
