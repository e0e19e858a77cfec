"""Which queues a device is opened with."""

from __future__ import annotations

from dataclasses import replace

from smalti.runtime.gpu.removals import TRANSFER_QUEUE, unexplained
from smalti.runtime.vulkan import VulkanAdapter
from smalti.runtime.vulkan.adapter import COMPUTE, GRAPHICS, TRANSFER, Family
from smalti.runtime.vulkan.logical import families_of_queues

ALL, COMPUTES, COPIES = (Family(number, flags, 64) for number, flags in enumerate(
    (GRAPHICS | COMPUTE | TRANSFER, COMPUTE | TRANSFER, TRANSFER)))


def test_programs_and_copies_have_queues_of_their_own(adapter: VulkanAdapter) -> None:
    several = replace(adapter, families=(ALL, COMPUTES, COPIES))
    assert families_of_queues(several) == (COMPUTES, COPIES)
    assert families_of_queues(replace(adapter, families=(ALL,))) == (ALL, ALL)


def test_a_queue_that_is_removed_is_not_used(adapter: VulkanAdapter) -> None:
    several = replace(adapter, families=(ALL, COMPUTES, COPIES),
                      removals=(unexplained(TRANSFER_QUEUE),))
    assert families_of_queues(several) == (COMPUTES, COMPUTES)
