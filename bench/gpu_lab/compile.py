"""Runs on a chip that is not there: the programs of a graph become reports, one JSON object a line.

    python -m gpu_lab.compile CHIP GRAPH OUT [--schedule …] [--texts FOLDER] [--no-matrices]
    python -m gpu_lab.compile CHIP FILE.spv OUT --bindings 3 [--subgroup 32] [--constants 0=64]

`bench/gpu_compilers.py` starts it, in the environment of the chip.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import IO

from smalti.errors import SmaltiError
from smalti.kernel.form import Kernel

from .bound import bound, rates_of
from .graphs import graph_of
from .listing import hot_loop, mix, read
from .pipelines import Compiled, TellingGpu
from .programs import Compilable, changed, programs_of

SPILLS = ("Spilled VGPRs", "Spilled SGPRs", "Spills", "Spills to memory")
REGISTERS = ("VGPRs", "Number of GPRs", "Max live registers")
OCCUPANCY = ("Subgroups per SIMD", "Max warps/SM")
SHARED = ("LDS size", "Workgroup Memory Size")
"""What the drivers call their statistics."""
ENGINES = {"tgl": 16, "mtl": 16, "dg2": 16, "lnl": 8, "bmg": 8, "ptl": 8}
"""Vector engines of a core of Intel's, which has 128 KiB of shared memory and runs 8 threads an
engine."""
CORE_SHARED, ENGINE_THREADS = 128 << 10, 8


def first(statistics: dict[str, int | float], names: tuple[str, ...]) -> int:
    """The first of `names` that the driver tells, 0 where it tells none."""
    return next((int(statistics[name]) for name in names if name in statistics), 0)


def occupancy(statistics: dict[str, int | float], chip: str, threads: int) -> int:
    """Subgroups that one SIMD unit (AMD), multiprocessor (NVIDIA, by registers alone) or vector
    engine (Intel, by shared memory alone) runs at a time, of work-groups of `threads` of them."""
    if chip not in ENGINES:
        return first(statistics, OCCUPANCY)
    shared = first(statistics, SHARED)
    groups = CORE_SHARED // shared if shared else threads * ENGINES[chip]
    return min(ENGINE_THREADS, max(groups, 1) * threads // ENGINES[chip])


def told(made: Compiled, chip: str, size: int) -> dict[str, object]:
    """What is reported of a program of work-groups of `size` that the driver compiled."""
    lines = read(made.assembly)
    hot, around = hot_loop(lines)
    found: dict[str, object] = {
        "subgroup": made.subgroup,
        "registers": first(made.statistics, REGISTERS),
        "spills": sum(int(made.statistics.get(name, 0)) for name in SPILLS),
        "scratch": sum(count for kind, count in mix(around).items()
                       if kind.startswith("scratch")),
        "occupancy": occupancy(made.statistics, chip, -(-size // max(made.subgroup, 1))),
        "loop": mix(hot), "all": mix(lines), "statistics": made.statistics}
    if hot:
        part, unit = bound(hot, rates_of(chip), made.subgroup)
        found |= {"bound": part, "unit": unit, "driver": estimate(made, chip, hot)}
    return found


def estimate(made: Compiled, chip: str, hot: list) -> float:
    """The driver's own estimate of clocks for a matrix instruction of the hot loop (a multiply-add
    where there is none), as far as it tells one: of the whole program but for NVIDIA's.

    AMD's "Inverse Throughput" is for 64 invocations and takes loops 8 times, Intel's "Cycles" 10
    times; NVIDIA's are the waits between the instructions of the loop.
    """
    counts = mix(hot)
    work = counts.get("matrix", 0) or counts.get("fma", 0)
    if not work:
        return 0.0
    if "Inverse Throughput" in made.statistics:
        return made.statistics["Inverse Throughput"] * made.subgroup / 64 / 8 / work
    if chip in ENGINES:
        return made.statistics["Cycles"] / 10 / work
    return sum(line.cycles for line in hot) / work


def described(kernel: Kernel) -> str:
    """The form of a kernel and the extents of its longest stage."""
    stage = max(kernel.stages, key=lambda each: math.prod(
        n for _, n in (*each.axes, *each.reduced)))
    axes = "x".join(str(n) for _, n in stage.axes)
    reduced = "x".join(str(n) for _, n in stage.reduced)
    return f"{kernel.form} {axes}" + (f" over {reduced}" if reduced else "")


def report_of(gpu: TellingGpu, chip: str, number: int, each: Compilable,
              texts: Path | None) -> dict[str, object]:
    """The report of a program; its texts are written to a folder."""
    shader = each.shader
    report: dict[str, object] = {
        "number": number, "name": shader.name, "form": each.kernel.form, "step": each.step,
        "kernel": described(each.kernel), "schedule": str(each.schedule), "count": each.count,
        "groups": shader.groups, "size": shader.size}
    began = time.monotonic()
    try:
        made = gpu.told(shader, each.code)
    except SmaltiError as error:
        return report | {"error": str(error)}
    report |= told(made, chip, shader.size)
    if texts:
        written = {"kernel": f"{each.schedule}\n\n{each.kernel}\n", "program": str(each.program),
                   **made.texts}
        for title, text in written.items():
            plain = re.sub(r"\W+", "_", title)
            name = f"{number:03}-{shader.name}-{plain}.txt"
            (texts / name).write_text(text, encoding="utf-8")
    return report | {"seconds": round(time.monotonic() - began, 3)}


def write(out: IO[str], report: dict[str, object]) -> None:
    """A report as a line."""
    out.write(json.dumps(report) + "\n")
    out.flush()


def main() -> None:
    """Read the command line, compile, write reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("chip", "what", "out"):
        parser.add_argument(name)
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--schedule", default="")
    parser.add_argument("--no-matrices", action="store_true")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--bindings", type=int, default=3)
    parser.add_argument("--subgroup", type=int, default=0)
    parser.add_argument("--push", type=int, default=128)
    parser.add_argument("--constants", default="")
    given = parser.parse_args()
    gpu = TellingGpu(matrices=not given.no_matrices)
    if given.texts:
        given.texts.mkdir(parents=True, exist_ok=True)
    with open(given.out, "w", encoding="utf-8") as out:
        write(out, {"device": gpu.device.name, "driver": gpu.device.driver})
        if given.what.endswith(".spv"):
            constants = {int(n): int(value) for n, value in (
                pair.split("=") for pair in given.constants.split(",") if pair)}
            made = gpu.told_of(Path(given.what).read_bytes(), given.bindings, given.subgroup,
                               constants, given.push)
            write(out, {"number": 0, "name": Path(given.what).stem, "form": "shader", "count": 1,
                        **told(made, given.chip, constants.get(0, 0))})
        else:
            programs = programs_of(gpu, graph_of(given.what), given.precision,
                                   changed(given.schedule))
            for number, each in enumerate(programs):
                write(out, report_of(gpu, given.chip, number, each, given.texts))
    sys.stdout.flush()
    os._exit(0)  # a driver that ends without a device crashes


if __name__ == "__main__":
    main()
