"""What the timing model expects of a compiled program on this CPU."""

from __future__ import annotations

from smalti.codegen.target import ARENA
from smalti.compiler.module import HostCall, Launch, Module
from smalti.errors import InputError
from smalti.kernel.form import Kernel
from smalti.kernel.text import parse
from smalti.machine import cpu
from smalti.machine.device import DeviceModel
from smalti.schedule import Schedule
from smalti.schedule import parse as parse_schedule


def launches(module: Module) -> dict[int, cpu.TimedLaunch]:
    """The kernels of a run on a CPU, in order, by the numbers of their regions. Raises InputError
    for a module of a GPU."""
    kernels = [parse(text) for text in module.kernels]
    found: dict[int, cpu.TimedLaunch] = {}
    for launch in module.launches[module.changing:]:
        if not isinstance(launch, HostCall) and launch.region not in found:
            region = module.regions[launch.region]
            kernel = kernels[region.kernel]
            schedule = parse_schedule(region.schedule)
            if not isinstance(schedule, Schedule):
                raise InputError(f"region {launch.region} has the schedule {schedule}; expected "
                                 f"that of a CPU, whose kernels the timing model knows")
            found[launch.region] = cpu.TimedLaunch(kernel, schedule, _places(kernel, launch))
    return found


def _places(kernel: Kernel, launch: Launch) -> dict[str, tuple[object, int]]:
    """Where the buffers of a launch lie."""
    names = [buffer.name for buffer in kernel.buffers if buffer.role != "local"]
    return {name: (cpu.ARENA, at) if kind == ARENA else ((kind, number), at)
            for name, (kind, number, at) in zip((*names, cpu.WORKSPACE), launch.operands)}


def predicted(module: Module, device: DeviceModel, threads: int) -> dict[int, cpu.KernelEstimate]:
    """What each kernel of a run is expected to cost, by the number of its region; a run that comes
    after another. Calls of the host, and what does not run each time, are not there."""
    found = launches(module)
    estimate = cpu.estimate_program(device, list(found.values()), threads, module.arena_bytes)
    return dict(zip(found, estimate.kernels, strict=True))
