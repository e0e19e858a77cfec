"""Buffers are cut from blocks, do not overlap, and give their memory back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vulkan_layer import Layer

from smalti.errors import DeviceMemoryError, InputError
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import BUDGET
from smalti.runtime.vulkan.memory import BLOCK_BYTES, MemoryBlock


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 16, 64])), max_size=30),
       st.data())
def test_what_is_taken_of_a_block_never_overlaps(sizes: list, data: st.DataObject) -> None:
    block, held = MemoryBlock(0, 0, 0, 400, 0, True, [(0, 400)]), {}
    for number, (size, alignment) in enumerate(sizes):
        offset = block.take(size, alignment)
        if offset is not None:
            assert offset % alignment == 0 and 0 <= offset and offset + size <= 400
            assert all(offset + size <= o or o + s <= offset for o, s in held.values())
            held[number] = offset, size
        if held and data.draw(st.booleans()):
            block.give(*held.pop(data.draw(st.sampled_from(sorted(held)))))
        free = 400 - sum(size for _, size in held.values())
        assert sum(size for _, size in block.gaps) == free
    for taken in held.values():
        block.give(*taken)
    assert block.empty


@pytest.fixture
def small(adapter: VulkanAdapter) -> Iterator[VulkanGpu]:
    """A device with 8 blocks of memory, whose driver does not tell how much of it others use."""
    with VulkanGpu(replace(adapter, extensions=adapter.extensions - {BUDGET})) as gpu:
        gpu._memory.heaps = [(8 * BLOCK_BYTES, flags) for _, flags in gpu._memory.heaps]
        yield gpu


def test_small_buffers_share_a_block(small: VulkanGpu) -> None:
    before = small.free_bytes()
    kept = [small.buffer(1000) for _ in range(100)]
    assert before - small.free_bytes() == BLOCK_BYTES and len(kept) == 100


def test_memory_comes_back_when_nobody_holds_a_buffer(small: VulkanGpu) -> None:
    before = small.free_bytes()
    large = small.buffer(BLOCK_BYTES)
    assert small.free_bytes() == before - BLOCK_BYTES
    del large
    small.wait()
    assert small.free_bytes() == before


def test_too_much_is_refused_in_words_and_the_device_goes_on(vulkan: Gpu) -> None:
    with pytest.raises(DeviceMemoryError, match="1,125,899,906,842,624 bytes of memory were asked"):
        vulkan.buffer(1 << 50)
    buffer = vulkan.buffer(64)
    vulkan.write(buffer, 0, np.arange(16, dtype=np.float32))
    assert vulkan.read(buffer, 4, 4).view(np.float32) == 1


def test_what_is_more_than_free_is_refused_and_says_so(small: VulkanGpu) -> None:
    held = [small.buffer(2 * BLOCK_BYTES) for _ in range(3)]
    with pytest.raises(DeviceMemoryError, match=f"but {2 * BLOCK_BYTES:,} are free"):
        small.buffer(3 * BLOCK_BYTES)
    held.pop()
    assert small.buffer(3 * BLOCK_BYTES).bytes == 3 * BLOCK_BYTES


@pytest.mark.parametrize("budget", [True, False])
def test_what_the_host_holds_for_a_device_is_a_share_of_what_it_may(
        adapter: VulkanAdapter, budget: bool) -> None:
    def tell(real: Callable, device: int, found: int) -> None:
        """A budget of 400 MiB of each heap, of which 100 MiB are in use."""
        real(device, found)
        told = vk.PhysicalDeviceMemoryProperties2.from_address(found)
        if told.pNext:
            each = vk.PhysicalDeviceMemoryBudgetPropertiesEXT.from_address(told.pNext)
            each.heapBudget[0], each.heapUsage[0] = 400 << 20, 100 << 20

    found = Layer(vkGetPhysicalDeviceMemoryProperties2=tell).adapter()
    extensions = adapter.extensions - {BUDGET} | ({BUDGET} if budget else set())
    with VulkanGpu(found) as gpu:
        gpu._logical.adapter = replace(found, extensions=frozenset(extensions))
        memory = gpu._memory
        whole = 300 << 20 if budget else memory.heaps[0][0]
        assert memory.free_bytes("host") == whole  # lavapipe's only heap is the device's own
        memory.heaps[0] = memory.heaps[0][0], 0
        assert memory.free_bytes("host") == (200 << 20 if budget else int(0.75 * whole))


def test_a_full_device_still_has_room_in_its_blocks(small: VulkanGpu) -> None:
    held = [small.buffer(BLOCK_BYTES // 2) for _ in range(16)]
    assert small.free_bytes() == 0
    with pytest.raises(DeviceMemoryError, match="but 0 are free"):
        small.buffer(1)
    held.pop()
    assert small.buffer(1).bytes == 1


@pytest.mark.parametrize("bytes,kind", [(-1, "device"), (4, "shared")])
def test_a_buffer_that_cannot_be_is_an_input_error(vulkan: Gpu, bytes: int, kind: str) -> None:
    with pytest.raises(InputError):
        vulkan.buffer(bytes, kind=kind)


def test_a_buffer_that_was_closed_is_of_no_use(vulkan: Gpu) -> None:
    buffer = vulkan.buffer(64)
    buffer.close()
    buffer.close()
    with pytest.raises(InputError, match="was closed"):
        vulkan.read(buffer, 0, 4)
