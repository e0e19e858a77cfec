"""Launches as `wgpu` takes them.

A command buffer of WebGPU is used up by its submission, so each run encodes anew: calls of the
native library with arguments that stand ready. All dispatches between two copies are one pass. The
library itself puts barriers between dispatches. While it is not known how long launches take, they
run one by one, in pieces (`pieces.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from smalti.codegen.wgsl.emit import OWN_WORDS
from smalti.errors import DeviceError, InputError, VerificationError
from smalti.runtime.gpu.interface import Copy, Dispatch, Launch, Recording
from smalti.runtime.gpu.pacing import REVIEWS_MAX, WATCHED_RUNS
from smalti.runtime.gpu.pieces import Piece, explore, known, parts, reviewed
from smalti.runtime.webgpu.adapter import GRANULE, UNIFORM_BYTES
from smalti.runtime.webgpu.library import caught, load, refusals
from smalti.runtime.webgpu.memory import WORD, WebBuffer, own
from smalti.runtime.webgpu.pipelines import WebPipeline
from smalti.schedule.group import GroupLimits

SLOT = UNIFORM_BYTES  # also where a binding of a uniform buffer may begin, on every device
TIMED_MAX = 2048  # launches; a set of queries holds twice as many times


class WebCommand(NamedTuple):
    """A dispatch: native handles, and the words of its offsets."""

    pipeline: Any
    group: Any
    words: Any


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
        self._cut: list[list[Piece]] = []
        self._timed = timed
        self._times: Times | None = None
        self._seconds: tuple[float, ...] | None = None
        self._has_run, self._runs, self._reviews = False, 0, 0

    def run(self) -> None:
        """Encode and submit."""
        if not self._commands and self.launches:
            raise DeviceError("the recording is closed")
        if any(buffer.handle is None for buffer in self._buffers):
            raise DeviceError("a buffer of the recording is closed")
        self._seconds, self._has_run = None, True
        if not known(self.launches):
            self._explore()
            return
        if not self._cut:
            self._cut = list(parts(self.launches))
            if self._timed:
                self._times = Times(self._gpu, sum(map(len, self._cut)))
        self._runs += 1
        if self._runs % WATCHED_RUNS == 0 and self._times is None:
            self._watched()
            return
        begun = 0
        for part in self._cut:
            self._submit(part, self._times, begun)
            begun += len(part)
        if self._times is not None:
            with self._encoder("asking for times") as encoder:
                self._times.resolve(encoder)

    def seconds(self) -> tuple[float, ...]:
        if not self._timed or not self._has_run:
            raise DeviceError("no times: the launches were not recorded with timed=True, or have "
                              "not run")
        if self._seconds is None:
            self._gpu.wait()
            found = [0.0] * len(self.launches)
            for piece, took in zip((p for part in self._cut for p in part), self._times.read(),
                                   strict=True):
                found[piece.number] += took
            self._seconds = tuple(found)
        return self._seconds

    def _watched(self) -> None:
        """Run, and wait for each submission: one that took too long is cut anew."""
        took = []
        for part in self._cut:
            self._gpu.wait()
            begun = perf_counter()
            self._submit(part, None, 0)
            self._gpu.wait()
            took.append((part, perf_counter() - begun))
        if self._reviews < REVIEWS_MAX and reviewed(took, self.launches):
            self._reviews += 1
            self._cut = []

    def _explore(self) -> None:
        """Run the launches one by one, and learn how long programs take that are new."""
        found = [0.0] * len(self.launches)

        def ran(part: list[Piece]) -> float:
            times = Times(self._gpu, len(part)) if self._timed else None
            self._gpu.wait()
            begun = perf_counter()
            self._submit(part, times, 0)
            self._gpu.wait()
            seconds = perf_counter() - begun
            if times is not None:
                with self._encoder("asking for times") as encoder:
                    times.resolve(encoder)
                for piece, took in zip(part, times.read(), strict=True):
                    found[piece.number] += took
            return seconds

        explore(self.launches, ran)
        self._seconds = tuple(found)

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
        group = self._bind_group(pipeline, places, number)
        data = self._ffi.new("uint32_t[]", [*words, *[0] * OWN_WORDS])
        if self._offsets is not None:
            self._write_offsets(number, data)
        return WebCommand(pipeline.handle._internal, group._internal, data)

    def _write_offsets(self, number: int, words: Any) -> None:
        """Put the offsets of a launch where it finds them, on a device without immediates."""
        with refusals("writing offsets"):
            self._gpu.native.queue.write_buffer(self._offsets, SLOT * number,
                                                self._ffi.buffer(words))

    def _bind_group(self, pipeline: WebPipeline, places: list[tuple], number: int) -> Any:
        slot = [] if self._offsets is None else [
            (self._offsets, SLOT * number, -(-4 * (len(places) + OWN_WORDS) // GRANULE) * GRANULE)]
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

    def _submit(self, part: Sequence[Piece], times: Times | None, begun: int) -> None:
        """Pieces as a submission, whose times are those from number `begun` on."""
        if self._offsets is not None:
            for piece in part:
                self._place(piece)
        with self._encoder("running a program") as encoder:
            if times is None:
                self._encode(encoder, part)
            for number, piece in enumerate(part if times is not None else (), begun):
                copies = not isinstance(self._commands[piece.number], WebCommand)
                times.encode(encoder, self._encode, piece, number, copies)

    def _place(self, piece: Piece) -> None:
        """Where the work-groups of a piece begin, on a device without immediates."""
        command = self._commands[piece.number]
        if isinstance(command, WebCommand) and tuple(command.words)[-3:] != piece.box.base:
            command.words[len(command.words) - 3:len(command.words)] = piece.box.base
            self._write_offsets(piece.number, command.words)

    def _encode(self, encoder: Any, part: Sequence[Piece], descriptor: Any = None) -> None:
        """Pieces in passes that `descriptor` describes."""
        native, null = self._gpu.library.native, self._ffi.NULL
        set_pipeline = native.wgpuComputePassEncoderSetPipeline
        set_group, set_immediates = (native.wgpuComputePassEncoderSetBindGroup,
                                     native.wgpuComputePassEncoderSetImmediates)
        dispatch = native.wgpuComputePassEncoderDispatchWorkgroups
        work, pipeline = None, None
        for piece in part:
            command = self._commands[piece.number]
            if not isinstance(command, WebCommand):
                self._end(work)
                work = None
                for source, offset, target, place, _ in command:
                    native.wgpuCommandEncoderCopyBufferToBuffer(
                        encoder, source, offset + piece.begin, target, place + piece.begin,
                        piece.bytes)
                continue
            if work is None:
                work = native.wgpuCommandEncoderBeginComputePass(encoder, descriptor or null)
                pipeline = None
            if command.pipeline != pipeline:
                pipeline = command.pipeline
                set_pipeline(work, pipeline)
            set_group(work, 0, command.group, 0, null)
            if self._offsets is None:
                words = command.words
                words[len(words) - 3:len(words)] = piece.box.base
                set_immediates(work, 0, words, WORD * len(words))
            dispatch(work, *piece.box.groups)
        self._end(work)

    def _end(self, work: Any) -> None:
        if work is not None:
            self._gpu.library.native.wgpuComputePassEncoderEnd(work)
            self._gpu.library.native.wgpuComputePassEncoderRelease(work)


class Times:
    """When each of `pieces` begins and ends, by queries of the device."""

    def __init__(self, gpu: Owner, pieces: int) -> None:
        library, self._gpu = gpu.library, gpu
        usage = library.package.BufferUsage
        self._sets, self._results = [], []
        with refusals("making queries of times"):
            for first in range(0, pieces, TIMED_MAX):
                count = 2 * min(TIMED_MAX, pieces - first)
                self._sets.append(gpu.native.create_query_set(type="timestamp", count=count))
                self._results.append(gpu.native.create_buffer(
                    size=8 * count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC))
        self._tick = 1e-9 * library.native.wgpuQueueGetTimestampPeriod(gpu.native.queue._internal)

    def encode(self, encoder: Any, encode: Any, piece: Piece, number: int, copies: bool) -> None:
        """A piece between times number `number`: those of its own pass, or of empty ones around
        what `copies`."""
        part, query = divmod(number, TIMED_MAX)
        if not copies:
            encode(encoder, [piece], self._pass(part, 2 * query, 2 * query + 1))
        else:
            self._empty(encoder, self._pass(part, 2 * query, None))
            encode(encoder, [piece])
            self._empty(encoder, self._pass(part, None, 2 * query + 1))

    def resolve(self, encoder: Any) -> None:
        """Put all times where they can be read."""
        for queries, result in zip(self._sets, self._results):
            self._gpu.library.native.wgpuCommandEncoderResolveQuerySet(
                encoder, queries._internal, 0, queries.count, result._internal, 0)

    def read(self) -> tuple[float, ...]:
        """Seconds of each piece."""
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
