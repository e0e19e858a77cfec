"""Buffers are cut from blocks, do not overlap, and give their memory back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import DeviceMemoryError, InputError
from smalti.runtime.gpu import Gpu
from smalti.runtime.vulkan import Adapter, VulkanGpu
from smalti.runtime.vulkan.memory import BLOCK_BYTES, Block


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 16, 64])), max_size=30),
       st.data())
def test_what_is_taken_of_a_block_never_overlaps(sizes: list, data: st.DataObject) -> None:
    block, held = Block(0, 0, 0, 400, 0, True, [(0, 400)]), {}
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


def test_small_buffers_share_a_block(adapter: Adapter) -> None:
    with VulkanGpu(adapter) as gpu:
        before = gpu.free_bytes()
        kept = [gpu.buffer(1000) for _ in range(100)]
        assert before - gpu.free_bytes() <= BLOCK_BYTES and len(kept) == 100


def test_memory_comes_back_when_nobody_holds_a_buffer(adapter: Adapter) -> None:
    with VulkanGpu(adapter) as gpu:
        before = gpu.free_bytes()
        large = gpu.buffer(BLOCK_BYTES)
        assert gpu.free_bytes() <= before - BLOCK_BYTES
        del large
        gpu.wait()
        assert gpu.free_bytes() == before


def test_too_much_is_refused_in_words_and_the_device_goes_on(vulkan: Gpu) -> None:
    with pytest.raises(DeviceMemoryError, match="1,125,899,906,842,624 bytes of memory were asked"):
        vulkan.buffer(1 << 50)
    buffer = vulkan.buffer(64)
    vulkan.write(buffer, 0, np.arange(16, dtype=np.float32))
    assert vulkan.read(buffer, 4, 4).view(np.float32) == 1


def test_what_is_more_than_free_is_refused_and_says_so(adapter: Adapter) -> None:
    with VulkanGpu(adapter) as gpu:
        size = min(adapter.limits.buffer_bytes, gpu.free_bytes()) * 3 // 4
        held = []
        with pytest.raises(DeviceMemoryError, match="are free"):
            for _ in range(gpu.free_bytes() // size + 1):
                held.append(gpu.buffer(size))
        count = len(held)
        held.clear()
        assert gpu.buffer(size).bytes == size and count >= 1


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
