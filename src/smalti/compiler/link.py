"""Launches, slots and functions of a program: what kernels were lowered to, put together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.gpu.weight_layout import Packed
from smalti.codegen.target import (
    ARENA,
    SLOT,
    WORKSPACE,
    LoweredKernel,
    PackedLayout,
    Reference,
    Target,
)
from smalti.compiler.arena import Arena
from smalti.compiler.module import (
    ArrayPacking,
    CodePacking,
    HostCall,
    Launch,
    Module,
    Operand,
    Place,
    RegionInfo,
    WeightSlot,
    WinogradWeight,
)
from smalti.compiler.strips import LaunchOrder, RegionGroup
from smalti.fuse import HostRegion, Region, Storage, View
from smalti.fuse.support import When
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.kernel.traffic import touched

CONSTANT_ALIGNMENT = 8
"""Of constants: the size of the largest element."""
FLOPS_OF_A_CORE = 5e10
LAUNCH_SECONDS = 1e-6
"""What small kernels reach on one core, and what starting one costs: the scale of things only."""
IN_ARENA = ("arena", "input")
"""Kinds of storages that lie in the arena."""


class Linker:
    """Fills a module from a launch order, what they are lowered to, and where values lie.

    `known_as` has the dtypes by which callers know storages that a target stores otherwise.
    """

    def __init__(self, module: Module, target: Target, chosen: LaunchOrder,
                 lowered: Sequence[LoweredKernel | None], arena: Arena,
                 known_as: dict[Storage, str]) -> None:
        self.module, self.target, self.chosen = module, target, chosen
        self.lowered, self.arena, self.known_as = lowered, arena, known_as
        self.partition = chosen.partition
        self.functions: dict[Hashable, int] = {}
        self.packing: list[Hashable] = []
        self._packers: dict[tuple, CodePacking] = {}
        self._slots: dict[tuple, int] = {}
        self._texts: dict[Kernel, int] = {}
        self._constants = bytearray()

    def link(self) -> list[Hashable]:
        """Fill the module but for its code; gives its functions, in order."""
        module, found = self.module, self.partition
        module.arena_bytes = self.arena.bytes
        for group in self.chosen.groups:
            for number in group.regions:
                self._describe(number, group)
            module.launches += self._launches(group)
        for launch in module.launches:
            when = found.regions[launch.region].when
            module.steady += when == When.BINDING
            module.changing += when < When.RUN
        module.inputs = {name: self._place(view) for name, view in found.inputs.items()}
        module.outputs = {name: self._place(view) for name, view in found.outputs.items()}
        module.rows, module.held = dict(found.rows), list(found.held)
        module.constants = bytes(self._constants)
        self._number_packing(len(self.functions))
        return [*self.functions, *self.packing]

    def _number_packing(self, behind: int) -> None:
        """Functions that pack stand behind those of kernels."""
        self.module.layouts = {text: behind + number
                               for text, number in self.module.layouts.items()}
        self.module.slots = [
            replace(slot, packing=replace(slot.packing, function=behind + slot.packing.function))
            if isinstance(slot.packing, CodePacking) else slot for slot in self.module.slots]

    # ------------------------------------------------------------------ regions

    def _describe(self, number: int, group: RegionGroup) -> None:
        """Note what is to be known about a region."""
        module, region, low = self.module, self.partition.regions[number], self.lowered[number]
        if isinstance(region, HostRegion):
            moved = sum(math.prod(v.shape) * v.storage.element_bytes for v in region.views.values())
            module.regions.append(RegionInfo(
                "host", region.scope, region.reason, region.operation, region.flops, moved,
                (self.arena.place(region.views["out"]),)))
            return
        if region.when == When.RUN:
            module.work_seconds += region.flops / FLOPS_OF_A_CORE + LAUNCH_SECONDS * len(low.steps)
        module.scratch_bytes = max(module.scratch_bytes, low.scratch_bytes)
        results = tuple(self.arena.place(region.views[b.name])
                        for b in region.kernel.buffers if b.role == "output")
        module.regions.append(RegionInfo(
            region.kernel.form, region.scope, region.reason,
            str(self.chosen.schedules[number]), region.flops, self._moved_bytes(region, low),
            results, group.strips.count if group.strips else 1, self._text(region.kernel)))

    def _moved_bytes(self, region: Region, low: LoweredKernel) -> int:
        """Bytes of what a kernel reads and writes, each once; weights as they are packed."""
        whole = {low.packed.buffer: low.packed.bytes} if low.packed else {}

        def plain(name: str, count: int) -> int:
            buffer = region.kernel.buffer(name)
            kept = (self.target.stored_parameters if buffer.role == "parameter" else
                    self.target.stored)
            return int(ELEMENT_BYTES[kept.get(buffer.dtype, buffer.dtype)] * count)

        return sum(whole[name] if name in whole else plain(name, count)
                   for name, count in touched(region.kernel).items())

    def _text(self, kernel: Kernel) -> int:
        """The number of a kernel's text in the module."""
        if kernel not in self._texts:
            self._texts[kernel] = len(self.module.kernels)
            self.module.kernels.append(str(kernel))
        return self._texts[kernel]

    # ------------------------------------------------------------------ launches

    def _launches(self, group: RegionGroup) -> list[Launch | HostCall]:
        """The launches of a group: all steps whole, or the last ones strip by strip."""
        whole: list[Launch | HostCall] = []
        last: list[Launch] = []
        for number in group.regions:
            if self.lowered[number] is None:
                return [self._call(number)]
            steps = self._steps(number)
            if group.strips:
                last.append(steps.pop())
            whole += steps
        for strip in range(group.strips.count if group.strips else 0):
            parts = []
            for number, launch in enumerate(last):
                each, (first, end) = group.strips.walks[number], group.strips.rows(number, strip)
                for block in range(0, launch.tiles, each.rows * each.tiles):
                    parts.append(replace(launch, first=block + each.tiles * first,
                                         tiles=block + each.tiles * end, barrier=False))
            whole += [*parts[:-1], replace(parts[-1], barrier=True)]
        return whole

    def _steps(self, number: int) -> list[Launch]:
        """A launch for each step of a kernel."""
        region, low = self.partition.regions[number], self.lowered[number]
        assert isinstance(region, Region), region
        launches = []
        for step in low.steps:
            names = low.operands(step)
            references = {name: self._reference(number, region, name, low) for name in names}
            function = self.functions.setdefault(self.target.placed(step, references),
                                                 len(self.functions))
            launches.append(Launch(function, tuple(references[name] for name in names), number,
                                   tiles=step.tiles))
        return launches

    def _reference(self, number: int, region: Region, name: str, low: LoweredKernel) -> Reference:
        """Where a buffer of a kernel lies."""
        if name == WORKSPACE:
            return ARENA, 0, self.arena.workspaces[number]
        view = region.views[name]
        if view.storage.kind in IN_ARENA:
            return ARENA, 0, self.arena.place(view).offset
        packed = low.packed if low.packed and low.packed.buffer == name else None
        if packed is not None:
            return SLOT, self._packed_slot(view, low), 0
        return self._raw_slot(view)

    def _place(self, view: View) -> Place:
        """Where a view lies that callers know."""
        place = self.arena.place(view)
        known = self.known_as.get(view.storage, place.dtype)
        return place if known == place.dtype else replace(place, host_dtype=known)

    def _call(self, number: int) -> HostCall:
        """A call of the host."""
        region, operands = self.partition.regions[number], []
        assert isinstance(region, HostRegion), region
        for view in region.operands:
            if view.storage in self.arena.storages:
                operands.append(Operand(-1, self._place(view)))
                continue
            slot, start = self._slot_for_host(view)
            strides = tuple(view.storage.element_bytes * s for s in view.strides)
            operands.append(Operand(slot, Place(start, view.shape, strides, view.storage.dtype)))
        return HostCall(region.operation, dict(region.attributes), tuple(operands),
                        self._place(region.views["out"]), number)

    # ------------------------------------------------------------------ weights

    def _slot(self, key: tuple, slot: WeightSlot, storage: Storage) -> int:
        """The number of a slot, made where there is none of the key yet; constants are laid down,
        in front of which its start counts."""
        if key not in self._slots:
            self._slots[key] = len(self.module.slots)
            if storage.kind == "constant":
                base = len(self._constants) // storage.element_bytes
                slot = replace(slot, start=base + slot.start)
                data = np.ascontiguousarray(storage.data).tobytes()
                self._constants += data + bytes(-len(data) % CONSTANT_ALIGNMENT)
            self.module.slots.append(slot)
        return self._slots[key]

    def _packed_slot(self, view: View, low: LoweredKernel) -> int:
        """The slot of a packed weight."""
        storage, packed, key = view.storage, low.packed, (view, low.packed, low.winograd)
        if key in self._slots:
            return self._slots[key]
        start = view.offset
        if storage.dtype in FORMATS:
            start = FORMATS[storage.dtype].words_of(start)
        if self.target.pack is None:
            assert isinstance(packed, Packed | PackedGroups | PackedBytes), packed
            slot = WeightSlot(storage.name, storage.dtype, packed.bytes, start, packed.dtype,
                              ArrayPacking(packed, view.shape, view.strides))
        else:
            slot = WeightSlot(storage.name, storage.dtype, packed.bytes, start,
                              packing=self._packer(view, packed))
        if low.winograd is not None:
            slot = replace(slot, winograd=WinogradWeight(*low.winograd, view.shape, view.strides))
        return self._slot(key, slot, storage)

    def _packer(self, view: View, packed: PackedLayout) -> CodePacking:
        """The function that packs a weight, by its number among those that do."""
        storage, key = view.storage, (packed, view.strides, view.storage.dtype)
        if key not in self._packers:
            step = self.target.pack(packed, view.strides, storage.dtype)
            self._packers[key] = CodePacking(len(self.packing), step.tiles)
            self.packing.append(self.target.placed(step, {}))
            text = f"{packed} from {storage.dtype}, {view.strides}"
            self.module.layouts[text] = self._packers[key].function
        return self._packers[key]

    def _raw_slot(self, view: View) -> Reference:
        """Where a weight that is as it is given begins."""
        storage = view.storage
        stored = self.target.stored_parameters.get(storage.dtype, storage.dtype)
        item = np.dtype(DTYPES[stored]).itemsize
        if self.target.whole_parameters:
            slot = WeightSlot(storage.name, storage.dtype, item * storage.size, stored=stored)
            return SLOT, self._slot((storage, False), slot, storage), item * view.offset
        slot = WeightSlot(storage.name, storage.dtype, item * (storage.size - view.offset),
                          view.offset)
        return SLOT, self._slot((storage, view.offset), slot, storage), 0

    def _slot_for_host(self, view: View) -> tuple[int, int]:
        """The slot of what the host reads, and where in it, in bytes."""
        storage = view.storage
        if self.target.whole_parameters:
            slot = WeightSlot(storage.name, storage.dtype, storage.bytes, host=True)
            return self._slot((storage, True), slot, storage), storage.element_bytes * view.offset
        _, number, start = self._raw_slot(view)
        return number, start
