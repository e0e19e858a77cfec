"""Launches as `wgpu` takes them.

A command buffer of WebGPU is used up by its submission, so each run encodes anew: calls of the
native library with arguments that stand ready. All dispatches between two copies are one pass. The
library itself puts barriers between dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from smalti.errors import DeviceError, InputError, VerificationError
from smalti.runtime.gpu.interface import Copy, Dispatch, Launch, Recording
from smalti.runtime.webgpu.adapter import GRANULE, UNIFORM_BYTES
from smalti.runtime.webgpu.library import caught, load, refusals
from smalti.runtime.webgpu.memory import WebBuffer, own
from smalti.runtime.webgpu.pipelines import WebPipeline
from smalti.schedule.group import GroupLimits

SUBMISSION_SECONDS = 0.5
"""A driver's watchdog ends what takes some seconds; predictions err."""
UNKNOWN_SECONDS = 5e-3
"""Of a launch that nobody has predicted."""
SLOT = UNIFORM_BYTES  # also where a binding of a uniform buffer may begin, on every device
TIMED_MAX = 2048  # launches; a set of queries holds twice as many times


class WebCommand(NamedTuple):
    """A dispatch: native handles, immediates (None where they are in a buffer), work-groups."""

    pipeline: Any
    group: Any
    immediates: Any
    bytes: int
    groups: tuple[int, int, int]


class Move(NamedTuple):
    """A copy between two buffers."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    bytes: int


class Owner(Protocol):
    """What a recording needs of the device that it is for."""

    library: Any
    immediates: bool
    limits: GroupLimits

    @property
    def native(self) -> Any:
        """The device of the package."""

    def buffer(self, bytes: int) -> WebBuffer:
        """Memory of the device."""

    def wait(self) -> None:
        """Return when all that was submitted has run."""


class WebRecording(Recording):
    """`WebGpu.record` makes it."""

    def __init__(self, gpu: Owner, launches: Sequence[Launch], timed: bool) -> None:
        self.launches = tuple(launches)
        self._gpu, self._ffi = gpu, load().ffi
        self._kept: list[Any] = []  # what native handles belong to
        self._groups: dict[tuple, Any] = {}
        self._buffers = list({buffer for launch in self.launches for buffer in touched(launch)})
        self._offsets = self._uniforms()
        self._commands = [self._prepared(n, launch) for n, launch in enumerate(self.launches)]
        self._parts = parts(self.launches)
        self._times = Times(gpu, len(self.launches)) if timed else None
        self._has_run = False

    def run(self) -> None:
        """Encode and submit."""
        if not self._commands and self.launches:
            raise DeviceError("the recording is closed")
        if any(buffer.handle is None for buffer in self._buffers):
            raise DeviceError("a buffer of the recording is closed")
        for first, stop in self._parts:
            with self._encoder("running a program") as encoder:
                if self._times is None:
                    self._encode(encoder, first, stop)
                else:
                    self._times.encode(encoder, self._encode, self._commands, first, stop)
        if self._times is not None:
            with self._encoder("asking for times") as encoder:
                self._times.resolve(encoder)
        self._has_run = True

    def seconds(self) -> tuple[float, ...]:
        if self._times is None or not self._has_run:
            raise DeviceError("no times: the launches were not recorded with timed=True, or have "
                              "not run")
        self._gpu.wait()
        return self._times.read()

    def close(self) -> None:
        self._commands, self._kept, self._groups, self._times = [], [], {}, None
        self._buffers, self._offsets = [], None

    # ------------------------------------------------------------------ once

    def _uniforms(self) -> Any:
        """The offsets of all launches in a buffer, where the device has no immediates."""
        count = sum(isinstance(launch, Dispatch) for launch in self.launches)
        if self._gpu.immediates or not count:
            return None
        usage = self._gpu.library.package.BufferUsage
        with refusals("making a buffer for offsets"):
            return self._gpu.native.create_buffer(size=SLOT * len(self.launches),
                                                  usage=usage.UNIFORM | usage.COPY_DST)

    def _prepared(self, number: int, launch: Launch) -> WebCommand | tuple[Move, ...]:
        if isinstance(launch, Copy):
            return self._moves(launch)
        pipeline = launch.pipeline
        if not isinstance(pipeline, WebPipeline):
            raise InputError(f"{pipeline.name}: the pipeline is of another device")
        places, words = [], []
        for binding, (buffer, offset) in zip(pipeline.bindings, launch.operands, strict=True):
            start = offset - offset % self._gpu.limits.offset_alignment
            if offset % binding.item_bytes or offset + binding.bytes > buffer.bytes:
                raise VerificationError(
                    f"program {pipeline.name}: {binding.bytes} bytes from {offset} on, in elements "
                    f"of {binding.item_bytes}, of a buffer of {buffer.bytes}")
            size = -(-(offset - start + binding.bytes) // GRANULE) * GRANULE
            places.append((own(buffer).handle, start, size))
            words.append((offset - start) // binding.item_bytes)
        data = np.array([*words, 0], np.uint32)
        group = self._bind_group(pipeline, places, number)
        if self._offsets is None:
            immediates = self._ffi.new("uint32_t[]", data.tolist())
            return WebCommand(pipeline.handle._internal, group._internal, immediates, data.nbytes,
                           pipeline.groups)
        with refusals("writing offsets"):
            self._gpu.native.queue.write_buffer(self._offsets, SLOT * number, data)
        return WebCommand(pipeline.handle._internal, group._internal, None, 0, pipeline.groups)

    def _bind_group(self, pipeline: WebPipeline, places: list[tuple], number: int) -> Any:
        slot = [] if self._offsets is None else [
            (self._offsets, SLOT * number, -(-4 * (len(places) + 1) // GRANULE) * GRANULE)]
        key = (pipeline.layout, *[(id(handle), *rest) for handle, *rest in (*places, *slot)])
        if key not in self._groups:
            entries = [{"binding": n, "resource": {"buffer": b, "offset": o, "size": s}}
                       for n, (b, o, s) in enumerate((*places, *slot))]
            with refusals(f"binding buffers to {pipeline.name}"):
                self._groups[key] = self._gpu.native.create_bind_group(
                    layout=pipeline.layout, entries=entries)
            self._kept += [self._groups[key], pipeline.handle]
        return self._groups[key]

    def _moves(self, copy: Copy) -> tuple[Move, ...]:
        source, target = own(copy.source), own(copy.target)
        ends = (source.handle._internal, copy.source_offset), (
            target.handle._internal, copy.target_offset)
        if source is not target:
            return (Move(*ends[0], *ends[1], copy.bytes),)
        between = self._gpu.buffer(copy.bytes)  # WebGPU copies between two buffers only
        self._buffers.append(between)
        middle = (between.handle._internal, 0)
        return Move(*ends[0], *middle, copy.bytes), Move(*middle, *ends[1], copy.bytes)

    # ------------------------------------------------------------------ each run

    @contextmanager
    def _encoder(self, doing: str) -> Iterator[Any]:
        """An encoder, whose commands are submitted at the end. What is wrong with them raises an
        error before: the native library ends the process for what it does not submit."""
        native, ffi = self._gpu.library.native, self._ffi
        with caught(doing):
            encoder = native.wgpuDeviceCreateCommandEncoder(self._gpu.native._internal, ffi.NULL)
            yield encoder
            commands = native.wgpuCommandEncoderFinish(encoder, ffi.NULL)
            native.wgpuCommandEncoderRelease(encoder)
        native.wgpuQueueSubmit(self._gpu.native.queue._internal, 1,
                               ffi.new("WGPUCommandBuffer[]", [commands]))
        native.wgpuCommandBufferRelease(commands)

    def _encode(self, encoder: Any, first: int, stop: int, descriptor: Any = None) -> None:
        """Commands number `first` to `stop`, in passes that `descriptor` describes."""
        native, null = self._gpu.library.native, self._ffi.NULL
        set_pipeline = native.wgpuComputePassEncoderSetPipeline
        set_group, set_immediates = (native.wgpuComputePassEncoderSetBindGroup,
                                     native.wgpuComputePassEncoderSetImmediates)
        dispatch = native.wgpuComputePassEncoderDispatchWorkgroups
        work, pipeline = None, None
        for command in self._commands[first:stop]:
            if not isinstance(command, WebCommand):
                self._end(work)
                work = None
                for move in command:
                    native.wgpuCommandEncoderCopyBufferToBuffer(encoder, *move)
                continue
            if work is None:
                work = native.wgpuCommandEncoderBeginComputePass(encoder, descriptor or null)
                pipeline = None
            if command.pipeline != pipeline:
                pipeline = command.pipeline
                set_pipeline(work, pipeline)
            set_group(work, 0, command.group, 0, null)
            if command.immediates is not None:
                set_immediates(work, 0, command.immediates, command.bytes)
            dispatch(work, *command.groups)
        self._end(work)

    def _end(self, work: Any) -> None:
        if work is not None:
            self._gpu.library.native.wgpuComputePassEncoderEnd(work)
            self._gpu.library.native.wgpuComputePassEncoderRelease(work)


class Times:
    """When each launch of a recording begins and ends, by queries of the device."""

    def __init__(self, gpu: Owner, launches: int) -> None:
        library, self._gpu, self._launches = gpu.library, gpu, launches
        usage = library.package.BufferUsage
        self._sets, self._results = [], []
        with refusals("making queries of times"):
            for first in range(0, launches, TIMED_MAX):
                count = 2 * min(TIMED_MAX, launches - first)
                self._sets.append(gpu.native.create_query_set(type="timestamp", count=count))
                self._results.append(gpu.native.create_buffer(
                    size=8 * count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC))
        self._tick = 1e-9 * library.native.wgpuQueueGetTimestampPeriod(gpu.native.queue._internal)

    def encode(self, encoder: Any, encode: Any, commands: list, first: int, stop: int) -> None:
        """Commands number `first` to `stop`, each between two times: those of its own pass, or of
        empty ones around a copy."""
        for number in range(first, stop):
            part, query = divmod(number, TIMED_MAX)
            if isinstance(commands[number], WebCommand):
                encode(encoder, number, number + 1, self._pass(part, 2 * query, 2 * query + 1))
            else:
                self._empty(encoder, self._pass(part, 2 * query, None))
                encode(encoder, number, number + 1)
                self._empty(encoder, self._pass(part, None, 2 * query + 1))

    def resolve(self, encoder: Any) -> None:
        """Put all times where they can be read."""
        for queries, result in zip(self._sets, self._results):
            self._gpu.library.native.wgpuCommandEncoderResolveQuerySet(
                encoder, queries._internal, 0, queries.count, result._internal, 0)

    def read(self) -> tuple[float, ...]:
        """Seconds of each launch."""
        times = [np.frombuffer(self._gpu.native.queue.read_buffer(buffer), np.uint64)
                 for buffer in self._results]
        ticks = np.concatenate([np.zeros(0, np.uint64), *times]).reshape(-1, 2)
        return tuple(((ticks[:, 1] - ticks[:, 0]) * self._tick).tolist())

    def _pass(self, part: int, begin: int | None, end: int | None) -> Any:
        ffi, native = self._gpu.library.ffi, self._gpu.library.native
        undefined = native.WGPU_QUERY_SET_INDEX_UNDEFINED
        writes = ffi.new("WGPUPassTimestampWrites *")
        writes.querySet = self._sets[part]._internal
        writes.beginningOfPassWriteIndex = undefined if begin is None else begin
        writes.endOfPassWriteIndex = undefined if end is None else end
        descriptor = ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        self._kept = (writes, descriptor)
        return descriptor

    def _empty(self, encoder: Any, descriptor: Any) -> None:
        native = self._gpu.library.native
        work = native.wgpuCommandEncoderBeginComputePass(encoder, descriptor)
        native.wgpuComputePassEncoderEnd(work)
        native.wgpuComputePassEncoderRelease(work)


def touched(launch: Launch) -> list[WebBuffer]:
    """The buffers of a launch."""
    if isinstance(launch, Copy):
        return [own(launch.source), own(launch.target)]
    return [own(buffer) for buffer, _ in launch.operands]


def parts(launches: Sequence[Launch]) -> list[tuple[int, int]]:
    """Which launches (first, stop) are submitted together, so that no driver thinks that they hang.

    >>> from smalti.runtime.gpu.interface import ComputePipeline
    >>> parts([Dispatch(None, (), seconds) for seconds in (0.3, 0.1, 0.4, 2.0, 0.1)])
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    found, first, total = [], 0, 0.0
    for number, launch in enumerate(launches):
        seconds = getattr(launch, "seconds", 0.0) or UNKNOWN_SECONDS
        if number > first and total + seconds > SUBMISSION_SECONDS:
            found.append((first, number))
            first, total = number, 0.0
        total += seconds
    return [*found, (first, len(launches))] if launches else []
