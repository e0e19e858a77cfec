"""Structures lie in memory as the C compiler of a driver laid them out."""

from __future__ import annotations

import ctypes

import pytest

from smalti.runtime.vulkan import structures as vk

# sizeof and offsetof by a C compiler on a 64-bit system, of the header of Vulkan 1.4.
SIZES = {
    vk.PhysicalDeviceLimits: 504, vk.PhysicalDeviceProperties: 824,
    vk.PhysicalDeviceVulkan11Properties: 112, vk.PhysicalDeviceVulkan12Properties: 736,
    vk.PhysicalDeviceFeatures: 220, vk.PhysicalDeviceVulkan12Features: 208,
    vk.PhysicalDeviceShaderIntegerDotProductProperties: 136,
    vk.PhysicalDevicePCIBusInfoPropertiesEXT: 32,
    vk.CooperativeMatrixPropertiesKHR: 56, vk.PhysicalDeviceMemoryProperties: 520,
    vk.PhysicalDeviceMemoryBudgetPropertiesEXT: 272, vk.DeviceCreateInfo: 72,
    vk.WriteDescriptorSet: 64, vk.ComputePipelineCreateInfo: 96, vk.SubmitInfo: 72,
    vk.TimelineSemaphoreSubmitInfo: 48, vk.QueryPoolCreateInfo: 32,
}
OFFSETS = {
    (vk.PhysicalDeviceLimits, "maxComputeSharedMemorySize"): 216,
    (vk.PhysicalDeviceLimits, "minStorageBufferOffsetAlignment"): 328,
    (vk.PhysicalDeviceLimits, "timestampPeriod"): 424,
    (vk.PhysicalDeviceVulkan11Properties, "maxMemoryAllocationSize"): 104,
    (vk.ComputePipelineCreateInfo, "layout"): 72,
}


@pytest.mark.parametrize("record", SIZES, ids=lambda record: record.__name__)
def test_a_structure_is_as_large_as_in_c(record: type) -> None:
    assert ctypes.sizeof(record) == SIZES[record]


@pytest.mark.parametrize("record,member", OFFSETS, ids=str)
def test_a_member_is_where_it_is_in_c(record: type, member: str) -> None:
    assert getattr(record, member).offset == OFFSETS[record, member]


def test_a_chained_structure_tells_its_type_and_keeps_what_it_points_to() -> None:
    kind = vk.SemaphoreTypeCreateInfo(semaphoreType=1)
    info = vk.SemaphoreCreateInfo(pNext=kind)
    assert (info.sType, kind.sType) == (9, 1000207002)
    assert info.pNext == ctypes.addressof(kind) and kind in info.kept


def test_a_chain_leads_through_all_its_records() -> None:
    records = [vk.PhysicalDeviceFeatures2(), vk.PhysicalDeviceVulkan11Features(),
               vk.PhysicalDeviceVulkan12Features()]
    first = vk.chain(*records)
    assert first is records[0]
    assert [each.pNext for each in records] == [
        ctypes.addressof(records[1]), ctypes.addressof(records[2]), None]


def test_a_structure_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="^BufferCpoy is no structure"):
        vk.BufferCpoy()
