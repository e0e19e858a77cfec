"""Launches as command buffers that are submitted again and again.

A recording runs in one of two ways. While it has programs of which nobody knows how long they take,
it explores: launch by launch, those first in small boxes of their grid, waiting for each. From then
on, its command buffers are made once, cut by what was measured; should one of them take longer than
a watchdog may allow, it is cut anew.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

from smalti.dataclass import dataclass
from smalti.errors import DeviceError, InputError
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.gpu.pacing import REVIEWS_MAX, WATCHED_RUNS
from smalti.runtime.gpu.pieces import Piece, explore, known, parts, reviewed
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.commands import Descriptors, VulkanCommand, command
from smalti.runtime.vulkan.hazards import Hazards
from smalti.runtime.vulkan.logical import (
    COMPUTE_STAGE as COMPUTED,
)
from smalti.runtime.vulkan.logical import (
    HOST_STAGE,
    RESETTABLE,
    SEEN,
    SHADED,
    SIMULTANEOUS,
    WORK,
    WRITTEN,
    LogicalDevice,
    Submission,
)
from smalti.runtime.vulkan.memory import DeviceMemory, Use
from smalti.runtime.vulkan.pipelines import COMPUTE_STAGE, STORAGE_BUFFER

COMPUTE_POINT = 1  # of VkPipelineBindPoint
TIMESTAMP, BOTTOM_OF_PIPE = 2, 0x2000  # of VkQueryType, VkPipelineStageFlagBits
RESULT_64, RESULT_WAIT = 1, 2  # of VkQueryResultFlagBits


@dataclass(slots=True)
class Stamps:
    """Where in a set of queries the times of a submission are: that before it is `first`, those
    after its pieces follow, or one after all of them where nobody asked for more."""

    part: list[Piece]
    first: int
    count: int


class VulkanRecording(gpu.Recording):
    """Launches of a device; `use` tells when they ran last."""

    def __init__(self, memory: DeviceMemory, launches: Sequence[gpu.Launch], timed: bool) -> None:
        logical = memory.logical
        if timed and not logical.compute.family.timestamp_bits:
            raise DeviceError(f"{logical.adapter.name} does not tell the time of launches")
        self._commands = [command(launch, memory) for launch in launches]
        self.launches, self.use, self._logical = tuple(launches), Use(), logical
        self._timed = timed
        self._handles: list[tuple[str, int]] = []
        self._token = logical.own(partial(destroy, logical, self._handles))
        self._sets = self._described()
        self._made: Made | None = None
        self._reviews = self._runs = 0
        self._explored: tuple[float, ...] | None = None
        for buffer in {buffer for each in self._commands for buffer in each.buffers}:
            buffer.used_by(self.use)

    @property
    def submissions(self) -> int:
        """How many a run is cut into; 0 before that is known."""
        return len(self._made.submissions) if self._made else 0

    def run(self, after: int) -> None:
        """Submit the launches, behind submission number `after` of the queue for copies. The lock
        of the device must be held."""
        self._review()
        if self._made is None and not known(self.launches):
            self._explore(after)
            return
        if self._made is None:
            self._made = Made(self._logical, self._commands, self._sets, self._timed)
        self._explored = None
        self._runs += 1
        queue, watched = self._logical.compute, self._made.watched(self._runs)
        for number, submission in enumerate(self._made.submissions):
            begun = perf_counter()
            self.use.last = queue.submit(submission, after)
            if watched:
                queue.wait(self.use.last)
                self._made.waited[number] = perf_counter() - begun

    def seconds(self) -> tuple[float, ...]:
        logical = self._logical
        logical.check()
        if not self._timed or not self.use.last:
            raise DeviceError("no times of launches: record with timed=True, and run")
        logical.compute.wait(self.use.last)
        if self._explored is not None:
            return self._explored
        found = [0.0] * len(self.launches)
        for number, took in self._made.seconds():
            found[number] += took
        return tuple(found)

    def check(self, logical: LogicalDevice) -> None:
        """Raises InputError when this or a buffer was closed, or it is of another device."""
        if self._token < 0 or self._logical is not logical:
            raise InputError("the recording was closed, or is of another device")
        if self.use.broken:
            raise InputError("a buffer that the recording uses was closed")

    def close(self) -> None:
        token, self._token = self._token, -1
        if token >= 0:
            self.use.over = True
            self._forget()
            self._logical.give_back(token)

    def __del__(self) -> None:
        if hasattr(self, "_token"):
            self.close()

    # ------------------------------------------------------------------ pace

    def _explore(self, after: int) -> None:
        """Run the launches one by one, and learn how long programs take that are new."""
        once = Once(self._logical, self._commands, self._sets, self._timed)
        found = [0.0] * len(self.launches)

        def ran(part: list[Piece]) -> float:
            seconds, each = once.run(part, after, self.use)
            for piece, took in zip(part, each):
                found[piece.number] += took
            return seconds

        try:
            explore(self.launches, ran)
        finally:
            once.close()
        self._explored = tuple(found)

    def _review(self) -> None:
        """Where a submission of the last run took too long, its programs are measured again: this
        run explores them. Some devices have clocks that lie, so that ends after some times."""
        if (self._made is None or self._reviews == REVIEWS_MAX
                or self._logical.compute.done() < self.use.last):
            return
        if reviewed(self._made.took(), self.launches):
            self._reviews += 1
            self._forget()

    def _forget(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made = None

    # ------------------------------------------------------------------ making

    def _described(self) -> dict[Descriptors, int]:
        """A set for each kind of descriptors."""
        logical = self._logical
        wanted = list(dict.fromkeys(each.descriptors for each in self._commands
                                    if each.descriptors and each.descriptors[1]))
        if not wanted:
            return {}
        size = vk.DescriptorPoolSize(type=STORAGE_BUFFER,
                                     descriptorCount=sum(len(bound) for _, bound in wanted))
        pool = logical.functions.made(
            "vkCreateDescriptorPool", logical.handle, vk.DescriptorPoolCreateInfo(
                maxSets=len(wanted), poolSizeCount=1, pPoolSizes=size))
        self._handles.append(("DescriptorPool", pool))
        made = (ctypes.c_uint64 * len(wanted))()
        layouts = vk.array(ctypes.c_uint64, [layout for layout, _ in wanted])
        logical.functions.vkAllocateDescriptorSets(logical.handle, vk.DescriptorSetAllocateInfo(
            descriptorPool=pool, descriptorSetCount=len(wanted), pSetLayouts=layouts), made)
        writes = []
        for handle, (_, bound) in zip(made, wanted):
            info = vk.array(vk.DescriptorBufferInfo, [
                vk.DescriptorBufferInfo(buffer=buffer, offset=offset, range=size)
                for buffer, offset, size in bound])
            writes.append(vk.WriteDescriptorSet(
                dstSet=handle, descriptorCount=len(bound), descriptorType=STORAGE_BUFFER,
                pBufferInfo=info))
        logical.functions.vkUpdateDescriptorSets(
            logical.handle, len(writes), vk.array(vk.WriteDescriptorSet, writes), 0, None)
        return dict(zip(wanted, made))


class CommandWriter:
    """Command buffers of a pool, and times that they write; `close` gives all of them back."""

    def __init__(self, logical: LogicalDevice, commands: Sequence[VulkanCommand],
                 sets: dict[Descriptors, int], flags: int, queries: int) -> None:
        self._logical, self._commands, self._sets = logical, commands, sets
        self._queries = 0
        self._handles: list[tuple[str, int]] = []
        self._token = logical.own(partial(destroy, logical, self._handles))
        self.pool = self._new("CommandPool", vk.CommandPoolCreateInfo(
            flags=flags, queueFamilyIndex=logical.compute.family.index))
        if queries:
            self._queries = self._new("QueryPool", vk.QueryPoolCreateInfo(
                queryType=TIMESTAMP, queryCount=queries))

    def close(self) -> None:
        """Give back what the commands occupy, once they have run."""
        self._logical.give_back(self._token)

    def write(self, handle: int, part: list[Piece], first: int, each: bool, flags: int) -> Stamps:
        """The commands of one submission. It waits for all before it, and shows what it writes to
        all after it. Times are written from query `first` on, after every piece where `each` says
        so, which then wait for each other."""
        logical, functions = self._logical, self._logical.functions
        functions.vkBeginCommandBuffer(handle, vk.CommandBufferBeginInfo(flags=flags))
        logical.barrier(handle, WRITTEN, WORK, WORK)
        stamps = Stamps(part, first, (len(part) if each else 1) + 1 if self._queries else 0)
        if stamps.count:
            functions.vkCmdResetQueryPool(handle, self._queries, first, stamps.count)
            functions.vkCmdWriteTimestamp(handle, BOTTOM_OF_PIPE, self._queries, first)
        hazards, current = Hazards(), 0
        copies = any(self._commands[piece.number].pipeline is None for piece in part)
        memory, stages = (WRITTEN, WORK) if copies else (SHADED, COMPUTED)
        for number, piece in enumerate(part, 1):
            touched = self._commands[piece.number]
            if hazards.add(touched.reads, touched.writes) or each:
                logical.barrier(handle, memory, stages, stages)
            current = self._launch(handle, piece, current)
            if stamps.count and (each or number == len(part)):
                functions.vkCmdWriteTimestamp(handle, BOTTOM_OF_PIPE, self._queries,
                                              first + (number if each else 1))
        logical.barrier(handle, SEEN, WORK, HOST_STAGE)
        functions.vkEndCommandBuffer(handle)
        return stamps

    def times(self, stamps: Stamps) -> list[float]:
        """Seconds between the times of a submission, which has run."""
        if not stamps.count:
            return []
        logical, found = self._logical, (ctypes.c_uint64 * stamps.count)()
        logical.functions.vkGetQueryPoolResults(
            logical.handle, self._queries, stamps.first, stamps.count, ctypes.sizeof(found), found,
            8, RESULT_64 | RESULT_WAIT)
        mask = (1 << logical.compute.family.timestamp_bits) - 1
        return [(after - before & mask) * logical.adapter.timestamp_seconds
                for before, after in zip(found, found[1:])]

    def _new(self, kind: str, info: vk.Chained) -> int:
        handle = self._logical.functions.made(f"vkCreate{kind}", self._logical.handle, info)
        self._handles.append((kind, handle))
        return handle

    def _launch(self, handle: int, piece: Piece, current: int) -> int:
        """Record one piece where pipeline `current` is bound; the pipeline bound after it."""
        functions, each = self._logical.functions, self._commands[piece.number]
        pipeline, launch = each.pipeline, each.launch
        if isinstance(launch, gpu.Copy):
            source, target = each.buffers
            functions.vkCmdCopyBuffer(
                handle, source.handle, target.handle, 1, vk.BufferCopy(
                    srcOffset=launch.source_offset + piece.begin,
                    dstOffset=launch.target_offset + piece.begin, size=piece.bytes))
            return current
        if pipeline.handle != current:
            functions.vkCmdBindPipeline(handle, COMPUTE_POINT, pipeline.handle)
        if each.descriptors in self._sets:
            functions.vkCmdBindDescriptorSets(handle, COMPUTE_POINT, pipeline.layout, 0, 1,
                                              vk.word(self._sets[each.descriptors]), 0, None)
            functions.vkCmdPushConstants(handle, pipeline.layout, COMPUTE_STAGE, 0,
                                         ctypes.sizeof(each.constants), each.constants)
        if any(piece.box.base):
            functions.vkCmdDispatchBase(handle, *piece.box.base, *piece.box.groups)
        else:
            functions.vkCmdDispatch(handle, *piece.box.groups)
        return pipeline.handle


class Once(CommandWriter):
    """A command buffer that is written anew for each submission, which is waited for."""

    def __init__(self, logical: LogicalDevice, commands: Sequence[VulkanCommand],
                 sets: dict[Descriptors, int], timed: bool) -> None:
        super().__init__(logical, commands, sets, RESETTABLE, 0)
        self._timed = timed
        self._handle, = logical.commands(self.pool, 1)
        self._submission = Submission([self._handle], logical.compute, logical.transfer)

    def run(self, part: list[Piece], after: int, use: Use) -> tuple[float, list[float]]:
        """Seconds that pieces take, as the host sees it, and those of each by the device's clock,
        where they are timed."""
        logical = self._logical
        if self._timed:
            self._need_queries(len(part) + 1)
        logical.compute.wait(logical.compute.value)  # of others, and of a run that was broken off
        logical.transfer.wait(after)
        stamps = self.write(self._handle, part, 0, self._timed, 0)
        begin = perf_counter()
        use.last = logical.compute.submit(self._submission, after)
        logical.compute.wait(use.last)
        return perf_counter() - begin, self.times(stamps)

    def _need_queries(self, count: int) -> None:
        """Room for so many times."""
        if count > getattr(self, "_room", 0):
            self._room = max(count, 64)
            self._queries = self._new("QueryPool", vk.QueryPoolCreateInfo(
                queryType=TIMESTAMP, queryCount=self._room))


class Made(CommandWriter):
    """The command buffers of a recording, cut by what is known of its programs; they can run any
    number of times, and write when each began and ended, where the device has a clock."""

    def __init__(self, logical: LogicalDevice, commands: Sequence[VulkanCommand],
                 sets: dict[Descriptors, int], timed: bool) -> None:
        cut = list(parts([each.launch for each in commands]))
        clock = bool(logical.compute.family.timestamp_bits)
        super().__init__(logical, commands, sets, 0, clock * sum(
            (len(part) if timed else 1) + 1 for part in cut))
        self._timed, self.submissions, self._stamps = timed, [], []
        self._clock, self.waited = clock, [0.0] * len(cut)
        """Of a device without a clock, how long each submission took when it was waited for."""
        first = 0
        for part, handle in zip(cut, logical.commands(self.pool, len(cut)) if cut else ()):
            stamps = self.write(handle, part, first, timed, SIMULTANEOUS)
            first += stamps.count
            self._stamps.append(stamps)
            self.submissions.append(Submission([handle], logical.compute, logical.transfer))

    def watched(self, run: int) -> bool:
        """Whether each submission of a run is waited for, as nothing else tells its time."""
        return not self._clock and run % WATCHED_RUNS == 0

    def took(self) -> Iterator[tuple[list[Piece], float]]:
        """How long each submission of the last run took, which has ended."""
        for stamps, waited in zip(self._stamps, self.waited):
            yield stamps.part, math.fsum(self.times(stamps)) if self._clock else waited

    def seconds(self) -> Iterator[tuple[int, float]]:
        """How long the pieces of the last run took, each with the number of its launch."""
        for stamps in self._stamps:
            for piece, took in zip(stamps.part, self.times(stamps)):
                yield piece.number, took


def destroy(logical: LogicalDevice, handles: list[tuple[str, int]]) -> None:
    """End what a recording is made of, the last first."""
    for kind, handle in reversed(handles):
        getattr(logical.functions, f"vkDestroy{kind}")(logical.handle, handle, None)
