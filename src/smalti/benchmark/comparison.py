"""Our programs against other engines, in runs that alternate: medians, ratios, agreement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from smalti.benchmark.agreement import largest_error, psnr
from smalti.benchmark.cuda import absence
from smalti.benchmark.engines import (
    ENGINES,
    PEERS,
    Job,
    expected_outputs,
    export,
    outputs_on_cpu,
)
from smalti.benchmark.suite import Case
from smalti.benchmark.table import Row, columns, duration
from smalti.benchmark.turns import TRIES_MAX, Worker, alternate, in_fresh_process
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.runtime.choice import described
from smalti.runtime.drivers import driver_of

ERROR_MAX = {"f32": 1e-4, "f16": 1e-2, "bf16": 2e-2}
"""The largest relative L2 against PyTorch in f32 that passes: f32 sums in another order, f16 keeps
11 bits of a number and bf16 8, and the errors of layers add up."""
EXPORT_RATIO_MAX = 1.05
"""The largest time with the exported ONNX file, over that with our own graph of the model, that
passes: both should become the same kernels, so 5 % is the noise of a measurement."""
PSNR_MIN = 40.0
"""The smallest PSNR in dB of a picture computed in f16 or bf16, against PyTorch in f32, that
passes: an error of 1 % of the range, which is hardly visible."""


@dataclass(frozen=True)
class Agreement:
    """Distance of outputs from those of PyTorch in f32, or where that is not there from those of
    our own program on the CPU; `psnr` only of pictures."""

    error: float
    psnr: float | None


@dataclass(frozen=True)
class Duel:
    """Seconds of our turns and of those of one peer between them."""

    peer: str
    ours: list[float]
    theirs: list[float]
    agreement: Agreement
    note: str

    @property
    def median(self) -> float:
        """Median seconds of the peer."""
        return statistics.median(self.theirs)

    @property
    def ratio(self) -> float:
        """Our median time over theirs: below 1 we are faster."""
        return statistics.median(self.ours) / self.median


@dataclass(frozen=True)
class Measured:
    """A case in one precision on a device. Without peers `alone` are our times, and on the CPU
    `agreement` is None. All engines were held to the feature level `target`, if there is one."""

    case: Case
    precision: str
    alone: list[float]
    agreement: Agreement | None
    duels: list[Duel] = field(default_factory=list)
    device: str = "cpu"
    target: str | None = None

    @property
    def arithmetic(self) -> str:
        """The precision, and the feature level that all engines were held to: "f32, avx2"."""
        return self.precision + (f", {self.target}" if self.target else "")

    @property
    def bound(self) -> float | None:
        """What is asked of our time over that of the fastest peer, on the CPU."""
        return None if driver_of(self.device).of_gpus else self.case.bounds.get(self.arithmetic)

    @property
    def ours(self) -> float:
        """Our median over all turns."""
        return statistics.median([*self.alone, *(s for duel in self.duels for s in duel.ours)])

    @property
    def best(self) -> Duel | None:
        """The duel with the fastest peer."""
        return min((duel for duel in self.duels if duel.peer in PEERS),
                   key=lambda duel: duel.median, default=None)

    def row(self) -> Row:
        """Asked, measured, ok; nothing is said to be ok when there was no peer."""
        what, bound = f"{self.case.title}, {self.arithmetic}", self.bound
        asked = [f"<= {bound:.2f}x"] if bound else []
        said, ok = [f"ours {duration(self.ours)}"], []
        if self.best is not None:
            said.insert(0, f"{self.best.ratio:.2f}x")
            said.append(f"{ENGINES[self.best.peer].title} {duration(self.best.median)}")
            ok += [self.best.ratio <= bound] if bound else []
        for duel in self.duels:
            if duel.peer == "smalti_onnx":
                asked.append(f"from ONNX <= {EXPORT_RATIO_MAX:g}x")
                said.append(f"from ONNX {1 / duel.ratio:.2f}x")
                ok.append(1 / duel.ratio <= EXPORT_RATIO_MAX)
        if self.agreement is not None:
            asked.append(f"L2 <= {ERROR_MAX[self.precision]:g}")
            said.append(f"L2 {self.agreement.error:.1e}")
            ok.append(self.agreement.error <= ERROR_MAX[self.precision])
            if self.agreement.psnr is not None and self.precision != "f32":
                asked.append(f">= {PSNR_MIN:g} dB")
                said.append(f"{self.agreement.psnr:.1f} dB")
                ok.append(self.agreement.psnr >= PSNR_MIN)
        return Row(what, ", ".join(asked), ", ".join(said), all(ok) if ok else None)


@dataclass(frozen=True)
class Plan:
    """How to measure: peers by name, worker threads, turns of each, folder for their files, device.

    Turns that other processes disturb are repeated up to `tries_max` times. `objective` is what our
    own schedules are chosen for; with a `target` all engines are held to that feature level.
    """

    peers: tuple[str, ...]
    threads: int
    rounds: int
    exports: Path
    say: Callable[[str], None]
    tries_max: int = TRIES_MAX
    objective: str = "latency"
    device: str = "cpu"
    target: str | None = None


def installed(peers: Sequence[str], say: Callable[[str], None],
              device: str = "cpu", target: str | None = None) -> tuple[str, ...]:
    """Those of `peers` that can be used on a device, and held to the feature level `target` if one
    is given; says in one line what each other one lacks.

    All of them need PyTorch, which makes the ONNX files and the outputs that all are compared
    with. Raises InputError for an unknown name.
    """
    known = [name for name in ENGINES if name != "smalti"]
    unknown = [name for name in peers if name not in known]
    if unknown:
        raise InputError(f"--peers names {', '.join(map(repr, unknown))}; known: "
                         f"{', '.join(known)}")
    found, reference = [], ENGINES["torch"].missing()
    for name in peers:
        missing = list(dict.fromkeys([*ENGINES[name].missing(), *reference]))
        if not ENGINES[name].precisions(device):
            say(f"{ENGINES[name].title} is left out: it is measured on the CPU only")
        elif target is not None and not ENGINES[name].holdable:
            say(f"{ENGINES[name].title} is left out: it cannot be held to {target}")
        elif missing:
            say(f"{ENGINES[name].title} is left out: {', '.join(missing)} not installed; "
                f'pip install "smalti[peers]"')
        elif driver_of(device).of_gpus and name == "torch" and (
                why := absence(described(device).name)):
            say(f"{ENGINES[name].title} is left out: {why}")
        else:
            found.append(name)
    return tuple(found)


def measure(case: Case, precision: str, plan: Plan) -> Measured:
    """Our program and the peers, pair by pair, so that only two hold weights at a time."""
    job = Job(case, precision, plan.threads, plan.exports, plan.objective, plan.device,
              plan.target)
    peers = [name for name in plan.peers if precision in ENGINES[name].precisions(plan.device)]
    for name in plan.peers:
        if name not in peers:
            plan.say(f"{ENGINES[name].title} has no {precision} on {plan.device}: left out")
    if peers and not job.expected.exists():
        plan.say(f"{case.title}: exporting from PyTorch")
        in_fresh_process(export, job)
    expected = None
    if peers:
        expected = expected_outputs(job)
    elif driver_of(plan.device).of_gpus:
        plan.say(f"{case.title}: Smalti on the CPU, to compare with")
        expected = in_fresh_process(outputs_on_cpu, job)
    plan.say(f"{case.title}, {precision}: Smalti")
    with Worker("smalti", job) as ours:
        found = ours.ask("outputs")
        agreement = _agreement(case, found, expected) if expected else None
        alone, duels = [], []
        if peers and expected is not None:
            duels = list(_duels(ours, job, peers, plan, expected))
        else:
            (alone,) = alternate([ours], plan.rounds, plan.say, plan.tries_max)
    return Measured(case, precision, alone, agreement, duels, plan.device, plan.target)


def _duels(ours: Worker, job: Job, peers: Sequence[str], plan: Plan,
           expected: list[np.ndarray]) -> Iterator[Duel]:
    for peer in peers:
        plan.say(f"{job.case.title}, {job.precision}: {ENGINES[peer].title}")
        with Worker(peer, job) as theirs:
            agreement = _agreement(job.case, theirs.ask("outputs"), expected)
            own, others = alternate((ours, theirs), plan.rounds, plan.say, plan.tries_max)
            duel = Duel(peer, own, others, agreement, theirs.ask("note"))
            plan.say(f"  {duration(statistics.median(duel.ours))} / {duration(duel.median)} = "
                     f"{duel.ratio:.2f}")
            yield duel


def _agreement(case: Case, found: list[np.ndarray], expected: list[np.ndarray]) -> Agreement:
    return Agreement(largest_error(found, expected),
                     psnr(found[0], expected[0]) if case.picture else None)


def details(results: Sequence[Measured]) -> str:
    """Median times of all engines, with the relative L2 of each, as a table."""
    peers = [name for name in ENGINES if any(d.peer == name for r in results for d in r.duels)]
    lines = [("work", "", "Smalti", *(ENGINES[name].title for name in peers))]
    for result in results:
        duels = {duel.peer: duel for duel in result.duels}
        error = f" ({result.agreement.error:.0e})" if result.agreement else ""
        lines.append((result.case.title, result.arithmetic, duration(result.ours) + error,
                      *(f"{duration(duels[name].median)} ({duels[name].agreement.error:.0e})"
                        if name in duels else "" for name in peers)))
    return columns(lines)
