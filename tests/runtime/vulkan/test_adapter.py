"""Devices as their drivers describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from vulkan_layer import Layer

from smalti.errors import DeviceError
from smalti.runtime.gpu import quirks
from smalti.runtime.gpu.removals import AUTOMATIC, removal_of
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.runtime.vulkan import adapter as module
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import ORDER, adapters, judged, once
from smalti.runtime.vulkan.told import GpuPlaces
from smalti.schedule.group import GroupLimits


def test_limits_are_at_least_those_that_every_device_has(adapter: VulkanAdapter) -> None:
    limits, least = adapter.limits, GroupLimits()
    for name in ("shared_bytes", "invocations", "buffer_range", "bindings", "push_bytes"):
        assert getattr(limits, name) >= getattr(least, name), name
    assert all(count >= 65535 for count in limits.grid)
    assert limits.buffer_bytes >= limits.buffer_range
    assert 256 % limits.offset_alignment == 0
    assert 1 <= limits.subgroup_min <= limits.subgroup_max <= limits.invocations
    for size in (limits.subgroup_min, limits.subgroup_max):
        assert size & (size - 1) == 0
    assert 4 * limits.bindings <= limits.push_bytes


def test_a_device_says_who_made_it(adapter: VulkanAdapter) -> None:
    assert adapter.name and adapter.driver and adapter.vendor
    assert adapter.memory_bytes > 1 << 28 and adapter.version >= (1, 2, 0)
    assert adapter.timestamp_seconds > 0


def test_devices_with_memory_of_their_own_come_first(adapter: VulkanAdapter) -> None:
    kinds = [ORDER.index(each.kind) for each in adapters()]
    assert kinds == sorted(kinds) and adapters()[0].kind == adapter.kind


def test_where_a_device_is_too_old_the_reason_is_told(
        adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDED", (9, 9))
    old = adapters()[0]
    assert "Vulkan 1." in old.unusable
    with pytest.raises(DeviceError, match="cannot be used: its driver has Vulkan 1"):
        VulkanGpu(old)


def test_features_are_those_that_the_limits_tell(adapter: VulkanAdapter) -> None:
    assert adapter.limits.f16 == ("shaderFloat16" in adapter.features)
    assert bool(adapter.limits.matrices) <= ("cooperativeMatrix" in adapter.features)
    assert "timelineSemaphore" in adapter.features


def driven(found: VulkanAdapter, handle: int, driver: int, kind: str, **places: str
           ) -> VulkanAdapter:
    """An adapter of a GPU that is `places`, through a driver."""
    return replace(found, handle=handle, kind=kind, driver=f"driver {driver}", removals=(),
                   facts=replace(found.facts, name="GPU", driver=driver),
                   places=GpuPlaces(**places))


def test_a_gpu_under_two_drivers_is_one_that_its_better_driver_reaches(
        adapter: VulkanAdapter) -> None:
    """AMDVLK beside RADV, Dozen beside NVIDIA's own, and two cards of a kind."""
    amdvlk = driven(adapter, 1, quirks.AMD_OPEN_SOURCE, "discrete", bus="0:3:0:0", uuid="aa")
    dozen = driven(adapter, 2, quirks.DOZEN, "discrete", uuid="cc", luid="77")
    radv = driven(adapter, 3, quirks.RADV, "discrete", bus="0:3:0:0", uuid="bb")
    twin = driven(adapter, 4, quirks.RADV, "discrete", bus="0:4:0:0", uuid="bb")
    nvidia = driven(adapter, 5, quirks.NVIDIA_PROPRIETARY, "discrete", uuid="dd", luid="77")
    cpu = driven(adapter, 6, quirks.LLVMPIPE, "cpu", uuid="00")
    other_cpu = driven(adapter, 7, quirks.SWIFTSHADER, "cpu", uuid="00")
    found = once([amdvlk, dozen, radv, twin, nvidia, cpu, other_cpu])
    assert [each.handle for each in found] == [3, 4, 5, 6, 7, 1, 2]
    assert [each.better for each in found[5:]] == ["driver 3", "driver 4"]
    for each in found[5:]:
        again = judged(each)  # as after a check of the machine
        assert "reaches the same GPU" in removal_of(AUTOMATIC, again.removals).why


def told_by(change: Callable[[int], None], function: str) -> VulkanAdapter:
    """The first device, whose driver tells something else of it."""
    def tell(real: Callable, device: int, found: int) -> None:
        real(device, found)
        change(found)

    return Layer(**{function: tell}).adapter()


def structure(found: int, kind: type[vk.Chained]) -> vk.Chained:
    """The structure of a kind in a chain."""
    while found:
        each = vk.Chained.from_address(found)
        if each.sType == kind.kind:
            return kind.from_address(found)
        found = each.pNext
    raise LookupError(kind.__name__)


def test_work_groups_have_no_more_subgroups_than_the_device_runs(adapter: VulkanAdapter) -> None:
    def few(found: int) -> None:
        sizes = structure(found, vk.PhysicalDeviceSubgroupSizeControlProperties)
        sizes.maxComputeWorkgroupSubgroups, sizes.minSubgroupSize = 4, 8

    assert told_by(few, "vkGetPhysicalDeviceProperties2").limits.invocations == 32


@pytest.mark.parametrize("fast", [False, True])
def test_dot_products_are_fast_where_the_driver_says_so(adapter: VulkanAdapter, fast: bool) -> None:
    def accelerated(found: int) -> None:
        told = structure(found, vk.PhysicalDeviceShaderIntegerDotProductProperties)
        told.integerDotProduct4x8BitPackedSignedAccelerated = fast

    found = told_by(accelerated, "vkGetPhysicalDeviceProperties2")
    assert found.limits.fast_dot_i8 == (fast and adapter.limits.dot_i8)


@pytest.mark.parametrize("independence, exact", [(0, True), (1, True), (2, False)])
def test_f16_is_specified_where_f32_may_be_as_it_is(adapter: VulkanAdapter, independence: int,
                                                    exact: bool) -> None:
    def controls(found: int) -> None:
        told = structure(found, vk.PhysicalDeviceVulkan12Properties)
        told.shaderDenormPreserveFloat16 = told.shaderRoundingModeRTEFloat16 = 1
        told.denormBehaviorIndependence, told.roundingModeIndependence = 0, independence

    found = told_by(controls, "vkGetPhysicalDeviceProperties2")
    assert found.limits.exact_f16 == (exact and adapter.limits.f16)


@pytest.mark.parametrize("kind, heaps, unified", [
    (1, [1, 0], True), (2, [1, 0], False), (3, [1], True), (3, [1, 0], False), (4, [1], True)])
def test_a_device_computes_in_main_memory_where_there_is_no_other(
        adapter: VulkanAdapter, kind: int, heaps: list[int], unified: bool) -> None:
    def named(real: Callable, device: int, found: int) -> None:
        real(device, found)
        vk.PhysicalDeviceProperties.from_address(found).deviceType = kind

    def kept(real: Callable, device: int, found: int) -> None:
        real(device, found)
        table = vk.PhysicalDeviceMemoryProperties2.from_address(found).memoryProperties
        table.memoryHeapCount = len(heaps)
        for number, flags in enumerate(heaps):
            table.memoryHeaps[number].flags = flags

    found = Layer(vkGetPhysicalDeviceProperties=named,
                  vkGetPhysicalDeviceMemoryProperties2=kept).adapter()
    assert found.limits.unified == unified


def test_a_device_without_integers_of_16_has_no_bf16(adapter: VulkanAdapter) -> None:
    def without(found: int) -> None:
        structure(found, vk.PhysicalDeviceFeatures2).features.shaderInt16 = 0

    limits = told_by(without, "vkGetPhysicalDeviceFeatures2").limits
    assert not limits.int16 and not limits.bf16


def test_a_device_tells_where_it_is(adapter: VulkanAdapter) -> None:
    assert len(adapter.places.uuid) == 32
