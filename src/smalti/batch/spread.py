"""A batch over a cluster: workers on its nodes make pictures, this process writes them.

Each node has a worker a device, or several that share its cores, which loads the model once
(`PictureWorker`). One of them is a scout before: it looks whether the node can do the work, which
needs the same Smalti, the same files of the model, and the device that is asked for. A worker has
one record that it makes and one that waits, no more, so that pictures do not pile up before they
are written. What a node had that was lost is made by others; a node that comes, or comes back, gets
workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

from PIL import Image

from smalti import settings
from smalti.batch.crew import Crew, Died
from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord
from smalti.batch.run import check_workers, resolved, telling
from smalti.batch.worker import Maker
from smalti.claim import temporary_folder
from smalti.cluster import shared_cache
from smalti.cluster.greeting import Greeter, Greeting
from smalti.cluster.interface import (
    Cluster,
    ClusterNode,
    ClusterWorker,
    Declined,
    Lost,
    Ticket,
    Told,
    cpu_share,
)
from smalti.dataclass import dataclass
from smalti.diffusion.images import given
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.made_picture import encoded
from smalti.diffusion.options import PICTURE_NAMES
from smalti.diffusion.placement import AUTO
from smalti.errors import InputError
from smalti.runtime import cache
from smalti.runtime.container import replaced

PATHS = ("path", "vae", "text_encoders", "refiner", "loras", "lora_folder", "embeddings")
"""Of what is loaded, files and folders."""
WAITING = 2
"""Records of a worker: one that it makes, one that it need not wait for."""
NODES_SECONDS = 120.0
"""Waited for a node, where there is none left: one that is begun anew is there sooner."""
POLL_SECONDS = 2.0
"""How often nodes are looked for that are new."""
TRIES = 3
"""Times that a node is lost before it has told what it can do; then it is left out."""
SHARED_PICTURES = 32
"""Pictures that records begin with, which are held for all workers at a time."""


@dataclass(frozen=True)
class SpreadWork:
    """What workers load, by the names of `LoadOptions`, with names or whole paths, the text that
    tells it from others (`run.telling`), on a device; `workers` of each node, which share
    `threads`, or its cores."""

    loading: Mapping[str, Any]
    told: str
    device: str
    workers: int = 1
    threads: int | None = None

    @classmethod
    def of(cls, loaded: Mapping[str, Any], workers: int, progress: Callable[[str], None]
           ) -> SpreadWork:
        """The work of what is given as for `LoadOptions`. Raises InputError for what is wrong on
        every computer; whether a node has the device and the precision, it says itself."""
        theirs = {name: loaded[name] for name in ("precision", "gpu_memory") if name in loaded}
        asked = LoadOptions(**{**loaded, "device": "cpu", "precision": "auto", "gpu_memory": None},
                            progress=progress)
        loading, _ = resolved(asked)
        return cls({each.name: _whole(getattr(asked, each.name)) if each.name in PATHS
                    else getattr(asked, each.name) for each in fields(asked)
                    if each.name in loading} | theirs,
                   telling({**loading, **theirs}), loaded["device"], workers, loaded["threads"])


class PictureWorker(Greeter):
    """Looks at its node, then makes pictures on a device there, and tells what is in their files.
    """

    def __init__(self, code: str, work: SpreadWork, device: str, threads: int | None,
                 place: str, keeper: ClusterWorker | None) -> None:
        super().__init__(code)
        self._work, self._device, self._threads, self._place = work, device, threads, place
        if keeper is not None:
            self.share(keeper)
        self._made = b""
        self._maker: Maker | None = None

    def look_for_work(self) -> Greeting:
        """What the node has. Fetches the model, where it has a name. Raises InputError for files
        that are not those of the one that asks."""
        found = self.look(self._work.device, str(self._work.loading["precision"]))
        _loaded(self._work, found.devices[0])
        return replace(found, apart=shared_cache.place() != self._place or not self._place)

    def share(self, keeper: ClusterWorker) -> None:
        """From now on have compiled what the keeper has, and give it what is compiled here."""
        shared_cache.share(keeper)

    def make(self, record: BatchRecord, names: tuple[str, ...], *contents: bytes
             ) -> tuple[BatchOutcome, bytes]:
        """What became of a record, and its picture; `contents` are those of files that it names."""
        if self._maker is None:
            loading = _loaded(self._work, self._device)
            self._maker = Maker({**loading, "threads": self._threads}, self._keep)
        here: dict[str, str] = {}
        with ExitStack() as until:
            if names:
                folder = until.enter_context(temporary_folder("batch"))
                for number, (name, content) in enumerate(zip(names, contents, strict=True)):
                    here[name] = str(folder / f"{number}{Path(name).suffix}")
                    Path(here[name]).write_bytes(content)
            made = self._maker.make(replace(record, options=_moved(record.options, here)))
        assert made is not None
        return made, b"" if made.error else self._made

    def _keep(self, record: BatchRecord, image: Image.Image) -> None:
        self._made = encoded(image, Path(record.file))


def _whole(value: Any) -> Any:
    """A path as other computers are told it: a name as it is, what is here from the root on."""
    if type(value) in (list, tuple):
        return type(value)(map(_whole, value))
    if isinstance(value, str | Path) and Path(value).exists():
        return str(Path(value).absolute())
    return value


def _loaded(work: SpreadWork, device: str) -> dict[str, Any]:
    """What is loaded on this node. Raises InputError where its files are others."""
    loading, _ = resolved(LoadOptions(**{**work.loading, "device": device}))
    told = telling(loading)
    if told != work.told:
        raise InputError(f"files of the model are others there, or absent: expected {work.told}, "
                         f"found {told}; give the model by a name, or put the same files at the "
                         f"same place on all computers of the cluster")
    return loading


def pictures_of(record: BatchRecord) -> tuple[str, ...]:
    """The files with pictures that a record begins with."""
    found = [path for name in PICTURE_NAMES if record.options.get(name) is not None
             for path in given(record.options[name])]
    found += [each["image"] for each in record.options.get("controls", ())]
    return tuple(dict.fromkeys(found))


def _moved(options: Mapping[str, Any], here: Mapping[str, str]) -> dict[str, Any]:
    """The options with pictures where they are on this node."""
    found: dict[str, Any] = {
        name: value if name not in PICTURE_NAMES else here.get(value, value)
        if isinstance(value, str) else [here.get(each, each) for each in value]
        for name, value in options.items()}
    if "controls" in found:
        found["controls"] = [{**each, "image": here[each["image"]]} for each in found["controls"]]
    return found


@dataclass(eq=False)
class _Station:
    """A node, and what is known of it: its devices, which are expected until it was looked at, and
    whether its compile cache is apart; the scout that looks; workers and their devices by the
    workers' numbers."""

    node: ClusterNode
    devices: tuple[str, ...]
    looked_at: bool = False
    apart: bool = False
    scout: ClusterWorker | None = None
    workers: dict[int, tuple[ClusterWorker, str]] = field(default_factory=dict)
    losses: int = 0
    barred: bool = False


class ClusterCrew(Crew):
    """Workers on the nodes of a cluster. `tell` is called with lines that are to stay."""

    def __init__(self, cluster: Cluster, work: SpreadWork, folder: BatchFolder,
                 tell: Callable[[str], None], make: Callable[..., Any] = PictureWorker) -> None:
        check_workers(work.workers)
        self._cluster, self._work, self._folder, self._tell = cluster, work, folder, tell
        self._make = make
        self._stations: dict[str, _Station] = {}
        self._kinds: dict[str, set[str]] = {}
        self._refusals: dict[str, str] = {}
        self._looked = -POLL_SECONDS
        self._alone_since = time.monotonic()
        self._numbers = iter(range(1 << 62))
        self._scouting: dict[Ticket, _Station] = {}
        self._making: dict[Ticket, tuple[_Station, int, BatchRecord]] = {}
        self._queues: dict[int, list[Ticket]] = {}
        self._shared: dict[str, Any] = {}
        folder.clean()
        self._place = shared_cache.place()
        self._keeper: ClusterWorker | None = None  # begun where a node has another cache
        self._staff()

    # ------------------------------------------------------------------ records

    def has_room(self, left: int) -> bool:
        """Whether a worker has fewer records than it may have. The last ones wait for whoever is
        free first: behind another one, they might wait for a slow node while others have none."""
        count = sum(len(station.workers) for station in self._stations.values())
        return any(left > count or not self._queues[number] for number, _ in self._open())

    def give(self, record: BatchRecord) -> None:
        """Give a record to the worker that has the fewest."""
        number, station = min(self._open(), key=lambda each: len(self._queues[each[0]]))
        names = pictures_of(record)
        ticket = self._cluster.ask(station.workers[number][0], "make", record, names,
                                   *map(self._content, names))
        self._making[ticket] = station, number, record
        self._queues[number].append(ticket)

    def _open(self) -> list[tuple[int, _Station]]:
        """Workers that can be given a record: none of a node that has lost one, until a scout found
        that the node is still there, so that a record is to blame for no loss but its own."""
        return [(number, station) for station in self._stations.values() if station.looked_at
                for number in station.workers if len(self._queues[number]) < WAITING]

    def answers(self) -> Iterator[tuple[BatchRecord, BatchOutcome | Died]]:
        """What became of records; pictures are in the folder by then."""
        if time.monotonic() - self._looked >= POLL_SECONDS:
            self._staff()
        tickets = [*self._making, *self._scouting]
        if not tickets:
            self._wait_for_nodes()
            return
        self._alone_since = time.monotonic()
        for ticket, told in self._cluster.ready(tickets, POLL_SECONDS):
            if ticket in self._scouting:
                self._looked_at(self._scouting.pop(ticket), told)
            elif ticket in self._making:  # else its worker was lost with a record before it
                yield from self._answered(ticket, told)

    def end(self) -> None:
        """End all workers."""
        for station in self._stations.values():
            for worker, _ in station.workers.values():
                self._cluster.end(worker)
        if self._keeper is not None:
            self._cluster.end(self._keeper)

    def _answered(self, ticket: Ticket, told: Told | Declined | Lost
                  ) -> Iterator[tuple[BatchRecord, BatchOutcome | Died]]:
        station, number, record = self._making[ticket]
        if isinstance(told, Declined):
            raise InputError(f"{station.node.name}: {told.why}")
        if isinstance(told, Lost):
            worker, device = station.workers.pop(number)
            self._tell(f"{station.node.name} lost a worker ({told.why}); others make what it "
                       f"had\n")
            self._cluster.end(worker)
            station.looked_at = False  # whether the node is still there, a scout finds
            for place, each in enumerate(self._queues.pop(number)):
                _, _, record = self._making.pop(each)
                yield record, Died(f"{station.node.name}: {told.why}", making=place == 0)
            return
        del self._making[ticket]
        self._queues[number].remove(ticket)
        made, picture = told.value
        if not made.error:
            with replaced(self._folder.path / record.file) as stream:
                stream.write(picture)
        yield record, made

    def _content(self, name: str) -> Any:
        """What stands for the content of a file, which is read once for records that follow one
        another."""
        if name not in self._shared:
            try:
                content = Path(name).read_bytes()
            except OSError as error:
                raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
            self._shared[name] = self._cluster.share(content)
            if len(self._shared) > SHARED_PICTURES:
                del self._shared[next(iter(self._shared))]
        return self._shared[name]

    # ------------------------------------------------------------------ nodes

    def _staff(self) -> None:
        """Look at nodes that are new; begin workers anew where some were lost."""
        self._looked = time.monotonic()
        alive = {node.id: node for node in self._cluster.nodes()}
        for gone in self._stations.keys() - alive.keys():
            station = self._stations[gone]
            station.looked_at = False
            self._dismiss(station)
            if not station.workers and station not in self._scouting.values():
                del self._stations[gone]
        for id, node in alive.items():
            station = self._stations.setdefault(id, _Station(node, self._expected(node)))
            if station.barred or station.scout is not None:
                continue
            if station.looked_at:
                self._begin(station)
            else:
                self._send_scout(station)

    def _expected(self, node: ClusterNode) -> tuple[str, ...]:
        """The devices of a node that nobody looked at; none where there is no saying."""
        return ("cpu",) if node.gpus == 0 and self._work.device in (AUTO, "cpu") else ()

    def _send_scout(self, station: _Station) -> None:
        """Have a node looked at: by a worker that it lacks, since that begins meanwhile, else by a
        process that takes no core."""
        begun = self._begin(station) if station.devices else []
        station.scout = begun[0] if begun else self._worker(station, "", None, 0.0, 0.0)
        self._scouting[self._cluster.ask(station.scout, "look_for_work")] = station

    def _dismiss(self, station: _Station) -> None:
        """End workers that have no record."""
        for number in [each for each in station.workers if not self._queues[each]]:
            self._cluster.end(station.workers.pop(number)[0])
            del self._queues[number]

    def _looked_at(self, station: _Station, told: Told | Declined | Lost) -> None:
        """What a scout found."""
        scout, station.scout = station.scout, None
        assert scout is not None
        if all(worker is not scout for worker, _ in station.workers.values()):
            self._cluster.end(scout)
        if not isinstance(told, Told) or told.value.devices != station.devices:
            self._dismiss(station)
        if isinstance(told, Told):
            station.devices, station.looked_at = told.value.devices, True
            if told.value.apart:
                self._share(station)
            self._kinds.setdefault(told.value.kind, set()).add(station.node.name)
            self._begin(station)
            self._tell(f"{station.node.name}: {len(station.workers)} workers on "
                       f"{', '.join(dict.fromkeys(station.devices))}, {told.value.kind}\n")
            if len(self._kinds) == 2 and len(self._kinds[told.value.kind]) == 1:
                self._tell("nodes are of several kinds: pictures of one kind may differ from those "
                           "of another in the last bits\n")
            return
        station.losses += 1
        station.barred = isinstance(told, Declined) or station.losses == TRIES
        if station.barred:
            self._refusals[station.node.name] = told.why
            self._tell(f"{station.node.name} is left out: {told.why}\n")

    def _share(self, station: _Station) -> None:
        """Have workers of a node share the compile cache of this computer."""
        station.apart = True
        if self._keeper is None:
            self._keeper = self._cluster.begin_here(shared_cache.Keeper,
                                                    (settings.cache_folder(),))
        for worker, _ in station.workers.values():
            self._cluster.ask(worker, "share", self._keeper)  # before the first record

    def _places(self, station: _Station) -> list[tuple[str, int | None, float, float]]:
        """Of each worker that a node is to have: its device and threads, and the cores and GPUs
        that it takes there."""
        node, work = station.node, self._work
        if station.devices != ("cpu",):
            count = len(station.devices)
            shares = min(1.0, node.cores / count), min(1.0, node.gpus / count)
            return [(device, work.threads, *shares) for device in station.devices]
        threads, cores = cpu_share(node.cores, work.threads, work.workers)
        return [("cpu", threads, cores, 0.0)] * min(work.workers, max(1, node.cores // cores))

    def _begin(self, station: _Station) -> list[ClusterWorker]:
        """Begin the workers that a node lacks."""
        there = [device for _, device in station.workers.values()]
        begun = []
        for device, threads, cores, gpus in self._places(station):
            if device in there:
                there.remove(device)
                continue
            number = next(self._numbers)
            begun.append(self._worker(station, device, threads, cores, gpus))
            station.workers[number] = begun[-1], device
            self._queues[number] = []
        return begun

    def _worker(self, station: _Station, device: str, threads: int | None, cores: float,
                gpus: float) -> ClusterWorker:
        arguments = (cache.code_digest(), self._work, device, threads, self._place,
                     self._keeper if station.apart else None)
        return self._cluster.begin(station.node, cores, self._make, arguments, gpus)

    def _wait_for_nodes(self) -> None:
        """Wait a moment for a node. Raises InputError where none comes."""
        left_out = "".join(f"\n  {name}: {why}" for name, why in self._refusals.items())
        if self._refusals and all(each.barred for each in self._stations.values()):
            raise InputError(f"no node of the cluster can make these pictures:{left_out}")
        if time.monotonic() - self._alone_since > NODES_SECONDS:
            raise InputError(f"the cluster has no node left that gives out cores; begin some, and "
                             f"give the same command again: what is made stays{left_out}")
        time.sleep(POLL_SECONDS / 4)
