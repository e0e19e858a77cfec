"""A kernel of a program on a GPU under another schedule, that can take its place in a run.

    other = GpuAlternative(program.gpu, program.module, number, kernel, schedule)
    program.run(inputs, {number: other})

It reads and writes the same memory; what its steps share is its own.
"""

from __future__ import annotations

from collections.abc import Callable

from smalti.codegen.target import SLOT, WORKSPACE, LoweredKernel, Reference
from smalti.compiler.module import Launch, Module
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.interface import ComputePipeline, DeviceBuffer, Dispatch, Gpu
from smalti.schedule import parse
from smalti.schedule.group import GroupSchedule

OWN: Reference = (SLOT, -1, 0)
"""Where a buffer lies that is an alternative's own: at the beginning of a weight's memory, of none
that the module has."""
Where = Callable[[Reference], tuple[DeviceBuffer, int]]
"""The buffer and byte offset that a reference of a module means."""


class GpuAlternative:
    """Pipelines of `kernel` under `schedule`, in place of region number `region` of `module`.

    Raises IllegalSchedule where the schedule cannot be applied, or wants a weight in another layout
    than it is bound in: all schedules of a kernel that give the same bytes want the same one.
    """

    def __init__(self, gpu: Gpu, module: Module, region: int, kernel: Kernel,
                 schedule: GroupSchedule) -> None:
        self.schedule = schedule
        target, limits = gpu.target, gpu.limits
        before = target.lower(kernel, parse(module.regions[region].schedule), limits)
        low = target.lower(kernel, schedule, limits)
        references = _references(module, region, before)
        self._own: dict[str, DeviceBuffer] = {}
        if low.workspace_bytes:
            self._own[WORKSPACE] = gpu.buffer(low.workspace_bytes)
        if low.packed != before.packed:
            raise IllegalSchedule("the weight would have to lie in another layout")
        references |= dict.fromkeys(self._own, OWN)
        self._steps: list[tuple[ComputePipeline, list[tuple[str, Reference]]]] = []
        for step in low.steps:
            names = low.operands(step)
            if missing := [name for name in names if name not in references]:
                raise IllegalSchedule(f"nothing says where {missing[0]} lies")
            made = target.encode([target.placed(step, references)], limits)
            self._steps.append((gpu.build(made.shaders[0], made.code),
                                [(name, references[name]) for name in names]))

    def dispatches(self, where: Where, seconds: float) -> list[Dispatch]:
        """Its launches, which are expected to take so many seconds at most."""
        return [Dispatch(pipeline, tuple((self._own[name], 0) if name in self._own else where(at)
                                         for name, at in operands), seconds / len(self._steps))
                for pipeline, operands in self._steps]


def _references(module: Module, region: int, low: LoweredKernel) -> dict[str, Reference]:
    """Where each buffer of a region's kernel lies, by what its launches name."""
    launches = [launch for launch in module.launches
                if isinstance(launch, Launch) and launch.region == region]
    return {name: at for step, launch in zip(low.steps, launches, strict=True)
            for name, at in zip(low.operands(step), launch.operands, strict=True)}

