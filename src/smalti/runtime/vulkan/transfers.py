"""Data on their way between main memory and buffers that the CPU does not see.

They pass through chunks of memory that both see, several in flight: while the device copies one,
the CPU fills or empties the next. What is written is collected until a chunk is full, or until
something depends on it.
"""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np

from smalti.runtime.gpu.interface import DeviceBuffer
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.hazards import Hazards
from smalti.runtime.vulkan.logical import (
    COPIED,
    HOST_STAGE,
    RESETTABLE,
    SEEN_COPIES,
    TRANSFER_STAGE,
    LogicalDevice,
    Submission,
)
from smalti.runtime.vulkan.memory import DeviceMemory, VulkanBuffer

CHUNK_BYTES = 8 << 20
CHUNKS = 3
UNCACHED_BYTES_MAX = 64 << 10
"""Read by the CPU where it has no cache, at some 0.1 GB/s; the device copies more than that to
where it has one."""


class StagingChunk:
    """Memory that CPU and device see, and the commands that copy out of it or into it."""

    def __init__(self, logical: LogicalDevice, memory: DeviceMemory, kind: str) -> None:
        functions, device = logical.functions, logical.handle
        self.buffer = memory.buffer(CHUNK_BYTES, kind)
        pool = functions.made("vkCreateCommandPool", device, vk.CommandPoolCreateInfo(
            flags=RESETTABLE, queueFamilyIndex=logical.transfer.family.index))
        logical.own(lambda: functions.vkDestroyCommandPool(device, pool, None))
        self.commands, = logical.commands(pool, 1)
        self.submission = Submission([self.commands], logical.transfer, logical.compute)
        self.filled = 0
        self.number = 0
        """Of the last submission, which must have run before the chunk is used again."""
        self.hazards = Hazards()

    @property
    def address(self) -> int:
        """Where the next bytes are put."""
        return self.buffer.address + self.filled


class Transfers:
    """Writing and reading of buffers, in order with all else that is submitted."""

    def __init__(self, logical: LogicalDevice, memory: DeviceMemory) -> None:
        self._logical, self._memory = logical, memory
        self._chunks: dict[str, deque[StagingChunk]] = {"upload": deque(), "download": deque()}
        self._open: StagingChunk | None = None
        self._after = 0  # the submission of programs that the open chunk's copies wait for

    def write(self, buffer: DeviceBuffer, offset: int, data: memoryview | np.ndarray) -> None:
        """Put `data` into `buffer` at `offset`."""
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer = self._memory.checked(buffer, offset, source.nbytes)
        if buffer.address:
            self._settle(buffer)
            ctypes.memmove(buffer.address + offset, source.ctypes.data, source.nbytes)
            return
        done = 0
        while done < source.nbytes:
            with self._logical.lock:
                busy = self._busy()
                if not busy:
                    chunk = self._opened()
                    size = min(source.nbytes - done, CHUNK_BYTES - chunk.filled)
                    ctypes.memmove(chunk.address, source.ctypes.data + done, size)
                    self._upload(chunk, buffer, offset + done, size)
                    done += size
            self._logical.transfer.wait(busy)  # others may submit meanwhile

    def read(self, buffer: DeviceBuffer, offset: int, bytes: int) -> np.ndarray:
        """A copy of `bytes` of `buffer` from `offset` on, as u8."""
        buffer = self._memory.checked(buffer, offset, bytes)
        found = np.empty(bytes, np.uint8)
        if buffer.address and (buffer.cached or bytes <= UNCACHED_BYTES_MAX):
            self._settle(buffer)
            ctypes.memmove(found.ctypes.data, buffer.address + offset, bytes)
            return found
        logical = self._logical
        with logical.lock:
            self.flush()
            after = buffer.last_use()
        logical.compute.wait(after)  # others may submit meanwhile
        with logical.lock:
            pending: deque[tuple[StagingChunk, int, int]] = deque()
            for begin in range(0, bytes, CHUNK_BYTES):
                if len(pending) == CHUNKS:
                    self._receive(found, *pending.popleft())
                size = min(CHUNK_BYTES, bytes - begin)
                pending.append((self._download(buffer, offset + begin, size, after), begin, size))
            while pending:
                self._receive(found, *pending.popleft())
        return found

    def flush(self) -> None:
        """Submit what was written. The lock of the device must be held."""
        if self._open is not None:
            self._submit(self._open, self._after)
            self._open, self._after, self._logical.transfer.collecting = None, 0, False

    # ------------------------------------------------------------------ parts

    def _settle(self, buffer: VulkanBuffer) -> None:
        """Wait until nothing that was submitted uses `buffer`, nor recordings' copies of it."""
        logical = self._logical
        logical.check()
        with logical.lock:
            self.flush()
        logical.compute.wait(buffer.last_use())
        logical.transfer.wait(logical.transfer.value)

    def _next(self, kind: str) -> StagingChunk:
        """The chunk that was used longest ago, its commands begun anew."""
        chunks, logical = self._chunks[kind], self._logical
        if len(chunks) < CHUNKS:
            chunks.append(StagingChunk(logical, self._memory, kind))
            chunks.rotate(1)
        chunk = chunks.popleft()
        chunks.append(chunk)
        logical.transfer.wait(chunk.number)
        chunk.filled, chunk.hazards = 0, Hazards()
        logical.functions.vkBeginCommandBuffer(chunk.commands, vk.CommandBufferBeginInfo())
        logical.barrier(chunk.commands, COPIED, TRANSFER_STAGE, TRANSFER_STAGE)
        return chunk

    def _busy(self) -> int:
        """The submission that must have run before there is a chunk to fill; 0 where there is."""
        self._logical.check()
        if self._open is not None and self._open.filled == CHUNK_BYTES:
            self.flush()
        chunks = self._chunks["upload"]
        if self._open is not None or len(chunks) < CHUNKS:
            return 0
        return chunks[0].number if self._logical.transfer.done() < chunks[0].number else 0

    def _opened(self) -> StagingChunk:
        """The chunk that is being filled."""
        if self._open is None:
            self._open = self._next("upload")
            self._logical.transfer.collecting = True
        return self._open

    def _upload(self, chunk: StagingChunk, buffer: VulkanBuffer, offset: int, size: int) -> None:
        if chunk.hazards.add([], [(buffer.handle, offset, offset + size)]):
            self._logical.barrier(chunk.commands, COPIED, TRANSFER_STAGE, TRANSFER_STAGE)
        self._logical.functions.vkCmdCopyBuffer(
            chunk.commands, chunk.buffer.handle, buffer.handle, 1,
            vk.BufferCopy(srcOffset=chunk.filled, dstOffset=offset, size=size))
        chunk.filled += size
        self._after = max(self._after, buffer.last_use())

    def _download(self, buffer: VulkanBuffer, offset: int, size: int, after: int) -> StagingChunk:
        self._logical.check()
        chunk = self._next("download")
        self._logical.functions.vkCmdCopyBuffer(
            chunk.commands, buffer.handle, chunk.buffer.handle, 1,
            vk.BufferCopy(srcOffset=offset, size=size))
        self._logical.barrier(chunk.commands, SEEN_COPIES, TRANSFER_STAGE, HOST_STAGE)
        self._submit(chunk, after)
        return chunk

    def _submit(self, chunk: StagingChunk, after: int) -> None:
        self._logical.functions.vkEndCommandBuffer(chunk.commands)
        chunk.number = self._logical.transfer.submit(chunk.submission, after)

    def _receive(self, found: np.ndarray, chunk: StagingChunk, begin: int, size: int) -> None:
        self._logical.transfer.wait(chunk.number)
        ctypes.memmove(found.ctypes.data + begin, chunk.buffer.address, size)
