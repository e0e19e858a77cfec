"""Predicts how long a kernel takes on a CPU by a schedule, without running it.

    device = machine.device("ryzen_9_9950x")
    estimate_kernel(device, kernel, schedule, threads=8).seconds
    estimate_program(device, launches, threads=8).seconds

A kernel is one or more steps, each followed by a barrier; a step is a number of tiles, which
threads take in turn. The clocks of a tile are counted from the loops that the schedule makes
(`contraction.py`, `nests.py`, `attention.py`); its bytes from how often it reads each buffer, and
from what earlier kernels have left in the caches (`residency.py`). Computing and moving bytes
overlap: the longer of both times counts, plus a little of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from smalti.dataclass import dataclass
from smalti.kernel.form import Kernel
from smalti.machine.cpu.attention import attention
from smalti.machine.cpu.contraction import SCRATCH, WORKSPACE, contraction
from smalti.machine.cpu.core import REACH, Core
from smalti.machine.cpu.core import core_of as core_with
from smalti.machine.cpu.measured import FAMILY, CpuCalibration
from smalti.machine.cpu.nests import depthwise, group_moments, mapped, reduced, row_moments
from smalti.machine.cpu.residency import ARENA, Place, Residency, Shares
from smalti.machine.cpu.work import CONSTANTS, KINDS, LEVELS, Flow, Work
from smalti.machine.device import DeviceModel
from smalti.schedule.schedule import Schedule

FORMS: Mapping[str, Callable[[Kernel, Any, Core], list[Work]]] = {
    "contraction": contraction, "attention": attention, "map": mapped, "reduction": reduced,
    "depthwise": depthwise, "pooling": depthwise, "group_scale_shift": group_moments,
    "layer_scale_shift": row_moments, "rms_scale": row_moments}
HELD_SHARE = 0.8
"""A thread finds again what it has read itself if that takes at most this share of a cache."""
WRITTEN = 2.0
"""Traffic of written bytes: their cache lines are read from memory first, and written back
later."""
ALONE_LAUNCH = 0.15
"""The cost of a step with one thread, where there is none to wait for, over that of a barrier."""
IDLE_SHARE, JOULES_A_BYTE = 0.3, 1.5e-10
"""Power of a CPU whose cores wait, as a share of its limit; and joules of a byte from memory:
guesses."""
WARM, COLD = Shares(0.0, 1.0), Shares(0.0, 0.0)


@dataclass(frozen=True)
class KernelEstimate:
    """The prediction for a kernel.

    `energy_joules` is a guess from the power limit; `bytes` are those from and to memory; `binds`
    is what limits the kernel: "arithmetic", "special functions", "instructions", "cache", "memory"
    or "launch".
    """

    seconds: float
    energy_joules: float
    bytes: float
    binds: str


@dataclass(frozen=True)
class ProgramEstimate:
    """The prediction for a program: sums over its launches, and the prediction for each launch."""

    seconds: float
    energy_joules: float
    bytes: float
    kernels: tuple[KernelEstimate, ...]


@dataclass(frozen=True)
class TimedLaunch:
    """A kernel with a schedule, and the places of its buffers: in the arena, or, if a buffer is not
    in `places`, in a space of its own."""

    kernel: Kernel
    schedule: Schedule
    places: Mapping[str, Place] = field(default_factory=dict)


def works(kernel: Kernel, schedule: Schedule, core: Core) -> list[Work]:
    """What each step of a kernel does."""
    return FORMS[kernel.form](kernel, schedule, core)


def estimate_kernel(device: DeviceModel, kernel: Kernel, schedule: Schedule, threads: int,
                    placement: Mapping[str, Shares] | None = None) -> KernelEstimate:
    """The prediction for a single kernel.

    `placement` says for buffers which shares of them are in which cache. By default parameters are
    in memory, and all others in the last-level cache.
    """
    core = core_of(device)
    steps = []
    for work in works(kernel, schedule, core):
        where = {flow.buffer: _usual(kernel, flow, placement, core, threads)
                 for flow in work.flows}
        steps.append(counted(work, where, core, threads))
    return summed_up(device, steps, constants_of(device))


def _usual(kernel: Kernel, flow: Flow, placement: Mapping[str, Shares] | None, core: Core,
           threads: int) -> Shares:
    if placement and flow.buffer in placement:
        return placement[flow.buffer]
    if flow.buffer == SCRATCH:
        return WARM
    if flow.buffer == WORKSPACE:
        held = Residency(core, threads)
        held.touch((WORKSPACE, 0), 0.0)
        return held.shares((WORKSPACE, 0), flow.once)
    return COLD if kernel.buffer(flow.buffer).role == "parameter" else WARM


def estimate_program(device: DeviceModel, launches: Sequence[TimedLaunch], threads: int,
                     arena_bytes: int = 0) -> ProgramEstimate:
    """The prediction for a program that runs again and again, so that a run finds in the caches
    what the run before has left there."""
    constants = constants_of(device)
    found = tuple(summed_up(device, steps, constants)
                  for steps in program_counts(core_of(device), launches, threads, arena_bytes))
    return ProgramEstimate(sum(k.seconds for k in found), sum(k.energy_joules for k in found),
                           sum(k.bytes for k in found), found)


def program_counts(core: Core, launches: Sequence[TimedLaunch], threads: int,
                   arena_bytes: int = 0) -> list[list[Counts]]:
    """The counts of each step of each launch of a program, in its second run (see `Counts`)."""
    residency = Residency(core, threads, arena_bytes)
    every = [works(launch.kernel, launch.schedule, core) for launch in launches]
    for _ in range(2):
        found: list[list[Counts]] = []
        for number, (launch, steps) in enumerate(zip(launches, every, strict=True)):
            found.append([])
            for work in steps:
                places = {flow.buffer: launch.places.get(flow.buffer, ((number, flow.buffer), 0))
                          for flow in work.flows}
                where = {flow.buffer: residency.shares(places[flow.buffer], flow.once)
                         for flow in work.flows}
                for flow in work.flows:
                    residency.touch(places[flow.buffer], flow.once)
                found[-1].append(counted(work, where, core, threads))
    return found


def core_of(device: DeviceModel) -> Core:
    """The core of a CPU, with the constants found by calibration."""
    return core_with(device, constants_of(device)[REACH])


def constants_of(device: DeviceModel) -> Mapping[str, float]:
    """The constants of the timing model: those that calibration has found for this device, or the
    usual ones."""
    fitted = device.fitted.get(FAMILY)
    return fitted.constants if fitted else CONSTANTS


class Counts(NamedTuple):
    """The times of a step before they are multiplied by the model's constants.

    `clocks` are the seconds of the busiest thread by kind of work (`KINDS`), `levels` the seconds
    of moving bytes by where they come from (`LEVELS`), `launch` those of the barrier. `threads` are
    those that have work, `bytes` those from and to memory.
    """

    clocks: tuple[float, ...]
    levels: tuple[float, ...]
    launch: float
    threads: int
    bytes: float


def counted(work: Work, where: Mapping[str, Shares], core: Core, threads: int) -> Counts:
    """The counts of a step, given which shares of its buffers are in which cache."""
    used = min(threads, work.tiles)
    near, last, memory = _moved(work, where, core, used)
    turns = -(-work.tiles // used) / core.clock
    return Counts(
        tuple(work.clocks.get(kind, 0.0) * turns for kind in KINDS),
        (near / used / core.l2, last / used / core.l3,
         memory / min(used * core.reach, core.memory)),
        core.launch * (1.0 if threads > 1 else ALONE_LAUNCH), used, memory)


def _moved(work: Work, where: Mapping[str, Shares], core: Core,
           threads: int) -> tuple[float, float, float]:
    """Bytes of a step from second-level caches, from the last-level cache, and from and to
    memory."""
    near = last = memory = 0.0
    for flow in work.flows:
        shares = where[flow.buffer]
        far = max(0.0, 1.0 - shares.near - shares.last)
        near += shares.near * flow.once * flow.pace
        last += shares.last * flow.once * flow.pace
        memory += (WRITTEN if flow.written else 1.0) * far * flow.once
        if flow.held <= HELD_SHARE * core.l2_bytes:
            others = min(flow.again, flow.once * (threads - 1))
            near, last = near + flow.again - others, last + others
        elif flow.held * (threads if flow.buffer == SCRATCH else 1) <= HELD_SHARE * core.l3_bytes:
            last += flow.again
        else:
            memory += flow.again
    return near, last, memory


def step_seconds(counts: Counts, constants: Mapping[str, float]) -> float:
    """Seconds of a step, its barrier included."""
    busy = sum(constants[kind] * spent for kind, spent in zip(KINDS, counts.clocks))
    moving = sum(spent / constants[level] for level, spent in zip(LEVELS, counts.levels))
    power = constants["overlap"]
    return (busy ** power + moving ** power) ** (1 / power) + constants["launch"] * counts.launch


def summed_up(device: DeviceModel, steps: Sequence[Counts],
              constants: Mapping[str, float]) -> KernelEstimate:
    """The estimate of a kernel from its steps."""
    seconds = busy = moved = 0.0
    limits = dict.fromkeys(LIMITS.values(), 0.0)
    for counts in steps:
        each = step_seconds(counts, constants)
        seconds, busy, moved = (seconds + each, busy + each * counts.threads,
                                moved + counts.bytes)
        for kind, spent in zip(KINDS, counts.clocks):
            limits[LIMITS[kind]] += constants[kind] * spent
        for level, spent in zip(LEVELS, counts.levels):
            limits[LIMITS[level]] += spent / constants[level]
        limits["launch"] += constants["launch"] * counts.launch
    joules = device.watts * (IDLE_SHARE * seconds + (1 - IDLE_SHARE) * busy / device.units) \
        + JOULES_A_BYTE * moved
    return KernelEstimate(seconds, joules, moved, max(limits, key=limits.__getitem__))


LIMITS = {"products": "arithmetic", "starts": "arithmetic", "transforms": "arithmetic",
          "functions": "special functions", "vectors": "instructions", "rows": "instructions",
          "tiles": "launch", "l2": "cache", "l3": "cache", "memory": "memory"}


__all__ = [
    "ARENA", "COLD", "CONSTANTS", "FAMILY", "WARM", "WORKSPACE", "CpuCalibration",
    "KernelEstimate", "ProgramEstimate", "Shares", "TimedLaunch", "constants_of", "core_of",
    "estimate_kernel", "estimate_program", "program_counts", "works",
]
