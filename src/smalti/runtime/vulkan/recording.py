"""Launches as command buffers that are submitted again and again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from smalti.errors import DeviceError, InputError
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.hazards import Hazards, Range
from smalti.runtime.vulkan.logical import (
    COMPUTE_STAGE as COMPUTED,
)
from smalti.runtime.vulkan.logical import (
    HOST_STAGE,
    SEEN,
    SHADED,
    SIMULTANEOUS,
    WORK,
    WRITTEN,
    LogicalDevice,
    Submission,
)
from smalti.runtime.vulkan.memory import DeviceMemory, Use, VulkanBuffer
from smalti.runtime.vulkan.pipelines import COMPUTE_STAGE, STORAGE_BUFFER, VulkanPipeline

WORD_BYTES = 4
SUBMISSION_SECONDS = 0.2
"""Of a submission by prediction, a tenth of what the watchdog of Windows allows."""
SUBMISSION_LAUNCHES = 128
"""Of a submission at most, for launches of which nobody knows how long they take: 15 ms each would
be within the time that Windows allows."""
COMPUTE_POINT = 1
TIMESTAMP, BOTTOM_OF_PIPE = 2, 0x2000
RESULT_64, RESULT_WAIT = 1, 2

Descriptors = tuple[int, tuple[tuple[int, int, int], ...]]
"""The layout of a set, and a buffer, offset and range for each of its bindings."""


@dataclass(slots=True)
class VulkanCommand:
    """A launch as it is recorded: the buffers that it uses, its pipeline (None for a copy), its set
    of descriptors and its push constants."""

    launch: gpu.Launch
    buffers: list[VulkanBuffer]
    pipeline: VulkanPipeline | None
    descriptors: Descriptors | None
    constants: ctypes.Array | None
    reads: list[Range]
    writes: list[Range]


def command(launch: gpu.Launch, memory: DeviceMemory) -> VulkanCommand:
    """How `launch` is recorded.

    Raises InputError when its operands are not what its pipeline binds, DeviceError when one is
    larger than the device can bind.
    """
    if isinstance(launch, gpu.Copy):
        size = launch.bytes
        source = memory.checked(launch.source, launch.source_offset, size)
        target = memory.checked(launch.target, launch.target_offset, size)
        return VulkanCommand(
            launch, [source, target], None, None, None,
            [(source.handle, launch.source_offset, launch.source_offset + size)],
            [(target.handle, launch.target_offset, launch.target_offset + size)])
    pipeline, limits = launch.pipeline, memory.logical.adapter.limits
    if not isinstance(pipeline, VulkanPipeline) or pipeline.logical is not memory.logical:
        raise InputError(f"{pipeline.name}: the pipeline is of another device")
    if len(launch.operands) != len(pipeline.bindings):
        raise InputError(f"{pipeline.name}: {len(launch.operands)} operands for "
                         f"{len(pipeline.bindings)} bindings")
    constants = (ctypes.c_uint32 * max(len(launch.operands), 1))()
    made = VulkanCommand(launch, [], pipeline, None, constants, [], [])
    bound = []
    for number, ((operand, offset), binding) in enumerate(zip(launch.operands, pipeline.bindings)):
        buffer = memory.checked(operand, offset, binding.bytes)
        made.buffers.append(buffer)
        rest = offset % limits.offset_alignment
        if rest % binding.item_bytes:
            raise InputError(f"{pipeline.name}: operand {number} begins at byte {offset}, which "
                             f"is no multiple of {binding.item_bytes}")
        if rest + binding.bytes > limits.buffer_range:
            raise DeviceError(f"{pipeline.name}: operand {number} has {binding.bytes:,} bytes; "
                              f"a binding sees {limits.buffer_range:,} at most")
        seen = -(-(rest + binding.bytes) // WORD_BYTES) * WORD_BYTES  # bytes are read in words
        bound.append((buffer.handle, offset - rest, max(seen, WORD_BYTES)))
        constants[number] = rest // binding.item_bytes
        touched = (buffer.handle, offset, offset + binding.bytes)
        if binding.reads:
            made.reads.append(touched)
        if binding.writes:
            made.writes.append(touched)
    made.descriptors = pipeline.sets, tuple(bound)
    return made


def parts(commands: Sequence[VulkanCommand]) -> Iterator[list[VulkanCommand]]:
    """`commands` in submissions that no watchdog minds."""
    part: list[VulkanCommand] = []
    seconds = 0.0
    for each in commands:
        more = each.launch.seconds if isinstance(each.launch, gpu.Dispatch) else 0.0
        if part and (seconds + more > SUBMISSION_SECONDS or len(part) == SUBMISSION_LAUNCHES):
            yield part
            part, seconds = [], 0.0
        part.append(each)
        seconds += more
    yield part


class VulkanRecording(gpu.Recording):
    """Command buffers, one a submission; `use` tells when they ran last."""

    def __init__(self, memory: DeviceMemory, launches: Sequence[gpu.Launch], timed: bool) -> None:
        logical = memory.logical
        commands = [command(launch, memory) for launch in launches]
        self.launches, self.use, self._logical = tuple(launches), Use(), logical
        self._handles: list[tuple[str, int]] = []
        self._token = logical.own(partial(destroy, logical, self._handles))
        self._queries = 0
        cut = list(parts(commands))
        if timed:
            self._queries = self._query_pool(len(commands) + len(cut))
        sets = self._sets(commands)
        pool = self._made("CommandPool", vk.CommandPoolCreateInfo(
            queueFamilyIndex=logical.compute.family.index))
        self.submissions = []
        self._stamps_of: list[int] = []
        """For each launch the number of the time stamp after it; that before it is one less."""
        for part, handle in zip(cut, logical.commands(pool, len(cut))):
            self._record(handle, part, sets)
            self.submissions.append(Submission([handle], logical.compute, logical.transfer))
        for buffer in {buffer for each in commands for buffer in each.buffers}:
            buffer.used_by(self.use)

    def seconds(self) -> tuple[float, ...]:
        logical = self._logical
        logical.check()
        if not self._queries or not self.use.last:
            raise DeviceError("no times of launches: record with timed=True, and run")
        logical.compute.wait(self.use.last)
        count = len(self.launches) + len(self.submissions)
        stamps = (ctypes.c_uint64 * count)()
        logical.functions.vkGetQueryPoolResults(
            logical.handle, self._queries, 0, count, ctypes.sizeof(stamps), stamps, 8,
            RESULT_64 | RESULT_WAIT)
        mask = (1 << logical.compute.family.timestamp_bits) - 1
        return tuple((stamps[after] - stamps[after - 1] & mask) * logical.adapter.timestamp_seconds
                     for after in self._stamps_of)

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
            self._logical.give_back(token)

    def __del__(self) -> None:
        if hasattr(self, "_token"):
            self.close()

    # ------------------------------------------------------------------ making

    def _made(self, kind: str, info: vk.Chained) -> int:
        handle = self._logical.functions.made(f"vkCreate{kind}", self._logical.handle, info)
        self._handles.append((kind, handle))
        return handle

    def _query_pool(self, count: int) -> int:
        if not self._logical.compute.family.timestamp_bits:
            raise DeviceError(f"{self._logical.adapter.name} does not tell the time of launches")
        return self._made("QueryPool", vk.QueryPoolCreateInfo(queryType=TIMESTAMP,
                                                              queryCount=count))

    def _sets(self, commands: Sequence[VulkanCommand]) -> dict[Descriptors, int]:
        """A set for each kind of descriptors."""
        logical = self._logical
        wanted = list(dict.fromkeys(each.descriptors for each in commands
                                    if each.descriptors and each.descriptors[1]))
        if not wanted:
            return {}
        size = vk.DescriptorPoolSize(type=STORAGE_BUFFER,
                                     descriptorCount=sum(len(bound) for _, bound in wanted))
        pool = self._made("DescriptorPool", vk.DescriptorPoolCreateInfo(
            maxSets=len(wanted), poolSizeCount=1, pPoolSizes=size))
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

    def _record(self, handle: int, part: list[VulkanCommand], sets: dict[Descriptors, int]) -> None:
        """The commands of one submission. It waits for all before it, and shows what it writes to
        all after it."""
        logical, functions = self._logical, self._logical.functions
        functions.vkBeginCommandBuffer(handle, vk.CommandBufferBeginInfo(flags=SIMULTANEOUS))
        logical.barrier(handle, WRITTEN, WORK, WORK)
        if self._queries:
            first = len(self._stamps_of) + len(self.submissions)
            functions.vkCmdResetQueryPool(handle, self._queries, first, len(part) + 1)
            functions.vkCmdWriteTimestamp(handle, BOTTOM_OF_PIPE, self._queries, first)
        hazards, current = Hazards(), 0
        copies = any(isinstance(each.launch, gpu.Copy) for each in part)
        memory, stages = (WRITTEN, WORK) if copies else (SHADED, COMPUTED)
        for number, each in enumerate(part, 1):
            if hazards.add(each.reads, each.writes) or self._queries:
                logical.barrier(handle, memory, stages, stages)
            current = self._launch(handle, each, sets, current)
            if self._queries:
                functions.vkCmdWriteTimestamp(handle, BOTTOM_OF_PIPE, self._queries,
                                              first + number)
                self._stamps_of.append(first + number)
        logical.barrier(handle, SEEN, WORK, HOST_STAGE)
        functions.vkEndCommandBuffer(handle)

    def _launch(self, handle: int, each: VulkanCommand, sets: dict[Descriptors, int],
                current: int) -> int:
        """Record one launch where pipeline `current` is bound; the pipeline bound after it."""
        functions, pipeline = self._logical.functions, each.pipeline
        if pipeline is None:
            source, target = each.reads[0], each.writes[0]
            functions.vkCmdCopyBuffer(
                handle, source[0], target[0], 1, vk.BufferCopy(
                    srcOffset=source[1], dstOffset=target[1], size=source[2] - source[1]))
            return current
        if pipeline.handle != current:
            functions.vkCmdBindPipeline(handle, COMPUTE_POINT, pipeline.handle)
        if each.descriptors in sets:
            functions.vkCmdBindDescriptorSets(handle, COMPUTE_POINT, pipeline.layout, 0, 1,
                                              vk.word(sets[each.descriptors]), 0, None)
            functions.vkCmdPushConstants(handle, pipeline.layout, COMPUTE_STAGE, 0,
                                         ctypes.sizeof(each.constants), each.constants)
        functions.vkCmdDispatch(handle, *pipeline.groups)
        return pipeline.handle


def destroy(logical: LogicalDevice, handles: list[tuple[str, int]]) -> None:
    """End what a recording is made of, the last first."""
    for kind, handle in reversed(handles):
        getattr(logical.functions, f"vkDestroy{kind}")(logical.handle, handle, None)
