"""What goes wrong with the loader or in a call is said in words."""

from __future__ import annotations

from ctypes.util import find_library

import pytest

from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError
from smalti.runtime.vulkan import library


def test_without_a_loader_the_message_says_where_one_comes_from() -> None:
    with pytest.raises(DeviceError, match="no Vulkan loader .*not-there.*libvulkan1"):
        library.load(["not-there.so.1"])


def test_a_library_that_is_no_loader_is_none() -> None:
    with pytest.raises(DeviceError, match="no Vulkan loader"):
        library.load([find_library("c") or "libc.so.6"])


@pytest.mark.parametrize("result,kind", [
    (-1, DeviceMemoryError), (-2, DeviceMemoryError), (-4, DeviceLostError), (-9, DeviceError),
    (-77, DeviceError)])
def test_a_failure_is_raised_with_the_function_that_failed(result: int, kind: type) -> None:
    with pytest.raises(kind, match="^vkQueueSubmit: "):
        library.checked(result, "vkQueueSubmit")


def test_a_function_that_no_table_has_is_named() -> None:
    functions = library.VulkanFunctions({"vkDeviceWaitIdle": "p"}, lambda name: None)
    with pytest.raises(DeviceError, match="no function vkDeviceWaitIdle"):
        functions.vkDeviceWaitIdle(None)
    with pytest.raises(AttributeError, match="^vkDeviceWaitIdel is no function"):
        functions.vkDeviceWaitIdel()


def test_what_is_no_failure_is_given_back() -> None:
    assert library.checked(library.TIMEOUT, "vkWaitSemaphores") == library.TIMEOUT
