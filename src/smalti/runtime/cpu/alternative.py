"""Another schedule of a kernel of a program, compiled so that it can replace the kernel in a run:
by this the tuner tries schedules.

    other = Alternative(program.module, number, kernel, schedule, read)
    program.run(inputs, {number: other})
    program.run_beside(inputs, {number: other})      # compared on the data of a run, byte by byte

It reads and writes the same memory. If it needs weights in another layout, these are read and
packed again; workspace that its threads share is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.lower import lower
from smalti.codegen.cpu.lowered import pointers
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.cpu.weights import WeightPanels, weight_panels
from smalti.codegen.levels import level
from smalti.compiler.module import Launch, Module, WeightSlot
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import Kernel
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.packing import ALIGNMENT
from smalti.runtime.cpu.recording import Table, TableRow
from smalti.runtime.sources import Read
from smalti.runtime.weights import checked
from smalti.schedule import ContractionSchedule, Schedule, parse
from smalti.schedule.merge import weights_bound


class Alternative:
    """Code of `kernel` under `schedule`, in place of region number `region` of `module`.

    `read(name)` gives the parameters that are bound to the program. Raises IllegalSchedule if the
    schedule cannot be applied, or needs weights in another layout and there is no `read`.
    """

    def __init__(self, module: Module, region: int, kernel: Kernel, schedule: Schedule,
                 read: Read | None = None) -> None:
        self.schedule = schedule
        slot = _other_weights(module, region, kernel, schedule)
        if slot is not None and read is None:
            raise IllegalSchedule("weights in another layout have to be read again")
        self._low = low = lower(kernel, schedule, level(module.target))
        self.scratch_bytes = low.scratch_bytes
        block, places = joined([step.code for step in low.steps])
        self.code = Executable(block)
        self._places = [self.code.address + place for place in places]
        self._workspace = anonymous(low.workspace_bytes) if low.workspace_bytes else None
        self._weight: np.ndarray | None = None
        if slot is not None:
            self._weight = anonymous(low.packed.bytes + ALIGNMENT)
            _pack(module, slot, low.packed, kernel, read, self._weight)

    def rows(self, pointers: Sequence[int]) -> list[TableRow]:
        """Rows of a launch table that run it, with the kernel's buffers at `pointers`."""
        addresses = list(pointers[:len(self._low.buffers)])
        if self._weight is not None:
            addresses[self._low.buffers.index("weight")] = self._weight.ctypes.data
        if self._workspace is not None:
            addresses.append(self._workspace.ctypes.data)
        return [TableRow(place, tuple(addresses), step.tiles)
                for place, step in zip(self._places, self._low.steps, strict=True)]


def _other_weights(module: Module, region: int, kernel: Kernel,
                   schedule: Schedule) -> WeightSlot | None:
    """The slot of a weight that `schedule` needs in another layout; None if there is none."""
    before = parse(module.regions[region].schedule)
    if not (isinstance(before, ContractionSchedule) and isinstance(schedule, ContractionSchedule)
            and weights_bound(kernel)):
        return None
    if len({_layout(weight_panels(kernel, s, level(module.target)))
            for s in (before, schedule)}) == 1:
        return None
    launch = next(launch for launch in module.launches
                  if launch.region == region and isinstance(launch, Launch))
    return module.slots[launch.operands[pointers(kernel).index("weight")][1]]


def _layout(packed: WeightPanels) -> WeightPanels:
    """A packing that is equal for all packings which give the same bytes.

    The size of chunks matters only for direct sums over windows of several pixels with weights that
    are not quantised; in all others, chunks follow one another just as channels do.
    """
    if packed.taps > 1 and not packed.winograd and packed.dtype not in FORMATS:
        return packed
    return replace(packed, chunk=packed.chunks * packed.chunk)


def _pack(module: Module, slot: WeightSlot, packed: WeightPanels, kernel: Kernel, read: Read,
         target: np.ndarray) -> None:
    """Read the parameter of a slot and pack it as `packed` says, into `target`."""
    if slot.name:
        values = checked(slot.name, read(slot.name), module.parameters[slot.name], slot.dtype)
        values = values.reshape(-1)
    else:
        values = np.frombuffer(module.constants, np.uint8).view(
            np.float32 if slot.dtype == "f32" else np.uint16)
    strides = kernel.buffer(packed.buffer).strides
    step = lower_packing(packed, strides, level(module.target), slot.dtype)
    padded = np.concatenate([values[slot.start:].view(np.uint8), np.zeros(ALIGNMENT, np.uint8)])
    block, (place,) = joined([step.code])
    code = Executable(block)
    row = TableRow(code.address + place, (padded.ctypes.data, target.ctypes.data), step.tiles)
    Table([[row]], 1, 0, 0, code).run(0, 1, brief=True)
