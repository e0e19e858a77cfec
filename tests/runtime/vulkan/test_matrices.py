"""What matrix units compute is asked when a device is used, of a driver that may not survive it."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import pytest
from vulkan_layer import Layer

from smalti.runtime.gpu import child
from smalti.runtime.gpu.quirks import AMD_PROPRIETARY, NVIDIA_PROPRIETARY
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, matrices
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.matrices import listed_with_matrices, with_matrices
from smalti.schedule.group import MatrixShape

HALF = MatrixShape(16, 16, 16, "f16", "f32")
ASK = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of drivers."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def tell(_: object, device: int, count: int, found: int) -> int:
    """A driver with one product."""
    ctypes.cast(count, ctypes.POINTER(ctypes.c_uint32))[0] = 1
    if found:
        each = ctypes.cast(found, ctypes.POINTER(vk.CooperativeMatrixPropertiesKHR))[0]
        each.MSize = each.NSize = each.KSize = 16
        each.AType = each.BType = 0
        each.CType = each.ResultType = 1
        each.scope = 3
    return 0


def of(adapter: VulkanAdapter, driver: int) -> VulkanAdapter:
    """The adapter as if it had this driver, with a matrix unit."""
    return replace(adapter, offers_matrices=True, facts=replace(adapter.facts, driver=driver))


def test_listing_devices_asks_no_driver_for_matrices(adapter: VulkanAdapter) -> None:
    layer = Layer(**{ASK: tell})
    listed_with_matrices(of(layer.adapter(), NVIDIA_PROPRIETARY))
    assert layer.calls == []


def test_a_driver_that_is_known_to_survive_is_asked_here_and_once(adapter: VulkanAdapter) -> None:
    layer = Layer(**{ASK: tell})
    found = of(layer.adapter(), NVIDIA_PROPRIETARY)
    assert with_matrices(found).limits.matrices == (HALF,)
    assert with_matrices(found).limits.matrices == (HALF,)
    assert listed_with_matrices(found).limits.matrices == (HALF,)
    assert layer.calls == [ASK, ASK]  # for a count, and for the shapes


@pytest.mark.parametrize("question, why", [
    ("crash", "its process ended with"), ("hang", "gave no answer within 1 s")])
def test_a_driver_that_does_not_survive_loses_its_matrix_unit_only(
        adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch, question: str, why: str) -> None:
    monkeypatch.setattr(matrices, "HOME", "answering")
    monkeypatch.setattr(matrices, "QUESTION_SECONDS", 1 if question == "hang" else 60)
    found = with_matrices(replace(of(adapter, AMD_PROPRIETARY), identity=question))
    assert found.limits.matrices == () and why in found.removals[-1].why
    monkeypatch.setattr(child, "asked", lambda *_: pytest.fail("it is asked once"))
    assert with_matrices(replace(of(adapter, AMD_PROPRIETARY), identity=question)) == found


def test_the_process_answers_for_the_device_that_is_meant(
        adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "told", lambda found: (HALF,) if found == adapter else ())
    assert json.loads(matrices.answered(adapter.identity)) == [[16, 16, 16, "f16", "f32"]]


def test_a_driver_without_the_function_has_no_matrices(adapter: VulkanAdapter) -> None:
    found = with_matrices(of(Layer(**{ASK: None}).adapter(), NVIDIA_PROPRIETARY))
    assert found.limits.matrices == ()
    assert f"no function {ASK}" in found.removals[-1].why


def test_a_device_whose_driver_lacks_a_function_is_listed_as_unusable(
        adapter: VulkanAdapter) -> None:
    found = Layer(vkGetPhysicalDeviceFeatures2=None).adapter()
    assert "no function vkGetPhysicalDeviceFeatures2" in found.unusable


def test_a_device_behind_a_layer_opens(adapter: VulkanAdapter) -> None:
    with VulkanGpu(Layer().adapter()) as gpu:
        assert gpu.device.name == adapter.name
