"""Seconds from the start of a process to the end of the first step of a picture."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from footprint import environment

from smalti.benchmark.table import Row

SECONDS_MAX = 2.5
"""Beyond the text encoder and the step itself."""
ROUNDS = 3
STEPS = 4
"""The first waits for all else; the next tells what a step takes, and the last would decode."""

RUN = """
import json, resource, sys, time
path, threads, steps, precision, started = sys.argv[1:]
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.pipeline import Pipeline
imported = time.monotonic()
pipe = Pipeline.load(path, device="cpu", threads=int(threads), precision=precision)
opened = time.monotonic()
job = pipe.job(PictureOptions.of(prompt="a red apple", seed=1, steps=int(steps)))
ends = []
for step in job.steps():
    ends.append(time.monotonic())
    if len(ends) == 3:
        break
print(json.dumps({
    "system": resource.getrusage(resource.RUSAGE_SELF).ru_stime,
    "import": imported - float(started), "open": opened - imported,
    "prepare": job.timings.seconds["prepare"], "text": job.timings.seconds["text"],
    "step": min(ends[1] - ends[0], ends[2] - ends[1]), "first": ends[0] - float(started)}))
"""
"""The process, which prints seconds by what they were for. `system` are seconds of a processor that
the system took, most of them to give memory."""


def first_step_row(path: Path, threads: int, precision: str = "auto") -> Row:
    """The best of some processes, with what a process before has compiled, and the file in the
    page cache."""
    with tempfile.TemporaryDirectory() as cache:
        found, env = [], environment(Path(cache))
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as when installed
        env["PYTHONPYCACHEPREFIX"] = f"{cache}/bytecode"
        for _ in range(ROUNDS + 1):
            command = [sys.executable, "-c", RUN, str(path), str(threads), str(STEPS),
                       precision, str(time.monotonic())]
            done = subprocess.run(command, env=env, check=True, text=True, stdout=subprocess.PIPE)
            found.append(json.loads(done.stdout))
    waited = [each["first"] - each["text"] - each["step"] for each in found[1:]]
    best = found[1:][waited.index(min(waited))]
    return Row.at_most(
        "start of a process to the end of the first step, beyond text encoder and step, precision "
        + precision,
        SECONDS_MAX, min(waited), " s",
        ", ".join(f"{name} {seconds:.2f}" for name, seconds in best.items()) +
        f"; middle {statistics.median(waited):.2f}")
