"""Speed of one part against other engines, in runs that alternate, each in its own process."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from engines import NEEDS_EXPORT, Job, Turn, Worker, export, exported, in_fresh_process
from parts import PARTS, peers_models
from table import Row, spread

RATIO_MAX = {"onnxruntime": 2.0}
"""Our time as a multiple of the engine's; the others are for information."""
ERROR_MAX = 1e-3
"""Between engines: more, and one of them does not compute in f32."""
OTHERS_MAX = 0.15
TRIES_MAX = 8
SLOWEST_SHOWN = 12


def duel_rows(path: Path, part: str, peers: Sequence[str], threads: int, rounds: int,
              exports: Path, explain: bool) -> list[Row]:
    """One row a peer: medians of `rounds` alternating runs after one warm-up of each."""
    job = Job(path, part, threads, exports)
    if set(peers) & set(NEEDS_EXPORT) and not exported(job).exists():
        print(f"exporting {PARTS[part].title} to ONNX", flush=True)
        in_fresh_process(export, job)
    rows = []
    for peer in peers:
        with Worker("smalti", job) as ours, Worker(peer, job) as theirs:
            error = peers_models.relative_error(ours.ask("output"), theirs.ask("output"))
            taken = alternate((ours, theirs), rounds)
            note, kernels = theirs.ask("note"), ours.ask("note")
        rows.append(_row(part, peer, *taken, error, note))
        print(rows[-1], flush=True)
    if explain and rows:
        print(slowest(kernels))
    return rows


def alternate(workers: Sequence[Worker], rounds: int) -> list[list[float]]:
    """Seconds of `rounds` undisturbed runs of each worker, which take turns.

    A run is disturbed when other processes keep more than `OTHERS_MAX` of a core busy; it is
    repeated, up to `TRIES_MAX` turns in all, then disturbed ones count too, and that is said.
    """
    calm: list[list[Turn]] = [[] for _ in workers]
    rough: list[list[Turn]] = [[] for _ in workers]
    for _ in range(TRIES_MAX):
        for number, worker in enumerate(workers):
            turn = worker.ask("run")
            (calm if turn.cores_of_others <= OTHERS_MAX else rough)[number].append(turn)
        if min(map(len, calm)) >= rounds:
            return [[turn.seconds for turn in turns] for turns in calm]
    print("the machine is not quiet: other processes disturbed the runs", flush=True)
    return [[turn.seconds for turn in (*good, *bad)]
            for good, bad in zip(calm, rough, strict=True)]


def _row(part: str, peer: str, ours: list[float], theirs: list[float], error: float,
         note: str) -> Row:
    ratio = statistics.median(ours) / statistics.median(theirs)
    said = (f"{ratio:.2f}x: ours {spread(ours)}, theirs {spread(theirs)}; outputs differ by "
            f"{error:.0e}")
    bound = RATIO_MAX.get(peer)
    asked = "" if bound is None else f"<= {bound:g}x"
    ok = None if bound is None else ratio <= bound and error <= ERROR_MAX
    return Row(f"{PARTS[part].title}: against {note}", asked, said, ok)


def slowest(explained: str) -> str:
    """The kernels that take most time, of what `Program.explain` says after a run."""
    lines = explained.splitlines()
    timed = [(float(found[1]), line) for line in lines
             if (found := re.match(r"\s*\d+\s+([\d.]+) ms", line))]
    timed.sort(reverse=True)
    return "\n".join([lines[0], *(line for _, line in timed[:SLOWEST_SHOWN])])
