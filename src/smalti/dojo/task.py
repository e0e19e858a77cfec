"""Tasks of the dojo: a kernel and a device, with the time of every schedule.

Where those times come from is the level of a task:

| level     | devices                                  | time of a schedule                        |
| --------- | ---------------------------------------- | ----------------------------------------- |
| simulator | GPUs of the library                      | the timing model's                        |
| perturbed | fictional ones between two of these      | the timing model's, at figures that the   |
|           |                                          | observation is wrong about by up to 20 %  |
| replay    | those of published measurements          | measured, all schedules of the space      |
| here      | the CPU that this runs on (here.py)      | measured now                              |
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from smalti import machine
from smalti.dataclass import dataclass
from smalti.dojo.space import Space, product_space
from smalti.errors import InputError
from smalti.machine import simt
from smalti.machine.device import CacheLevel, DeviceModel

SPREAD = 0.2
"""The largest error of the logarithm of each figure of a perturbed device: about 20 %."""
EDGES = (128, 8192)
"""Least and largest rows, columns and depth of a product that is drawn."""
GEMM_TABLE = "gemm_schedule_space_kerneltuner.csv"
"""The file of published timings of matrix products."""
GEMM_EDGE = 4096
"""Rows, columns and depth of the product in it."""
FILTER_TABLE = "stencil_schedule_space_kerneltuner.csv"
FILTER_SIZES = (4096, 4096, 225)
"""Rows and columns of pixels, and taps of the window."""
GEMM_FIELDS = ("tile_m", "tile_n", "threads_m", "threads_n", "copiers_m", "copiers_n", "vector_m",
               "vector_n", "staged_a", "staged_b")
"""Its columns, in order: MWG, NWG, MDIMC, NDIMC, MDIMA, NDIMB, VWM, VWN, SA, SB."""
NUMBERS = ("clock", "registers", "shared", "bandwidth")
"""Plain figures of a device that make a difference to the timing model."""


@dataclass(frozen=True)
class Task:
    """A kernel on a device.

    `features` [n] are what is known beforehand, about -1 to 1; `expected` and `seconds` [schedules]
    what the timing model says (all the same where it knows nothing), and what is true: infinite
    for a schedule that the device cannot run.
    """

    name: str
    space: Space
    features: np.ndarray
    expected: np.ndarray
    seconds: np.ndarray

    @property
    def modelled(self) -> bool:
        """Whether the timing model prefers some schedules to others."""
        return bool(np.ptp(self.expected[np.isfinite(self.expected)]) > 0)

    def regret(self, candidate: int | np.ndarray) -> np.ndarray:
        """Time of schedules over that of the best."""
        return self.seconds[candidate] / self.seconds.min()

    def reward(self, candidate: int | np.ndarray) -> np.ndarray:
        """Minus the logarithm of the regret; a schedule that fails counts as the slowest one."""
        runs = np.isfinite(self.seconds)
        seconds = np.where(runs, self.seconds, self.seconds[runs].max())
        return -np.log(seconds[candidate] / seconds.min())


LEAST = 1e-6
"""The ratio to the usual figure that stands for 0, where a device has nothing of a kind."""
Draw = Callable[[np.random.Generator], Task]


@cache
def gpus() -> tuple[DeviceModel, ...]:
    """GPUs of the library that the model of schedules covers."""
    return tuple(entry for entry in machine.devices()
                 if entry.kind == "gpu" and entry.caches and entry.shared and entry.registers)


def described(device: DeviceModel, m: int, n: int, k: int) -> np.ndarray:
    """What an agent sees of a product on a device: logarithms, about -1 to 1, f32 [11].

    >>> described(machine.device("rtx_4060"), 4096, 4096, 4096).shape
    (11,)
    """
    figures = [device.units, device.clock, device.rate("f32"), device.registers, device.shared,
               device.bandwidth, device.caches[0].bandwidth, device.caches[0].bytes]
    usual = [48, 1.7e9, 15e12, 256e3, 96e3, 500e9, 2e12, 6e6]
    edges = [math.log2(edge / 1024) / 3 for edge in (m, n, k)]
    ratios = np.maximum(np.divide(figures, usual), LEAST)  # a CPU has no registers to share
    return np.array([*np.log(ratios) / 2, *edges], np.float32)


def product_task(name: str, device: DeviceModel, truth: DeviceModel, m: int, n: int,
                 k: int) -> Task:
    """A product on a device that is thought to be `device` and is `truth`."""
    space = product_space()
    columns: dict[str, Any] = {
        field: space.candidates[:, number].astype(float)
               for number, field in enumerate(space.fields) if not field.startswith("copiers")}
    given = simt.Schedules(**columns)
    expected = simt.seconds(device, given, m, n, k)
    seconds = expected if truth is device else simt.seconds(truth, given, m, n, k)
    return Task(name, space, described(device, m, n, k), expected, seconds)


def simulated(random: np.random.Generator) -> Task:
    """A product of random size on a GPU of the library, timed by the model."""
    device = gpus()[random.integers(len(gpus()))]
    m, n, k = _edges(random)
    return product_task(f"{device.id} {m}x{n}x{k}", device, device, m, n, k)


def perturbed(random: np.random.Generator) -> Task:
    """A product on a device between two of the library, whose true figures are a bit different."""
    first, second = (gpus()[i] for i in random.choice(len(gpus()), 2, replace=False))
    device = between(first, second, float(random.random()))
    m, n, k = _edges(random)
    name = f"{first.id}+{second.id} {m}x{n}x{k}"
    return product_task(name, device, disturbed(device, random), m, n, k)


def between(first: DeviceModel, second: DeviceModel, share: float) -> DeviceModel:
    """A device that has each figure between those of two others; limits are those of the first.

    >>> a, b = machine.device("rtx_4060"), machine.device("rtx_4090")
    >>> a.units < between(a, b, 0.5).units < b.units
    True
    """
    def mean(one: float, other: float) -> float:
        return one ** (1 - share) * other ** share

    cache_ = CacheLevel("L2", mean(first.caches[0].bytes, second.caches[0].bytes),
                        mean(first.caches[0].bandwidth, second.caches[0].bandwidth))
    figures: dict[str, Any] = {
        name: mean(getattr(first, name), getattr(second, name)) for name in NUMBERS}
    return replace(
        first, id=f"{first.id}+{second.id}", caches=(cache_,), matrix={},
        units=max(1, round(mean(first.units, second.units))),
        vector={"f32": mean(first.rate("f32"), second.rate("f32"))}, **figures)


def disturbed(device: DeviceModel, random: np.random.Generator) -> DeviceModel:
    """The same device with each figure off by up to `SPREAD`."""
    def off(value: float) -> float:
        return value * math.exp(random.uniform(-SPREAD, SPREAD))

    caches = tuple(replace(each, bytes=off(each.bytes), bandwidth=off(each.bandwidth))
                   for each in device.caches)
    vector = {"f32": off(device.rate("f32"))}
    figures: dict[str, Any] = {name: off(getattr(device, name)) for name in NUMBERS}
    return replace(device, caches=caches, vector=vector, matrix={}, **figures)


def _edges(random: np.random.Generator) -> tuple[int, int, int]:
    """Rows, columns and depth: multiples of 32, evenly by logarithm."""
    low, high = (math.log(edge / 32) for edge in EDGES)
    m, n, k = (32 * round(math.exp(random.uniform(low, high))) for _ in range(3))
    return m, n, k


LEVELS: dict[str, Draw] = {"simulator": simulated, "perturbed": perturbed}
"""Levels that tasks are drawn from without measurements."""


def level(name: str) -> Draw:
    """How tasks of a level are drawn. Raises InputError that lists the levels."""
    if name not in LEVELS:
        raise InputError(f"level {name!r}; known: {', '.join(LEVELS)}; measured spaces are "
                         f"replayed with `replays`")
    return LEVELS[name]


def of_tasks(tasks: list[Task]) -> Draw:
    """A level of the tasks of a list, say of replayed spaces."""
    return lambda random: tasks[int(random.integers(len(tasks)))]


def replays(folder: Path) -> list[Task]:
    """Exhaustively measured spaces, a task a device: CLBlast's SGEMM at 4096 cubed, and an image
    filter of 15 by 15 on 4096 by 4096 pixels, of which the timing model knows nothing.

    `folder` holds the tables of Kernel Tuner's benchmark hub (MIT), a line a schedule, milliseconds
    a device in the columns "ms_…". Raises InputError where one is not there or is no such table.
    """
    return [*_replayed(folder, GEMM_TABLE, product_space(), (GEMM_EDGE,) * 3),
            *_replayed(folder, FILTER_TABLE, None, FILTER_SIZES)]


def _replayed(folder: Path, name: str, space: Space | None,
              sizes: tuple[int, int, int]) -> list[Task]:
    """A task for each device of a table; without a space its lines are the space."""
    fields, timed, values = _table(folder / name)
    rows = values[:, :len(fields)]
    if space is None:
        space = Space("filter", fields, rows.astype(int))
        numbers = np.arange(len(rows))
    else:
        numbers = space.of_table(GEMM_FIELDS, rows)
    tasks = []
    for column, title in enumerate(timed, len(fields)):
        device = machine.device(title)
        seconds = np.full(len(space), np.inf)
        seconds[numbers] = 1e-3 * values[:, column]
        if space is product_space():
            known = product_task(device.id, device, device, *sizes)
        else:
            known = Task(device.id, space, described(device, *sizes), np.ones(len(space)), seconds)
        tasks.append(replace(known, name=f"{space.name} {device.id}", seconds=seconds))
    return tasks


def _table(path: Path) -> tuple[tuple[str, ...], list[str], np.ndarray]:
    """Names of the fields, of the devices, and all numbers of a table of schedules: [lines,
    columns], infinite where a cell is empty because the schedule failed."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give the folder of the "
                         f"published timings") from None
    try:
        values = np.array([[float(cell or "inf") for cell in line] for line in lines])
    except ValueError as error:
        raise InputError(f"{path} is no table of numbers ({error})") from None
    fields = tuple(name for name in head if not name.startswith("ms_"))
    return fields, [name.removeprefix("ms_") for name in head[len(fields):]], values
