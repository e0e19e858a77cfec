"""What cores that are slower than others cost, by a simulation of the CPU's driver.

    python bench/hybrid.py
    python bench/hybrid.py --models clip_l,mobilenet_v2 --cores 8+16@0.4

The launches of a model, with the tiles that its schedules make for so many threads and the times
that the timing model expects, are gone through as the driver does it: threads take tiles from a
shared counter, those of slow cores more slowly. Three ways are compared with what would be if work
could be divided at will: threads on fast cores only; threads on all cores, each taking tiles as
long as there are any; and the driver's own, in which a slow thread leaves the last tiles to the
others (`codegen/cpu/driver.py`). Asked is at most 1.1 of the better of the other two.
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from smalti.benchmark.suite import Case, chosen
from smalti.benchmark.table import Row, show
from smalti.codegen.cpu.layout import PRIOR, WINDOW
from smalti.compiler.prediction import predicted
from smalti.errors import InputError
from smalti.runtime import compile_graph
from smalti.runtime.cpu.model import modelled

CORES = "4+4@0.3,6+2@0.25,8+8@0.4,8+16@0.4,16+0"
"""Fast cores, slow ones and the speed of these: as Apple's M1 and M1 Pro, Intel's i7-12700K and
i9-13900K have them about, and a desktop whose cores are all alike."""
BARRIER_SECONDS, JITTER_SECONDS = 1e-6, 2e-6
"""Of a barrier, and between the first and the last thread that begins a launch: guesses."""
NOISE = 0.02
"""By how much of its time a tile takes longer than another of the same launch, at most: a guess."""
RATIO_MAX = 1.1
"""Of our time over that of the better of the other ways: with few tiles in a launch a slow thread
learns late that it should take none."""


@dataclass(frozen=True)
class SimulatedLaunch:
    """Tiles of a launch, and seconds of one on a fast core."""

    tiles: int
    seconds: float


@dataclass(frozen=True)
class Cores:
    """Fast cores, slow cores, and the speed of these in that of a fast one."""

    fast: int
    slow: int
    speed: float = 1.0

    @property
    def speeds(self) -> list[float]:
        """Of each core."""
        return [1.0] * self.fast + [self.speed] * self.slow

    def __str__(self) -> str:
        return f"{self.fast} fast cores" + (
            f", {self.slow} slow ones of {self.speed:g}" if self.slow else "")


def parsed(text: str) -> Cores:
    """The cores that a word such as 8+16@0.4 names. Raises InputError for another.

    >>> parsed("8+16@0.4")
    Cores(fast=8, slow=16, speed=0.4)
    """
    found = re.fullmatch(r"(\d+)\+(\d+)(?:@([01]?\.\d+|1))?", text)
    if not found or not int(found[1]):
        raise InputError(f"--cores has {text!r}; expected fast and slow cores and the speed of "
                         f"these, such as {CORES.split(',')[2]}")
    return Cores(int(found[1]), int(found[2]), float(found[3] or 1))


def launches_of(case: Case, threads: int) -> list[SimulatedLaunch]:
    """The launches of a model with AVX2, in order; the time of a kernel of several launches is
    that of the one with the most tiles."""
    module = compile_graph(case.graph(), threads=threads, target="avx2", held=case.held).module
    device = modelled()
    expected = predicted(module, device, 1)
    seconds = [0.0] * len(module.launches)
    longest: dict[int, int] = {}
    for number, launch in enumerate(module.launches):
        best = longest.setdefault(launch.region, number)
        if launch.tiles > module.launches[best].tiles:
            longest[launch.region] = number
    for number, launch in enumerate(module.launches):
        if number in expected:
            seconds[longest[launch.region]] += expected[number].seconds * device.units
    return [SimulatedLaunch(launch.tiles, seconds[number] / launch.tiles)
            for number, launch in enumerate(module.launches) if launch.tiles]


def simulated(launches: Sequence[SimulatedLaunch], speeds: Sequence[float], leaving: bool,
              seed: int = 0) -> float:
    """Seconds of a run on cores of these `speeds`; `leaving` is whether slow threads leave."""
    noise, threads = random.Random(seed), len(speeds)
    mine, every, now = [PRIOR] * threads, [PRIOR * threads] * threads, 0.0
    for launch in launches:
        counter, gone, end = 0, 0, now
        tile: list[int | None] = [None] * threads
        waiting = [(now + noise.random() * JITTER_SECONDS, thread) for thread in range(threads)]
        heapq.heapify(waiting)
        while waiting:
            time, thread = heapq.heappop(waiting)
            end, left, last = max(end, time), launch.tiles - counter, tile[thread]
            if last is not None and (left or mine[thread] * (counter - last) > every[thread]):
                mine[thread] += 1
                every[thread] += counter - last
                if mine[thread] >= WINDOW:
                    mine[thread], every[thread] = mine[thread] // 2, every[thread] // 2
            if not left:
                continue
            if leaving and mine[thread] * (left + threads + 1) < every[thread]:
                gone += 1
                if gone < threads:
                    continue
            tile[thread], counter = counter, counter + 1
            taken = launch.seconds / speeds[thread] * (1 + NOISE * noise.random())
            heapq.heappush(waiting, (time + taken, thread))
        now = end + BARRIER_SECONDS
    return now


def row(case: Case, cores: Cores) -> Row:
    """The three ways for one model on these cores, in units of work that is divided at will."""
    fast, all_of_them = (launches_of(case, count) for count in
                         (cores.fast, cores.fast + cores.slow))
    ideal = sum(launch.tiles * launch.seconds for launch in all_of_them) / sum(cores.speeds)
    alone = simulated(fast, [1.0] * cores.fast, False) / ideal
    plain = simulated(all_of_them, cores.speeds, False) / ideal
    ours = simulated(all_of_them, cores.speeds, True) / ideal
    asked = RATIO_MAX * min(alone, plain)
    return Row(f"{case.title}, {cores}", f"<= {asked:.2f}",
               f"{ours:.2f}; fast cores only {alone:.2f}, without leaving {plain:.2f}",
               ours <= asked)


@click.command()
@click.option("--models", default="mobilenet_v2,clip_l,unet", show_default=True, metavar="NAMES",
              help="Of the suite of `smalti bench`.")
@click.option("--cores", "texts", default=CORES, show_default=True, metavar="CORES",
              help="Fast cores + slow cores @ their speed, several with commas.")
def main(models: str, texts: str) -> None:
    """Print what slow cores cost, simulated."""
    rows = [row(case, parsed(text)) for case in chosen(models.split(","))
            for text in texts.split(",")]
    click.echo(show(rows))
    if not all(entry.ok for entry in rows):
        click.get_current_context().exit(1)


if __name__ == "__main__":
    main()
