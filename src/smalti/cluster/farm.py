"""Schedules measured on several computers at once: a tuning farm.

Computers of one kind are those whose measurements hold for one another: the same device, driver,
feature level, threads and code (`MeasurementScope`). Each tries a part of every kernel's candidates
(`tune/heats.py`). What one of them finds best may be luck, or true of that computer alone; so the
best of all are judged by every computer of the kind, and the median of their ratios counts.

    for part in Farm(cluster, programs, seconds=600, tell=print).parts():
        part.kinds                       # what was found, judged and kept on each kind
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from statistics import median
from typing import Any, TypeAlias

from smalti import settings
from smalti.claim import temporary_folder
from smalti.cluster import shared_cache
from smalti.cluster.greeting import Greeter
from smalti.cluster.interface import Cluster, ClusterNode, ClusterWorker, Told
from smalti.cluster.waiting import answers
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.runtime import cache
from smalti.runtime.cpu.model import CALIBRATION
from smalti.runtime.known import GENERATORS, store
from smalti.runtime.tuner import Tuner
from smalti.tune.heats import ALL, Final, Heat, PartOf
from smalti.tune.store import NAME, RATIO_MAX, MeasurementScope, ScheduleStore

FINALISTS = 3
"""Schedules of a kernel that all judge: the best of many has been lucky, one of three has not."""
FINAL_SHARE = 0.3
"""Of the time of a part, for judging: a candidate takes ten ratios, and few reach the final."""
SLICE_SECONDS = 20.0
"""After which a computer tells what it has found, so that no more of it is lost with it."""

Programs: TypeAlias = Callable[..., tuple[int, Iterator[tuple[Any, Any, Any]]]]
"""Given `threads`, the number of programs, and an iterator over each with its inputs and the
function that reads its weights."""
Verdict: TypeAlias = dict[tuple[str, str], tuple[float, float]]
"""Seconds and ratio, by the texts of a kernel and a schedule."""


class TuneWorker:
    """Measures on its computer, in a store of its own that knows what the farm knows."""

    def __init__(self, code: str, programs: Programs, threads: int, keeper: ClusterWorker) -> None:
        Greeter(code)
        own = settings.cache_folder()
        self._own = ScheduleStore(own / NAME)
        self._until = ExitStack()
        folder = self._until.enter_context(temporary_folder("tune"))
        if (own / CALIBRATION).exists():
            (folder / CALIBRATION).write_bytes((own / CALIBRATION).read_bytes())
        settings.give({"SMALTI_CACHE": str(folder)})
        shared_cache.share(keeper)
        self._count, self._programs = programs(threads=threads)
        self._lines: set[str] = set()
        self._tuner: Tuner | None = None
        self._heat: Heat = ALL

    def begin(self, lines: Sequence[str]) -> tuple[int, str, MeasurementScope] | None:
        """The number of programs, and the name and scope of the next one, for which these
        measurements are known, and kept by this computer; None behind the last."""
        for each in (store(), self._own):
            each.take(lines, cache.code_digest(*GENERATORS))
        following = next(self._programs, None)
        if following is None:
            self._until.close()  # Ray ends the process without a word
            return None
        self._program, self._inputs, self._read = following
        self._trials = self._program.trials()
        if self._trials is None:
            raise InputError(f"{self._program.name}: a model whose shapes depend on data cannot be "
                             f"tuned")
        self._lines = set(store().lines())
        return self._count, self._program.name, self._trials.scope

    def search(self, heat: Heat, seconds: float) -> tuple[list[str], bool]:
        """Try candidates for some seconds: lines of the store that are new, and whether there are
        candidates left."""
        left = self._turns(heat, seconds)
        new = [line for line in store().lines() if line not in self._lines]
        self._lines.update(new)
        return new, left

    def judge(self, wanted: Mapping[str, Sequence[str]], seconds: float) -> Verdict:
        """What these schedules take here."""
        self._turns(Final(wanted), seconds)
        assert self._tuner is not None
        found = {(entry.text, str(entry.contest.candidates[number])):
                 (entry.seconds * ratio / len(entry.regions), entry.before * ratio)
                 for entry in self._tuner.entries if entry.looked_at
                 for number, ratio in entry.contest.found.items() if ratio < float("inf")}
        self._tuner = None
        return found

    def _turns(self, heat: Heat, seconds: float) -> bool:
        end = time.monotonic() + seconds
        if self._tuner is None or heat != self._heat:
            self._heat = heat
            self._tuner = Tuner(self._trials, self._inputs, self._read, heat)
        while time.monotonic() < end:
            if not self._tuner.turn():
                return False
        return True


@dataclass
class TunedKind:
    """What came of a program on computers of one kind: their names; schedules tried; those that
    one computer found to be faster, with the ratio there and the ratios of all that judged them."""

    scope: MeasurementScope
    nodes: tuple[str, ...]
    tried: int = 0
    finalists: dict[tuple[str, str], tuple[float, tuple[float, ...]]] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """How many of those are faster on the kind."""
        return sum(median(ratios) <= RATIO_MAX for _, ratios in self.finalists.values() if ratios)


@dataclass(frozen=True)
class TunedPart:
    """A program, and what came of it on each kind."""

    name: str
    kinds: tuple[TunedKind, ...]


class Farm:
    """Tunes programs on all nodes of a cluster, in `seconds` for all of them together."""

    def __init__(self, cluster: Cluster, programs: Programs, threads: int | None, seconds: float,
                 tell: Callable[[str], None], make: Callable[..., Any] = TuneWorker) -> None:
        self._cluster, self._seconds, self._tell = cluster, seconds, tell
        keeper = cluster.begin_here(shared_cache.Keeper, (settings.cache_folder(),))
        self._workers: dict[str, tuple[ClusterNode, ClusterWorker]] = {}
        for node in cluster.nodes():
            arguments = (cache.code_digest(), programs, threads or node.cores, keeper)
            self._workers[node.id] = node, cluster.begin(node, node.cores, make, arguments)
        if not self._workers:
            raise InputError("the cluster has no node that gives out cores; begin some, with `ray "
                             "start --address=HOST:PORT`")

    def parts(self) -> Iterator[TunedPart]:
        """What came of each program; what is measured is in the store by then, also where the
        search is ended before."""
        done = 0
        while self._workers:
            begun = self._all("begin", {id: (list(store().lines()),) for id in self._workers})
            begun = {id: told for id, told in begun.items() if told is not None}
            if not begun:
                return
            count, name, _ = next(iter(begun.values()))
            started, seconds = time.monotonic(), self._seconds / max(1, count - done)
            nodes: dict[MeasurementScope, list[str]] = defaultdict(list)
            for id, (_, _, scope) in begun.items():
                nodes[scope].append(id)
            kinds = {scope: TunedKind(scope, tuple(self._workers[id][0].name for id in ids))
                     for scope, ids in nodes.items()}
            lines: list[str] = []
            try:
                self._search(nodes, kinds, lines, seconds * (1 - FINAL_SHARE), name)
                self._judge(nodes, kinds, lines, seconds * FINAL_SHARE)
            finally:
                self._keep(lines)
            yield TunedPart(name, tuple(kinds.values()))
            done += 1
            self._seconds -= time.monotonic() - started
        raise InputError("no node of the cluster is left that can tune; what was measured is kept")

    # ------------------------------------------------------------------ measuring

    def _search(self, nodes: Mapping[MeasurementScope, Sequence[str]],
                kinds: Mapping[MeasurementScope, TunedKind], lines: list[str], seconds: float,
                name: str) -> None:
        """Add lines of what was measured; those that were found to be faster are finalists."""
        heats = {id: PartOf(number, len(ids)) for ids in nodes.values()
                 for number, id in enumerate(ids)}
        end, busy = time.monotonic() + seconds, {*heats}
        while busy and (left := end - time.monotonic()) > 0:
            told = self._all("search", {id: (heats[id], min(SLICE_SECONDS, left))
                                        for id in self._workers if id in busy})
            for new, _ in told.values():
                lines += new
            busy = {id for id, (_, more) in told.items() if more}
            self._tell(f"tuning {name}: {len(lines)} schedules tried on {len(told)} nodes, "
                       f"{max(0, round(left))} s left")
        entries = [json.loads(line) for line in lines]
        for scope, kind in kinds.items():
            measured = [entry for entry in entries if _scope(entry) == scope]
            kind.tried = len(measured)
            kind.finalists = {key: (ratio, ()) for key, ratio in _finalists(measured).items()}

    def _judge(self, nodes: Mapping[MeasurementScope, Sequence[str]],
               kinds: Mapping[MeasurementScope, TunedKind], lines: list[str], seconds: float
               ) -> None:
        """Have all of a kind judge its finalists: lines then say what they say, and that the rest
        was tried and is no better."""
        asked: dict[str, tuple[dict[str, list[str]], float]] = {}
        for scope, kind in kinds.items():
            wanted: dict[str, list[str]] = defaultdict(list)
            for kernel, schedule in kind.finalists:
                wanted[kernel].append(schedule)
            asked |= {id: (dict(wanted), seconds) for id in nodes[scope]
                      if wanted and len(nodes[scope]) > 1 and id in self._workers}
        told = self._all("judge", asked)
        for scope, kind in kinds.items():
            verdicts = [told[id] for id in nodes[scope] if id in told]
            for key, (found, _) in kind.finalists.items():
                judged = tuple(each[key][1] for each in verdicts if key in each)
                kind.finalists[key] = found, judged or (found,)
        for place, line in enumerate(lines):
            entry = json.loads(line)
            key = entry["kernel"], entry["schedule"]
            ratios = kinds[_scope(entry)].finalists.get(key, (1.0, ()))[1]
            entry["verified"] = entry["verified"] and bool(ratios)
            if ratios:
                entry["seconds"] *= median(ratios) / entry["ratio"]
                entry["ratio"] = median(ratios)
            lines[place] = json.dumps(entry)

    def _keep(self, lines: Iterable[str]) -> None:
        store().take(lines, cache.code_digest(*GENERATORS))

    def _all(self, method: str, asked: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """What nodes tell that are asked at the same time; those that are lost, or refuse, take no
        part any more."""
        waiting = {self._cluster.ask(self._workers[id][1], method, *arguments): id
                   for id, arguments in asked.items()}
        told: dict[str, Any] = {}
        refused = []
        nodes = {ticket: self._workers[id][0] for ticket, id in waiting.items()}
        for ticket, answer in answers(self._cluster, nodes, self._tell):
            id = waiting[ticket]
            if isinstance(answer, Told):
                told[id] = answer.value
                continue
            node, worker = self._workers.pop(id)
            self._cluster.end(worker)
            refused.append(f"{node.name} is left out: {answer.why}")
            self._tell(f"{refused[-1]}\n")
        if asked and not told:
            raise InputError("; ".join(refused))
        return told


def _scope(entry: Mapping[str, Any]) -> MeasurementScope:
    return MeasurementScope(**{name: entry[name] for name in MeasurementScope.__dataclass_fields__})


def _finalists(measured: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Ratios of the best schedules of each kernel that are faster, by the texts of both."""
    by_kernel: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for entry in measured:
        if entry["verified"] and entry["ratio"] <= RATIO_MAX:
            by_kernel[entry["kernel"]].append((entry["ratio"], entry["schedule"]))
    return {(kernel, schedule): ratio for kernel, found in by_kernel.items()
            for ratio, schedule in sorted(found)[:FINALISTS]}
