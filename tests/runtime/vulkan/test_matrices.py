"""What matrix units compute is asked when a device is used, of a driver that may not survive it."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import pytest
from vulkan_layer import Layer

from smalti.runtime.gpu import child
from smalti.runtime.gpu.quirks import (
    AMD_OPEN_SOURCE,
    AMD_PROPRIETARY,
    BEFORE_RDNA3,
    BEFORE_XE2,
    INTEL_MESA,
    NVIDIA_PROPRIETARY,
    RADV,
    RDNA3,
    XE2,
)
from smalti.runtime.gpu.removals import reduced, unexplained
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, matrices
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import judged
from smalti.runtime.vulkan.matrices import listed_with_matrices, with_matrices
from smalti.schedule.group import GroupLimits, MatrixShape
from smalti.schedule.space_group import best_matrix

HALF = MatrixShape(16, 16, 16, "f16", "f32")
WHOLE = MatrixShape(16, 16, 32, "i8", "i32")
FLOAT16, FLOAT32, SINT8, SINT32, UINT8, UINT32 = 0, 1, 3, 5, 7, 9  # of VkComponentTypeKHR
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


def telling(*products: dict):
    """A driver with these products, of 16x16x32 bytes with a sign where they do not say otherwise.
    """
    usual = {"MSize": 16, "NSize": 16, "KSize": 32, "AType": SINT8, "BType": SINT8,
             "CType": SINT32, "ResultType": SINT32, "scope": 3}

    def tell(_: object, device: int, count: int, found: int) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint32))[0] = len(products)
        for number, each in enumerate(products if found else ()):
            record = ctypes.cast(found, ctypes.POINTER(vk.CooperativeMatrixPropertiesKHR))[number]
            for name, value in {**usual, **each}.items():
                setattr(record, name, value)
        return 0

    return tell


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


def test_products_of_bytes_are_those_with_one_sign_that_do_not_saturate(
        adapter: VulkanAdapter) -> None:
    layer = Layer(**{ASK: telling(
        {}, {"saturatingAccumulation": 1, "KSize": 16}, {"BType": UINT8, "KSize": 64},
        {"scope": 2, "MSize": 8}, {"ResultType": UINT32, "NSize": 8},
        {"AType": UINT8, "BType": UINT8, "CType": UINT32, "ResultType": UINT32})})
    found = with_matrices(of(layer.adapter(), NVIDIA_PROPRIETARY)).limits
    assert found.matrices == (WHOLE, MatrixShape(16, 16, 32, "u8", "u32"))
    assert best_matrix(found, "i8") == WHOLE and best_matrix(found, "f16") is None


def test_matrices_of_bytes_are_for_devices_that_compute_with_bytes(adapter: VulkanAdapter) -> None:
    half = {"AType": FLOAT16, "BType": FLOAT16, "CType": FLOAT32, "ResultType": FLOAT32,
            "KSize": 16}
    found = of(Layer(**{ASK: telling({}, half)}).adapter(), NVIDIA_PROPRIETARY)
    lacking = replace(found, features=found.features - {"shaderInt8"})
    assert matrices.told(found) == (HALF, WHOLE) and matrices.told(lacking) == (HALF,)


@pytest.mark.parametrize("removed, left", [
    ("matrices 16x16x32 i8 to i32", (HALF,)), ("f16", (WHOLE,)), ("matrices", ())])
def test_what_is_removed_of_matrices_of_bytes(removed: str, left: tuple) -> None:
    """By a check of the machine, or the table of known faults."""
    limits = GroupLimits(f16=True, matrices=(HALF, WHOLE))
    assert reduced(limits, [unexplained(removed)]).matrices == left


@pytest.mark.parametrize("driver, architecture, used", [
    (NVIDIA_PROPRIETARY, "", True), (RADV, RDNA3, True), (RADV, BEFORE_RDNA3, False),
    (INTEL_MESA, XE2, True), (INTEL_MESA, BEFORE_XE2, False), (AMD_OPEN_SOURCE, RDNA3, False)])
def test_who_may_use_matrices_may_use_those_of_bytes(
        adapter: VulkanAdapter, driver: int, architecture: str, used: bool) -> None:
    found = Layer(**{ASK: telling({})}).adapter()
    facts = replace(found.facts, driver=driver, architecture=architecture, version=(1,))
    found = judged(replace(found, facts=facts, version=(1, 3, 0), features=found.features | {
        "cooperativeMatrix", "vulkanMemoryModel"}))
    assert found.offers_matrices == used
    assert not used or with_matrices(found).limits.matrices == (WHOLE,)


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
