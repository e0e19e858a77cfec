"""Memory of a device: few large blocks from the driver, cut into buffers."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterator
from dataclasses import field

from smalti.dataclass import dataclass
from smalti.errors import DeviceMemoryError, InputError
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.vulkan import adapter as adapters
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.logical import LogicalDevice

BLOCK_BYTES = 64 << 20
"""Taken from the driver at a time. What needs more than half of it has a block of its own."""
HOST_SHARE = 0.75
"""Of what the driver allows in main memory, what is held for the device."""
GRANULE = 16
"""Sizes of buffers are multiples of it: the widest that an invocation loads at once."""
DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
USUAL = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT | HOST_CACHED
"""What types of memory may be; others are protected, lazy, or need features that nobody wants."""
MAPPED = HOST_VISIBLE | HOST_COHERENT
COPY_FROM, COPY_TO, STORAGE = 0x01, 0x02, 0x20  # of VkBufferUsageFlagBits
EXCLUSIVE, CONCURRENT = 0, 1  # of VkSharingMode
WHOLE = 2**64 - 1  # VK_WHOLE_SIZE: up to the end of the memory
KINDS = ("device", "host", "upload", "download")


@dataclass
class MemoryBlock:
    """Memory of the driver: `gaps` (offset, bytes) of it are free, in order, none beside another.

    `address` is where the CPU sees it, 0 where it does not; a `shared` one is for many buffers.
    """

    handle: int
    token: int
    kind: int
    bytes: int
    address: int
    shared: bool
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int, alignment: int) -> int | None:
        """The offset of `size` bytes, free until now; None where no gap is large enough."""
        for index, (offset, free) in enumerate(self.gaps):
            begin = -(-offset // alignment) * alignment
            end = begin + size
            if end <= offset + free:
                parts = [(offset, begin - offset), (end, offset + free - end)]
                self.gaps[index:index + 1] = [part for part in parts if part[1]]
                return begin
        return None

    def give(self, offset: int, size: int) -> None:
        """Make bytes free again."""
        index = bisect.bisect(self.gaps, (offset, 0))
        if index < len(self.gaps) and offset + size == self.gaps[index][0]:
            size += self.gaps.pop(index)[1]
        if index and sum(self.gaps[index - 1]) == offset:
            index -= 1
            before = self.gaps.pop(index)
            offset, size = before[0], before[1] + size
        self.gaps.insert(index, (offset, size))

    @property
    def empty(self) -> bool:
        """Whether nothing of it is in use."""
        return self.gaps == [(0, self.bytes)]


@dataclass(slots=True, eq=False)
class Use:
    """What a recording tells the buffers that it uses: the `last` submission that did, and whether
    it is `over` (the recording is gone) or `broken` (a buffer is gone)."""

    last: int = 0
    over: bool = False
    broken: bool = False


class VulkanBuffer(gpu.DeviceBuffer):
    """A storage buffer. `address` is where the CPU sees it, 0 where it does not; it reads there as
    fast as anywhere where that is `cached`."""

    def __init__(self, memory: DeviceMemory, bytes: int, handle: int, token: int,
                 address: int, cached: bool) -> None:
        self.bytes, self.handle, self.address, self.cached = bytes, handle, address, cached
        self._memory, self._token = memory, token
        self._uses: list[Use] = []

    def used_by(self, use: Use) -> None:
        """Take in another use; of those that are over, the last is enough."""
        over = max((each for each in self._uses if each.over), key=lambda each: each.last,
                   default=None)
        self._uses = [*(each for each in self._uses if not each.over or each is over), use]

    def last_use(self) -> int:
        """The last submission of a recording that uses it."""
        return max((use.last for use in self._uses), default=0)

    def of(self, memory: DeviceMemory) -> bool:
        """True if it is a part of `memory`, and not closed."""
        return self._memory is memory and self._token >= 0

    def close(self) -> None:
        token, self._token = self._token, -1
        if token >= 0:
            for use in self._uses:
                use.broken = True
            self._memory.logical.give_back(token)

    def __del__(self) -> None:
        if hasattr(self, "_uses"):
            self.close()


class DeviceMemory:
    """All memory of a device that is open."""

    def __init__(self, logical: LogicalDevice) -> None:
        self.logical = logical
        found = adapters.memory(logical.adapter.instance.functions, logical.adapter.handle)
        table = found.memoryProperties
        self.types = [(each.propertyFlags, each.heapIndex)
                      for each in table.memoryTypes[:table.memoryTypeCount]]
        self.heaps = [(each.size, each.flags)
                      for each in table.memoryHeaps[:table.memoryHeapCount]]
        self._blocks: list[MemoryBlock] = []

    def buffer(self, bytes: int, kind: str = "device") -> VulkanBuffer:
        """A buffer; kinds "upload" and "download" are for the CPU to write and to read.

        Raises DeviceMemoryError where the device has not so much.
        """
        if kind not in KINDS:
            raise InputError(f"no kind of buffer is called {kind!r}; known: {', '.join(KINDS)}")
        if bytes < 0:
            raise InputError(f"a buffer of {bytes} bytes was asked for")
        logical, size = self.logical, max(-(-bytes // GRANULE), 1) * GRANULE
        logical.check()
        limit = logical.adapter.limits.buffer_bytes
        if size > limit:
            raise DeviceMemoryError(self._refused(bytes, f"one buffer has {limit:,} at most"))
        functions, device = logical.functions, logical.handle
        families = (ctypes.c_uint32 * len(logical.families))(*logical.families)
        with logical.lock:
            handle = functions.made("vkCreateBuffer", device, vk.BufferCreateInfo(
                size=size, usage=STORAGE | COPY_FROM | COPY_TO,
                sharingMode=CONCURRENT if len(families) > 1 else EXCLUSIVE,
                queueFamilyIndexCount=len(families), pQueueFamilyIndices=families))
            try:
                block, offset, size = self._place(handle, kind, bytes)
                functions.vkBindBufferMemory(device, handle, block.handle, offset)
            except DeviceMemoryError:
                functions.vkDestroyBuffer(device, handle, None)
                raise

            def destroy() -> None:
                functions.vkDestroyBuffer(device, handle, None)
                self._free(block, offset, size)

            seen = block.address and (kind != "device" or logical.adapter.limits.unified)
            return VulkanBuffer(self, bytes, handle, logical.own(destroy),
                                block.address + offset if seen else 0,
                                bool(self.types[block.kind][0] & HOST_CACHED))

    def checked(self, buffer: gpu.DeviceBuffer, offset: int, bytes: int) -> VulkanBuffer:
        """`buffer`, as Vulkan knows it. Raises InputError unless it is open, of this device, and
        has `bytes` at `offset`."""
        if not isinstance(buffer, VulkanBuffer) or not buffer.of(self):
            raise InputError("the buffer was closed, or is of another device")
        if offset < 0 or bytes < 0 or offset + bytes > buffer.bytes:
            raise InputError(f"{bytes} bytes at {offset} do not lie in a buffer of {buffer.bytes}")
        return buffer

    def free_bytes(self, kind: str = "device") -> int:
        """What the driver says is free of the heaps that serve `kind`; of those for which it says
        nothing, what is not in use here."""
        heaps = {self.types[index][1] for index in self._candidates(2**32 - 1, kind)}
        return sum(self._free_of(heap) for heap in heaps)

    # ------------------------------------------------------------------ placing

    def _place(self, buffer: int, kind: str, asked: int) -> tuple[MemoryBlock, int, int]:
        """A block, an offset in it and the bytes there, for a VkBuffer."""
        needs = vk.MemoryRequirements()
        self.logical.functions.vkGetBufferMemoryRequirements(self.logical.handle, buffer, needs)
        self.logical.reap()
        candidates = self._candidates(needs.memoryTypeBits, kind)
        for attempt in ("at once", "once all has run"):
            for index in candidates:
                for block in self._usable(index, needs.size):
                    offset = block.take(needs.size, needs.alignment)
                    if offset is not None:
                        return block, offset, needs.size
            if attempt == "at once":
                self.logical.wait()  # gives back what is used no more
        raise DeviceMemoryError(self._refused(asked, f"{self.free_bytes(kind):,} are free"))

    def _usable(self, kind: int, size: int) -> Iterator[MemoryBlock]:
        """Blocks of a type of memory in which `size` bytes may find room; new ones at last."""
        shared = size <= BLOCK_BYTES // 2
        if shared:
            yield from [block for block in self._blocks
                        if block.kind == kind and block.shared]
        for bytes in (BLOCK_BYTES, size) if shared else (size,):
            block = self._block(kind, bytes, bytes != size)
            if block is not None:
                yield block

    def _block(self, kind: int, bytes: int, shared: bool) -> MemoryBlock | None:
        """A new block, or None where the heap or the driver has no room for it."""
        logical, (flags, heap) = self.logical, self.types[kind]
        if bytes > self._free_of(heap) or len(self._blocks) >= logical.adapter.allocations:
            return None
        functions, device = logical.functions, logical.handle
        try:
            handle = functions.made("vkAllocateMemory", device, vk.MemoryAllocateInfo(
                allocationSize=bytes, memoryTypeIndex=kind))
        except DeviceMemoryError:
            return None
        token = logical.own(lambda: functions.vkFreeMemory(device, handle, None))
        address = vk.word()
        if flags & MAPPED == MAPPED:
            functions.vkMapMemory(device, handle, 0, WHOLE, 0, address)
        block = MemoryBlock(handle, token, kind, bytes, address[0], shared, [(0, bytes)])
        self._blocks.append(block)
        return block

    def _free(self, block: MemoryBlock, offset: int, size: int) -> None:
        """Make bytes of a block free; an empty block goes back to the driver, unless it is the only
        one of its type and may soon be wanted again."""
        block.give(offset, size)
        alike = [other for other in self._blocks if other.kind == block.kind
                 and other.shared and other is not block]
        if block.empty and (alike or not block.shared):
            self._blocks.remove(block)
            self.logical.give_back(block.token)

    # ------------------------------------------------------------------ types and heaps

    def _candidates(self, bits: int, kind: str) -> list[int]:
        """Types of memory that serve `kind`, the best first."""
        unified = self.logical.adapter.limits.unified
        remote = 0 if unified else DEVICE_LOCAL
        needed, liked, disliked = {
            "device": (remote, DEVICE_LOCAL | MAPPED, 0) if unified else (remote, 0, HOST_VISIBLE),
            "host": (MAPPED, 0, remote),
            "upload": (MAPPED, 0, remote | HOST_CACHED),
            "download": (MAPPED, HOST_CACHED, remote),
        }[kind]
        found = [index for index, (flags, _) in enumerate(self.types)
                 if bits >> index & 1 and flags & needed == needed and not flags & ~USUAL]

        def rank(index: int) -> tuple[int, int]:
            flags = self.types[index][0]
            return -(flags & liked).bit_count(), (flags & disliked).bit_count()

        return sorted(found, key=rank)

    def _free_of(self, heap: int) -> int:
        """Bytes of a heap that may still be taken: of main memory a share only, as a driver that
        has to hold more there than it may resets the device (sd.cpp #2015)."""
        logical, size = self.logical, self.heaps[heap][0]
        share = 1.0 if self.heaps[heap][1] & DEVICE_LOCAL else HOST_SHARE
        if adapters.BUDGET in logical.adapter.extensions:
            told = vk.PhysicalDeviceMemoryBudgetPropertiesEXT()
            adapters.memory(logical.adapter.instance.functions, logical.adapter.handle, told)
            if told.heapBudget[heap]:
                return max(int(share * told.heapBudget[heap]) - told.heapUsage[heap], 0)
        own = sum(block.bytes for block in self._blocks if self.types[block.kind][1] == heap)
        return max(int(share * size) - own, 0)

    def _refused(self, asked: int, why: str) -> str:
        return (f"{asked:,} bytes of memory were asked of {self.logical.adapter.name}, but {why}; "
                "a smaller picture or batch, or a smaller precision, needs less, and programs "
                "that use the same device may hold some")
