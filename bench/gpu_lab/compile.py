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
from dataclasses import astuple
from pathlib import Path
from typing import IO

from smalti.codegen.gpu.registers import kept, shared_bytes
from smalti.errors import SmaltiError
from smalti.kernel.form import Kernel
from smalti.schedule.compute_units import compute_unit
from smalti.schedule.group import (
    GroupContraction,
    GroupLimits,
)
from smalti.schedule.space_attention import AnyAttention, AttentionWork
from smalti.schedule.space_group import GroupWork

from .bound import bound, rates_of
from .chips import CHIPS
from .graphs import graph_of
from .listing import Line, executed, hot_loop, mix, read, work
from .pipelines import Compiled, TellingGpu
from .programs import Compilable, changed, programs_of

SPILLS = ("Spilled VGPRs", "Spilled SGPRs", "Spills", "Spills to memory")
REGISTERS = ("VGPRs", "Number of GPRs", "Max live registers")
SHARED = ("LDS size", "Workgroup Memory Size")
"""What the drivers call their statistics."""
NEEDED = "Pre-Sched VGPRs"
"""What a program of AMD's needs; its scheduler then fills what the number of subgroups leaves."""
TOLD = "Subgroups per SIMD"
"""How many subgroups run at a time, where the driver counts shared memory, too."""


def first(statistics: dict[str, int | float], names: tuple[str, ...]) -> int:
    """The first of `names` that the driver tells, 0 where it tells none."""
    return next((int(statistics[name]) for name in names if name in statistics), 0)


def occupancy(statistics: dict[str, int | float], chip: str, subgroup: int, size: int,
              shared: int) -> int:
    """Subgroups that a SIMD unit, a multiprocessor or a vector engine runs at a time, of
    work-groups of `size`: as AMD's driver says, by the facts of the others' units."""
    if TOLD in statistics:
        return int(statistics[TOLD])
    unit = compute_unit(CHIPS[chip].architecture)
    return unit.resident(first(statistics, REGISTERS), max(subgroup, 1), max(size, 1), shared)


def told(made: Compiled, chip: str, size: int, shared: int) -> dict[str, object]:
    """What is reported of a program of work-groups of `size`, with so many bytes of shared memory,
    that the driver compiled."""
    lines = read(made.assembly)
    hot, around = hot_loop(lines)
    found: dict[str, object] = {
        "subgroup": made.subgroup,
        "registers": first(made.statistics, REGISTERS),
        "needed": first(made.statistics, (NEEDED, *REGISTERS)),
        "spills": sum(int(made.statistics.get(name, 0)) for name in SPILLS),
        "scratch": sum(count for kind, count in mix(around).items()
                       if kind.startswith("scratch")),
        "occupancy": occupancy(made.statistics, chip, made.subgroup, size, shared),
        "loop": mix(hot), "all": mix(lines), "statistics": made.statistics}
    if hot:
        part, unit = bound(hot, rates_of(chip), made.subgroup)
        found |= {"bound": part, "unit": unit, "driver": estimate(made, lines, hot)}
    return found


def estimate(made: Compiled, lines: list[Line], hot: list[Line]) -> float:
    """The driver's own estimate of clocks for a matrix instruction (a multiply-add where there is
    none), as far as it tells one: of the whole program but for NVIDIA's, of the hot loop.

    AMD's "Inverse Throughput" is for 64 invocations and takes loops 8 times, Intel's "Cycles" 10
    times; NVIDIA's are the waits between the instructions of the loop. It is not good for loops in
    loops, which AMD's and Intel's compilers weigh in other ways.
    """
    if "Inverse Throughput" in made.statistics:
        clocks, count = made.statistics["Inverse Throughput"] * made.subgroup / 64, executed(lines)
    elif "Cycles" in made.statistics:
        clocks, count = made.statistics["Cycles"], executed(lines, 10)
    else:
        clocks = sum(line.cycles for line in hot)
        count = sum(line.kind == work(lines) for line in hot)
    return clocks / count if count else 0.0


def described(kernel: Kernel) -> str:
    """The form of a kernel and the extents of its longest stage."""
    stage = max(kernel.stages, key=lambda each: math.prod(
        n for _, n in (*each.axes, *each.reduced)))
    axes = "x".join(str(n) for _, n in stage.axes)
    reduced = "x".join(str(n) for _, n in stage.reduced)
    return f"{kernel.form} {axes}" + (f" over {reduced}" if reduced else "")


def chooser(each: Compilable, limits: GroupLimits) -> dict[str, float]:
    """What the chooser of schedules thinks of a program: registers of an invocation, and
    work-groups of a unit at a time. Empty where it does not think of them."""
    if not multiplies(each):
        return {}
    if isinstance(each.schedule, GroupContraction):
        work: GroupWork | AttentionWork = GroupWork.of(each.kernel, limits)
    elif isinstance(each.schedule, AnyAttention):
        work = AttentionWork.of(each.kernel, limits)
    else:
        return {}
    return {"registers": work.held(each.schedule), "groups": work.resident(each.schedule)}


def multiplies(each: Compilable) -> bool:
    """Whether a step is the one that multiplies: in front of it, a prepared patch is written, and
    behind it, shares of sums are added."""
    return each.step == int(getattr(each.schedule, "prepared", False))


def report_of(gpu: TellingGpu, chip: str, number: int, each: Compilable,
              texts: Path | None) -> dict[str, object]:
    """The report of a program; its texts are written to a folder."""
    shader = each.shader
    report: dict[str, object] = {
        "number": number, "name": shader.name, "form": each.kernel.form, "step": each.step,
        "kernel": described(each.kernel), "schedule": str(each.schedule), "count": each.count,
        "main": multiplies(each), "groups": shader.groups, "size": shader.size,
        "shared": shared_bytes(each.program),
        "kept": [astuple(point) for point in kept(each.program)],
        "chooser": chooser(each, gpu.limits)}
    began = time.monotonic()
    try:
        made = gpu.told(shader, each.code)
    except SmaltiError as error:
        return report | {"error": str(error)}
    report |= told(made, chip, shader.size, shared_bytes(each.program))
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
    parser.add_argument("--weights", default="")
    parser.add_argument("--schedule", default="")
    parser.add_argument("--form", default="")
    parser.add_argument("--no-matrices", action="store_true")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--bindings", type=int, default=3)
    parser.add_argument("--subgroup", type=int, default=0)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--push", type=int, default=128)
    parser.add_argument("--constants", default="")
    given = parser.parse_args()
    gpu = TellingGpu(CHIPS[given.chip].architecture, not given.no_matrices)
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
                        **told(made, given.chip, constants.get(0, 1), given.shared)})
        else:
            programs = programs_of(gpu, graph_of(given.what), given.precision,
                                   changed(given.schedule), given.weights)
            for number, each in enumerate(programs):
                if given.form in ("", each.kernel.form):
                    write(out, report_of(gpu, given.chip, number, each, given.texts))
    sys.stdout.flush()
    os._exit(0)  # a driver that ends without a device crashes


if __name__ == "__main__":
    main()
