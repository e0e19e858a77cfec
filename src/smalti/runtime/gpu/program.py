"""Programs of a GPU: recorded once, run as often as wanted.

Inputs go to the arena on the device, launches are submitted as they were recorded, outputs come
back. Where the host computes something in between, a recording ends before it and another begins
behind it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from smalti.codegen.target import ARENA, Reference
from smalti.compiler.explain import explained_on
from smalti.compiler.kernel_table import KernelTable
from smalti.compiler.module import (
    Beside,
    HostCall,
    Launch,
    Module,
    Place,
    WeightSlot,
    array_at,
    finite_at,
)
from smalti.compiler.outlook import Expected, on_gpu
from smalti.dataclass import dataclass
from smalti.errors import DeviceLostError, DeviceMemoryError, InputError
from smalti.fuse import Region
from smalti.graph.operation import DTYPES, OPERATIONS
from smalti.graph.quantised import FORMATS
from smalti.kernel.text import parse
from smalti.runtime.gpu.alternative import GpuAlternative
from smalti.runtime.gpu.interface import ComputePipeline, DeviceBuffer, Dispatch, Gpu, Recording
from smalti.runtime.gpu.interface import Launch as GpuLaunch
from smalti.runtime.gpu.model import recorded
from smalti.runtime.gpu.streaming import aligned, streamed
from smalti.runtime.gpu.trials import GpuTrials
from smalti.runtime.host import refusals
from smalti.runtime.inputs import all_given, check_rows, checked_input
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe
from smalti.runtime.sources import Done, Read, Weights, nothing, reading
from smalti.runtime.weights import checked

NONE: Mapping[int, GpuAlternative] = MappingProxyType({})
SMALL_BYTES, ALIGNMENT = 1 << 20, 256
"""Weights below this size share a buffer, in which each begins at a multiple of the other."""

SLOW_FLOPS, SLOW_BANDWIDTH, SLOW_UNITS = 100e9, 10e9, 8
"""Operations and bytes a second that any GPU reaches, and with how many compute units."""
SLOW_SHARE = 0.1
"""Of the peaks of a GPU that the library of the timing model knows, what each kernel reaches."""


@dataclass(frozen=True)
class Held:
    """Where a weight lies: a part of a buffer, which may be `outside` of the device, in main memory
    that it reads, or an array of the host."""

    buffer: DeviceBuffer | None
    offset: int = 0
    array: np.ndarray | None = None
    outside: bool = False


class DeviceProgram(Program):
    """A module and the device that it runs on. Calls from several threads take turns.

    `pipelines` are those of the module's shaders, in order.
    """

    def __init__(self, module: Module, gpu: Gpu, pipelines: Sequence[ComputePipeline],
                 recipe: Recipe | None = None) -> None:
        self.module, self.gpu, self.pipelines, self.recipe = module, gpu, pipelines, recipe
        self.name, self.targets = module.name, (module.target,)
        self.device, self.precision, self.rows = gpu.device.id, module.precision, module.rows
        self.inputs, self.outputs = ({name: place.shape for name, place in ends.items()}
                                     for ends in (module.inputs, module.outputs))
        self.weights_bytes = module.weights_bytes
        self._turn = threading.Lock()
        self._arena: list[DeviceBuffer] = []
        self._stage: DeviceBuffer | None = None
        self._weights: list[Held] | None = None
        self._shared: set[int] = set()
        self._parts: Parts = {}
        self._held: dict[str, np.ndarray] = {}
        self.bound = self._settled = False
        self._launches = Counter(launch.region for launch in module.launches)
        self._seconds: np.ndarray | None = None
        self._timed: tuple[dict[int, GpuAlternative], Parts] = {}, {}
        self._model = recorded(gpu.device)
        if not module.parameters:
            self.bind(lambda name: np.empty(0))

    # ------------------------------------------------------------------ weights

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        """Read, check, pack and upload every parameter, or those of `only`.

        What takes more than `bytes_max` bytes, or more than the device has, stays in main memory,
        from which each run copies it to the device, while it computes (`streaming.py`).
        Raises InputError and NumericsError as `Program.bind` does, and DeviceMemoryError.
        """
        known = self.recipe.graph.parameters if self.recipe else self.module.parameters
        with self._turn, self._noting_loss():
            needed = self._asked(self.module.parameters, only)
            read, done = reading(weights, done, needed, known, self.name, strict)
            self.bound = False
            kept = self._kept(like, differing) if only is None else {
                number: self._weights[number] for number, slot in enumerate(self.module.slots)
                if slot.name not in needed or not slot.name}
            self._fill(kept, read, done, bytes_max)
            self.bound, self._settled = True, False

    def _kept(self, like: Program | None, differing: Collection[str]) -> dict[int, Held]:
        """Weights that another program has bound in the same layouts, but for those that it has
        otherwise, by the numbers of slots."""
        if not isinstance(like, DeviceProgram) or like is self or like.gpu is not self.gpu \
                or not like.bound:
            return {}
        theirs = {like.module.layout_of(slot): number
                  for number, slot in enumerate(like.module.slots) if slot.name}
        found = {number: theirs[layout] for number, slot in enumerate(self.module.slots)
                 if slot.name not in differing
                 and (layout := self.module.layout_of(slot)) in theirs}
        like._shared.update(found.values())
        self._shared = set(found)
        return {number: like._weights[other] for number, other in found.items()}

    def _fill(self, kept: Mapping[int, Held], read: Read, done: Done,
              bytes_max: int | None) -> None:
        """Memory for all slots that are not `kept`, and their weights in it."""
        slots = self.module.slots
        before = dict(enumerate(self._weights or ()))
        again = {n: before[n] for n in before if n not in kept and n not in self._shared}
        places = {**kept, **again}
        new = [n for n in range(len(slots)) if n not in places]
        self._need_arena()
        needed = sum(slots[n].bytes for n in new if not slots[n].host)
        if needed > min(needed if bytes_max is None else bytes_max, self.gpu.free_bytes()):
            self._need_stage()  # before weights take all memory
        places |= self._room(new, bytes_max)
        if any(held.outside for held in places.values()):
            self._need_stage()
        else:
            self._stage = None
        if any(places[n] is not held for n, held in before.items()):
            self._forget_parts()
        self._shared -= set(new)
        by_name: dict[str, list[int]] = {}
        for number, slot in enumerate(slots):
            if number not in kept:
                by_name.setdefault(slot.name, []).append(number)
        for name, numbers in by_name.items():
            values = None
            if name:
                values = checked(name, read(name), self.module.parameters[name],
                                 slots[numbers[0]].dtype).reshape(-1)
            for number in numbers:
                places[number] = self._put(slots[number], places[number], values)
            if name:
                done(name)
        self._weights = [places[number] for number in range(len(slots))]

    def _put(self, slot: WeightSlot, held: Held, values: np.ndarray | None) -> Held:
        """Fill the memory of a slot."""
        if values is None:
            values = np.frombuffer(self.module.constants, np.uint8)
        if slot.dtype not in FORMATS:
            values = values.view(DTYPES[slot.dtype])
        filled = slot.filled(values)
        if slot.host:
            return Held(None, 0, np.array(filled))
        self.gpu.write(held.buffer, held.offset, filled)
        return held

    def _room(self, numbers: Sequence[int], bytes_max: int | None) -> dict[int, Held]:
        """Memory for slots: on the device while there is enough of it, else of the host."""
        slots = self.module.slots
        found = {n: Held(None) for n in numbers if slots[n].host}
        small, at = {}, 0
        for number in numbers:
            if number not in found and slots[number].bytes < SMALL_BYTES:
                small[number] = at
                at += slots[number].bytes + -slots[number].bytes % ALIGNMENT
        left = self.weights_bytes if bytes_max is None else bytes_max
        if small:
            block = self.gpu.buffer(at)
            found |= {number: Held(block, offset) for number, offset in small.items()}
            left -= at
        for number in numbers:
            if number in found:
                continue
            size = slots[number].bytes
            found[number] = self._large(size, fits=left >= size)
            left -= size
        return found

    def _large(self, size: int, fits: bool) -> Held:
        if fits:
            try:
                return Held(self.gpu.buffer(size))
            except DeviceMemoryError:
                pass  # then main memory has to do, which raises the same where it is full, too
        return Held(self.gpu.buffer(aligned(size), kind="host"), outside=True)

    def _need_arena(self) -> None:
        """Memory for what is computed, which weights must not take: in segments, as a buffer may be
        smaller than all of it."""
        if not self._arena:
            size = max(self.module.arena_bytes, ALIGNMENT)
            segment = self.module.segment_bytes or size
            self._arena = [self.gpu.buffer(min(segment, size - begin))
                           for begin in range(0, size, segment)]
            self._settled = False

    def _need_stage(self) -> None:
        """Memory that weights outside are copied to, if the device has so much; where it computes
        in main memory there is none."""
        if self._stage is None and not self.gpu.limits.unified:
            half = max((sum(aligned(self.module.slots[number].bytes) + ALIGNMENT
                            for kind, number, _ in launch.operands if kind != ARENA)
                        for launch in self.module.launches if isinstance(launch, Launch)),
                       default=0)
            try:
                self._stage = self.gpu.buffer(2 * half)
            except DeviceMemoryError:
                pass  # programs read the weights where they are

    # ------------------------------------------------------------------ running

    def run(self, inputs: Mapping[str, np.ndarray],
            instead: Mapping[int, GpuAlternative] | None = None) -> dict[str, np.ndarray]:
        """The outputs for `inputs`: arrays of the shapes that the graph gives them.

        `instead` has kernels, by the numbers of their regions, that take the place of others this
        time; where it is given, though it be empty, the run is timed, for `kernel_seconds`.
        Raises InputError for a missing input, one of another shape or with rows that a table does
        not have, and when no weights are bound; DeviceError where the device fails.
        """
        with self._turn, self._noting_loss():
            self._start(inputs)
            first, last = self.module.changing, len(self.module.launches)
            if instead is None:
                self._launch(first, last)
            else:
                self._seconds = np.zeros(len(self.module.regions))
                self._launch_timed(first, last, instead)
            return {name: self._read(place) for name, place in self.module.outputs.items()}

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """A device that is lost inside is of no use from then on."""
        try:
            yield
        except DeviceLostError:
            self.gpu.lost = True
            raise

    @property
    def lost(self) -> bool:
        return self.gpu.lost or self.gpu.outdated

    def _start(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Check the inputs and bring them to the device; compute what is due before a run."""
        self._require_bound()
        all_given(inputs, self.inputs, self.name)
        given = {}
        for name, place in self.module.inputs.items():
            given[name] = checked_input(name, inputs[name], place.shape, place.known_as)
            if (rows := self.module.rows.get(name)) is not None:
                check_rows(name, given[name], rows)
        self._need_arena()
        if not self._settled:
            self._launch(0, self.module.steady)
            self._settled = True
            self._held.clear()
        for name, array in given.items():
            self._write(self.module.inputs[name], array)
        if self.module.changing > self.module.steady:
            self._hold(given)

    def _hold(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Compute what depends on held inputs only, where one of them has changed."""
        if all(name in self._held and np.array_equal(self._held[name], inputs[name])
               for name in self.module.held):
            return
        self._held.clear()
        self._launch(self.module.steady, self.module.changing)
        self._held.update((name, np.array(inputs[name])) for name in self.module.held)

    def _write(self, place: Place, array: np.ndarray) -> None:
        """Put a value of the host to the device, as that stores it."""
        if not place.bytes:
            return
        memory = np.zeros(place.bytes, np.uint8)
        target = array_at(memory, replace(place, offset=0))
        if memory.size > target.nbytes:  # others may lie in between
            memory[:] = self._span(place)
        np.copyto(target, _fitting(array, target.dtype), casting="unsafe")
        self.gpu.write(*self._in_arena(place.offset), memory)

    def _read(self, place: Place) -> np.ndarray:
        """A value of the device, as the host knows it."""
        kind = DTYPES[place.known_as]
        if not place.bytes:
            return np.zeros(place.shape, kind)
        memory = self._span(place)
        found = array_at(memory, replace(place, offset=0))
        return np.array(found.astype(kind, copy=False), order="C")

    def _launch(self, first: int, last: int) -> None:
        """Run the launches from `first` to `last`, and the calls of the host between them."""
        if (first, last) not in self._parts:
            self._parts[first, last] = list(self._recorded(first, last))
        for part in self._parts[first, last]:
            part()

    def _launch_timed(self, first: int, last: int,
                      instead: Mapping[int, GpuAlternative]) -> None:
        """The same, with these kernels in the place of others; adds what each region took to the
        seconds of the run."""
        if self._timed[0] != instead:
            self._forget_timed(instead)
        parts = self._timed[1]
        if (first, last) not in parts:
            parts[first, last] = list(self._recorded(first, last, True, instead))
        for part in parts[first, last]:
            part()
            if part.recording is not None:
                for number, took in zip(part.numbers, part.recording.seconds(), strict=True):
                    self._seconds[self.module.launches[number].region] += took

    def run_beside(self, inputs: Mapping[str, np.ndarray], others: Mapping[int, GpuAlternative],
                   instead: Mapping[int, GpuAlternative] = NONE
                   ) -> tuple[dict[str, np.ndarray], dict[int, Beside]]:
        """As a timed `run`; besides, each of `others` computes its region again, on the same data.

        Where it gives other bytes, these are not used.
        """
        with self._turn, self._noting_loss():
            self._start(inputs)
            self._seconds = np.zeros(len(self.module.regions))
            found, at = {}, self.module.changing
            for region in sorted(others):
                first, last = self.module.span(region)
                self._launch_timed(at, first, instead)
                found[region] = self._beside(region, others[region], instead)
                at = last
            self._launch_timed(at, len(self.module.launches), instead)
            return {name: self._read(place) for name, place in self.module.outputs.items()}, found

    def _beside(self, region: int, other: GpuAlternative,
                instead: Mapping[int, GpuAlternative]) -> Beside:
        """A region by its own kernel and then by another one; the time of the first one is noted.
        """
        first, last = self.module.span(region)
        places = self.module.regions[region].results
        before = self._spans(places)
        self._launch_timed(first, last, instead)
        own, expected = self._seconds[region], self._spans(places)
        for place, memory in zip(places, before, strict=True):
            if not self.module.overwrites(first, last, place):  # what nobody writes has to be seen
                memory = memory.copy()
                array = array_at(memory, replace(place, offset=0))
                array.view(f"i{array.itemsize}")[...] = -1
            self.gpu.write(*self._in_arena(place.offset), memory)
        self._launch_timed(first, last, {**instead, region: other})
        seconds, self._seconds[region] = float(self._seconds[region] - own), own
        found = self._spans(places)
        same = all(array_at(one, replace(place, offset=0)).tobytes()
                   == array_at(two, replace(place, offset=0)).tobytes()
                   for place, one, two in zip(places, expected, found, strict=True))
        for place, memory in zip(places, expected, strict=True):
            self.gpu.write(*self._in_arena(place.offset), memory)
        return Beside(float(own), seconds, same)

    def _spans(self, places: Sequence[Place]) -> list[np.ndarray]:
        """The bytes of the arena from the first to the last element of each of these tensors."""
        return [self._span(place) for place in places]

    def _span(self, place: Place) -> np.ndarray:
        """The bytes of the arena from the first to the last element of a tensor."""
        return self.gpu.read(*self._in_arena(place.offset), place.bytes)

    def _in_arena(self, at: int) -> tuple[DeviceBuffer, int]:
        """The segment that byte number `at` of the arena is in, and where in it."""
        segment = self.module.segment_bytes
        number = min(at // segment, len(self._arena) - 1) if segment else 0
        return self._arena[number], at - number * segment

    def _recorded(self, first: int, last: int, timed: bool = False,
                  instead: Mapping[int, GpuAlternative] = NONE) -> Iterable[RecordedPart]:
        """Launches as recordings, and calls of the host, in order."""
        calls = {number: call for number, call in enumerate(self.module.launches[first:last], first)
                 if isinstance(call, HostCall)}
        for start, end in pairwise([first - 1, *calls, last]):
            if end > start + 1:
                dispatches = list(self._dispatches(start + 1, end, instead))
                launches: Sequence[tuple[int, GpuLaunch]] = dispatches
                if self._stage is not None:
                    outside = {held.buffer for held in self._weights if held.outside}
                    launches = streamed(dispatches, outside, self._stage)
                recording = self.gpu.record([launch for _, launch in launches], timed=timed)
                yield RecordedPart([n for n, _ in launches],
                                   partial(self.gpu.run, recording), recording)
            if end in calls:
                yield RecordedPart([end], partial(self._call, calls[end]))

    def _dispatches(self, first: int, last: int, instead: Mapping[int, GpuAlternative]
                    ) -> Iterator[tuple[int, Dispatch]]:
        """Launches with their buffers, by their numbers; those of an alternative all have that of
        the first launch of the region."""
        begun: set[int] = set()
        for number, launch in enumerate(self.module.launches[first:last], first):
            if isinstance(launch, HostCall):
                continue
            other, longest = instead.get(launch.region), self._seconds_max(launch.region)
            if other is None:
                yield number, Dispatch(self.pipelines[launch.function],
                                       tuple(map(self._where, launch.operands)),
                                       longest / self._launches[launch.region])
            elif launch.region not in begun:
                begun.add(launch.region)
                for dispatch in other.dispatches(self._where, longest):
                    yield number, dispatch

    def _where(self, reference: Reference) -> tuple[DeviceBuffer, int]:
        """The buffer and the byte offset in it that a launch means."""
        kind, number, at = reference
        if kind == ARENA:
            return self._in_arena(at)
        held = self._weights[number]
        return held.buffer, held.offset + at

    def _seconds_max(self, number: int) -> float:
        """How long a kernel takes at most, roughly, for the first time that it is launched."""
        region = self.module.regions[number]
        if self._model is None:
            units = max(1, self.gpu.limits.units / SLOW_UNITS)
            return max(region.flops / SLOW_FLOPS, region.bytes / SLOW_BANDWIDTH) / units
        return max(region.flops / self._model.vector["f32"],
                   region.bytes / self._model.bandwidth) / SLOW_SHARE

    def _call(self, call: HostCall) -> None:
        """Compute an operation on the host: its operands come from the device, its result goes
        there."""
        operands = [self._read(each.place) if each.slot < 0 else
                    array_at(self._weights[each.slot].array.view(np.uint8), each.place)
                    for each in call.operands]
        with refusals(call.operation), np.errstate(all="ignore"):
            result = OPERATIONS[call.operation].meaning(*operands, **call.attributes)
        self._write(call.result, np.asarray(result))

    def held_bytes(self, bytes_max: int) -> int:
        return max(0, min(self.weights_bytes, bytes_max))

    @property
    def arena_bytes(self) -> int:
        return self.module.arena_bytes

    @property
    def shared_bytes(self) -> int:
        return sum(self.module.slots[number].bytes for number in self._shared)

    def release(self) -> None:
        """Give back the memory of weights and intermediate results; `bind` brings them back."""
        self._forget_parts()
        if self.module.parameters:
            self._weights, self._shared, self.bound = None, set(), False
        self._arena, self._stage, self._settled = [], None, False
        self._held.clear()

    def _forget_parts(self) -> None:
        closed(self._parts)
        self._forget_timed(NONE)

    def _forget_timed(self, instead: Mapping[int, GpuAlternative]) -> None:
        """Timed recordings, from now on with these kernels in the place of others."""
        closed(self._timed[1])
        self._timed = dict(instead), {}

    # ------------------------------------------------------------------ asking

    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        """Run launch by launch; the kernel whose result first holds NaN or Inf."""
        with self._turn:
            self._start(inputs)
            for number in range(len(self.module.launches)):
                for part in self._recorded(number, number + 1):
                    part()
                region = self.module.regions[self.module.launches[number].region]
                if not all(finite_at(self._span(place), replace(place, offset=0))
                           for place in region.results if place.bytes):
                    return f"the {region.form} of {region.scope or self.name}"
        return None

    def profile(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Seconds of each region in one run for `inputs`, as the device's clock says; 0 of the
        host's."""
        self.run(inputs, NONE)
        with self._turn:
            self._forget_timed(NONE)
        return self.kernel_seconds()

    def kernel_seconds(self) -> np.ndarray:
        """Seconds of each region in the last timed run. Raises InputError before there was one."""
        if self._seconds is None:
            raise InputError(f"{self.name}: no run was timed; call profile first")
        return self._seconds.copy()

    def trials(self) -> GpuTrials:
        return GpuTrials(self)

    @property
    def streamed(self) -> bool:
        """Whether weights come from main memory while the program runs."""
        return any(held.outside for held in self._weights or ())

    def measured(self) -> np.ndarray | None:
        """Seconds of each region in the last timed run; None before there was one."""
        return None if self._seconds is None else self._seconds.copy()

    def kernels(self) -> KernelTable:
        """Its kernels, with expected times where the device is known, and those of the last timed
        run."""
        measured = self.measured()
        return explained_on(self.module, f"{self.gpu.device.name} ({self.gpu.device.id})",
                            self._expected(), None if measured is None else measured.tolist())

    def _explained(self, all: bool, columns: int) -> str:
        return self.kernels().text(all, columns)

    def _expected(self) -> dict[int, Expected]:
        """What the library of the timing model expects of the kernels of a run, by the numbers of
        their regions; nothing where it does not know the device."""
        if self._model is None:
            return {}
        module = self.module
        running = {launch.region for launch in module.launches[module.changing:]
                   if isinstance(launch, Launch)}
        regions = {n: Region(parse(module.kernels[info.kernel]), {}, info.scope, info.reason,
                             info.flops) for n, info in enumerate(module.regions) if n in running}
        found = on_gpu(regions.values(), module.precision, self._model)
        return dict(zip(regions, found, strict=True))


@dataclass(frozen=True)
class RecordedPart:
    """Launches as one recording, copies of their weights included, or one call of the host.

    `numbers` say which launch of the module each is, or is for.
    """

    numbers: Sequence[int]
    compute: Callable[[], None]
    recording: Recording | None = None

    def __call__(self) -> None:
        self.compute()


Parts = dict[tuple[int, int], list[RecordedPart]]
"""Launches from one number to another, as they are recorded."""


def closed(parts: Parts) -> None:
    """Give recordings back, and forget them."""
    for recorded_parts in parts.values():
        for part in recorded_parts:
            if part.recording is not None:
                part.recording.close()
    parts.clear()


def _fitting(array: np.ndarray, kind: np.dtype) -> np.ndarray:
    """`array`, whose whole numbers fit the device's. Raises InputError where they do not."""
    if kind == np.int32 and array.dtype in (np.int64, np.uint32, np.uint64) and array.size:
        if not -(1 << 31) <= array.min() <= array.max() < 1 << 31:
            raise InputError(f"numbers from {array.min()} to {array.max()} do not fit the 32 bits "
                             f"that a device has for them; run this model with device='cpu'")
    return array
