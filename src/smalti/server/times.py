"""Where the time of a picture went: its stages as they were timed, and the kernels of each.

Programs of a CPU time each of their kernels in every run anyway; those of a GPU where the engine
timed a run for reasons of its own. What a worker keeps of a job are these numbers of its last runs;
what the timing model expects is computed when somebody asks, and as long as the programs of the
job are in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smalti.dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    from smalti.compiler.kernel_table import KernelRow
    from smalti.diffusion.submodels import PartRuns
    from smalti.server.archive import JobRecord

JOBS_KEPT = 16
"""Jobs whose kernels are known: those that somebody may look at after they were made."""
KERNELS_TOLD = 10
"""The longest of a stage."""
STAGES = {"prepare": "compiling and loading", "text": "text encoder", "encode": "image encoder",
          "denoise": "denoise", "upscale": "upscaler", "decode": "decode"}
"""Of the timings of a picture, in the order in which they come."""
OTHER = "other"
"""What no stage has: reading the request, writing files, waiting."""
PARTS = {"vae": "decode", "vae_encoder": "encode", "text": "text", "text_2": "text",
         "text_3": "text"}
"""The stages of parts of a model; all others denoise."""


@dataclass(frozen=True)
class PartTimes:
    """A part of a model, by its name there, in a job: how often it ran, and the seconds of each
    kernel in the last run, None where they were not measured."""

    part: str
    runs: PartRuns
    seconds: np.ndarray | None


class JobTimes:
    """What is known of the last jobs, for all threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._kept: OrderedDict[str, list[tuple[str, PartTimes]]] = OrderedDict()
        self._told: dict[str, dict[str, Any]] = {}
        self._explaining = threading.Lock()
        self._explained: dict[tuple[str, bool], list[dict[str, str]]] = {}

    def keep(self, id: str, runs: Mapping[tuple[str, Any], PartRuns]) -> None:
        """Keep what the parts of a model did in a job, before another one runs them."""
        found = []
        for (part, _), each in runs.items():
            program = each.program()
            if program is not None:
                found.append((PARTS.get(part, "denoise"), PartTimes(
                    part, each, program.measured())))
        with self._turn:
            self._kept[id] = found
            while len(self._kept) > JOBS_KEPT:
                old, _ = self._kept.popitem(last=False)
                self._told.pop(old, None)
                for whole in (False, True):
                    self._explained.pop((old, whole), None)

    def explained(self, job: JobRecord, all: bool) -> dict[str, Any]:
        """What the programs of a job consist of, as `smalti explain` says it, for each that is in
        memory; `all` of it, or the longest kernels.

        It is computed once, and of one job at a time: it takes a quarter of a second of what makes
        pictures, too.
        """
        with self._explaining:
            with self._turn:
                kept = self._kept.get(job.id, [])
                known = self._explained.get((job.id, all))
            if known is not None:
                return {"programs": known}
            found = []
            for stage, each in kept:
                program = each.runs.program()
                if program is not None:
                    found.append({"part": each.part, "stage": STAGES[stage],
                                  "text": program.explain(all=all)})
            with self._turn:
                if found and job.id in self._kept:
                    self._explained[job.id, all] = found
            return {"programs": found}

    def told(self, job: JobRecord) -> dict[str, Any]:
        """The stages of a job that is done, as JSON."""
        with self._turn:
            if job.id in self._told:
                return self._told[job.id]
            kept = self._kept.get(job.id, [])
        seconds = {name: job.timings[name] for name in [*STAGES, *job.timings]
                   if name in job.timings}
        rest = (job.ended or 0.0) - (job.started or 0.0) - sum(seconds.values())
        if rest > 0:
            seconds[OTHER] = rest
        total = sum(seconds.values()) or 1.0
        found = {"stages": [
            {"name": STAGES.get(name, name), "seconds": took, "share": took / total,
             **_kernels([parts for stage, parts in kept if stage == name], took)}
            for name, took in seconds.items()]}
        with self._turn:
            if job.id in self._kept:
                self._told[job.id] = found
        return found


def _kernels(parts: Sequence[PartTimes], stage_seconds: float) -> dict[str, Any]:
    """What is expected of a stage, None where nothing is known, and its longest kernels."""
    found: list[dict[str, Any]] = []
    expected = 0.0
    for each in parts:
        program = each.runs.program()
        table = None if program is None else program.kernels()
        for row in [] if table is None else table.rows:
            if not row.seldom:
                found.append(_kernel(row, each, stage_seconds))
                expected += found[-1]["expected"] or 0.0
    found.sort(key=lambda each: -(each["seconds"] or each["expected"] or 0.0))
    return {"expected": expected or None, "kernels": _named(found[:KERNELS_TOLD])}


def _kernel(row: KernelRow, part: PartTimes, stage_seconds: float) -> dict[str, Any]:
    """One kernel over all runs of its part, each taken to be like the last one."""
    runs = part.runs.count
    measured = None if part.seconds is None or row.number >= len(part.seconds) else (
        runs * float(part.seconds[row.number]))
    expected = None if row.expected is None else runs * row.expected
    took = measured if measured is not None else expected or 0.0
    return {"name": row.scope or row.form, "form": row.form, "number": row.number, "runs": runs,
            "seconds": measured, "expected": expected, "limit": row.limit,
            "share": min(1.0, took / stage_seconds) if stage_seconds else 0.0}


def _named(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kernels with names that are all different."""
    names = [each["name"] for each in kernels]
    return [each if names.count(each["name"]) == 1 else
            {**each, "name": f"{each['name']} ({each['form']} {each['number']})"}
            for each in kernels]
