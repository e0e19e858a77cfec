"""Launches as a driver of Vulkan takes them."""

from __future__ import annotations

import ctypes

from smalti.dataclass import dataclass
from smalti.errors import DeviceError, InputError
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.vulkan.hazards import Range
from smalti.runtime.vulkan.memory import DeviceMemory, VulkanBuffer
from smalti.runtime.vulkan.pipelines import VulkanPipeline

WORD_BYTES = 4  # offsets and lengths of copies are whole words

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
