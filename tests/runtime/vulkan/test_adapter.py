"""Devices as their drivers describe them."""

from __future__ import annotations

import pytest

from smalti.errors import DeviceError
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.runtime.vulkan import adapter as module
from smalti.runtime.vulkan.adapter import ORDER, adapters
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
