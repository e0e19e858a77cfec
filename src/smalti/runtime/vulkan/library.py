"""The Vulkan loader and its functions, through ctypes.

Only the functions that computing needs are bound, by hand: a table of letters says what each takes.
Those that give a result raise what a failure means; the GIL is not held while they run.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError
from smalti.runtime.vulkan.structures import CType, word

LOADERS = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"),
    "linux": ("libvulkan.so.1", "libvulkan.so"),
}

# A letter a parameter: p pointer or dispatchable handle, q word of 64 bits or other handle, u word
# of 32 bits. Those that start with a dash give nothing back, the others a VkResult.
GLOBAL = {
    "vkEnumerateInstanceExtensionProperties": "ppp",
    "vkCreateInstance": "ppp",
}
INSTANCE = {
    "vkDestroyInstance": "-pp",
    "vkEnumeratePhysicalDevices": "ppp",
    "vkGetPhysicalDeviceProperties": "-pp",
    "vkGetPhysicalDeviceProperties2": "-pp",
    "vkGetPhysicalDeviceFeatures2": "-pp",
    "vkGetPhysicalDeviceMemoryProperties2": "-pp",
    "vkGetPhysicalDeviceQueueFamilyProperties": "-ppp",
    "vkEnumerateDeviceExtensionProperties": "pppp",
    "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR": "ppp",
    "vkCreateDevice": "pppp",
}
DEVICE = {
    "vkDestroyDevice": "-pp",
    "vkGetDeviceQueue": "-puup",
    "vkDeviceWaitIdle": "p",
    "vkCreateBuffer": "pppp",
    "vkDestroyBuffer": "-pqp",
    "vkGetBufferMemoryRequirements": "-pqp",
    "vkAllocateMemory": "pppp",
    "vkFreeMemory": "-pqp",
    "vkBindBufferMemory": "pqqq",
    "vkMapMemory": "pqqqup",
    "vkCreateShaderModule": "pppp",
    "vkDestroyShaderModule": "-pqp",
    "vkCreateDescriptorSetLayout": "pppp",
    "vkDestroyDescriptorSetLayout": "-pqp",
    "vkCreatePipelineLayout": "pppp",
    "vkDestroyPipelineLayout": "-pqp",
    "vkCreateComputePipelines": "pquppp",
    "vkDestroyPipeline": "-pqp",
    "vkCreatePipelineCache": "pppp",
    "vkDestroyPipelineCache": "-pqp",
    "vkGetPipelineCacheData": "pqpp",
    "vkCreateDescriptorPool": "pppp",
    "vkDestroyDescriptorPool": "-pqp",
    "vkAllocateDescriptorSets": "ppp",
    "vkUpdateDescriptorSets": "-pupup",
    "vkCreateCommandPool": "pppp",
    "vkDestroyCommandPool": "-pqp",
    "vkAllocateCommandBuffers": "ppp",
    "vkBeginCommandBuffer": "pp",
    "vkEndCommandBuffer": "p",
    "vkCmdBindPipeline": "-puq",
    "vkCmdBindDescriptorSets": "-puquupup",
    "vkCmdPushConstants": "-pquuup",
    "vkCmdDispatch": "-puuu",
    "vkCmdDispatchBase": "-puuuuuu",
    "vkCmdCopyBuffer": "-pqqup",
    "vkCmdPipelineBarrier": "-puuuupupup",
    "vkCmdResetQueryPool": "-pquu",
    "vkCmdWriteTimestamp": "-puqu",
    "vkCreateSemaphore": "pppp",
    "vkDestroySemaphore": "-pqp",
    "vkWaitSemaphores": "ppq",
    "vkGetSemaphoreCounterValue": "pqp",
    "vkQueueSubmit": "pupq",
    "vkCreateQueryPool": "pppp",
    "vkDestroyQueryPool": "-pqp",
    "vkGetQueryPoolResults": "pquuqpqu",
}
LETTERS = {"p": ctypes.c_void_p, "q": ctypes.c_uint64, "u": ctypes.c_uint32}

SUCCESS, NOT_READY, TIMEOUT, INCOMPLETE = 0, 1, 2, 5  # of VkResult
FAILURES = {
    -1: ("main memory does not suffice", DeviceMemoryError),
    -2: ("the memory of the device does not suffice", DeviceMemoryError),
    -3: ("it cannot be initialised", DeviceError),
    -4: ("the device was lost: it was reset or removed, or a program hung; open it anew",
         DeviceLostError),
    -5: ("memory cannot be mapped", DeviceMemoryError),
    -6: ("a layer is absent", DeviceError),
    -7: ("an extension is absent", DeviceError),
    -8: ("a feature is absent", DeviceError),
    -9: ("no driver for Vulkan is installed; that of a GPU brings one (on Debian, the package "
         "mesa-vulkan-drivers)", DeviceError),
    -10: ("too many objects", DeviceMemoryError),
    -1000069000: ("a pool of descriptors does not suffice", DeviceMemoryError),
    -1000012000: ("the driver rejects a program", DeviceError),
}


class VulkanFunctions:
    """Functions of Vulkan as attributes; those that the driver lacks raise DeviceError."""

    def __init__(self, table: dict[str, str], find: Callable[[bytes], int | None]) -> None:
        for name, letters in table.items():
            found = find(name.encode())
            setattr(self, name, _bound(name, letters, found) if found else _absent(name))

    def __getattr__(self, name: str) -> Callable[..., int]:
        raise AttributeError(f"{name} is no function of the tables")

    def made(self, create: str, *arguments: object) -> int:
        """The handle that the function `create` makes; `arguments` but the last two."""
        handle = word()
        getattr(self, create)(*arguments, None, handle)
        return handle[0]


def _absent(name: str) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise DeviceError(f"the driver has no function {name}; a newer one may have it")

    return refuse


def _bound(name: str, letters: str, found: int) -> Callable[..., int]:
    silent = letters.startswith("-")
    kinds = [LETTERS[letter] for letter in letters.removeprefix("-")]
    # Any: to the checker all results are objects of ctypes, but those of c_int32 are numbers
    function: Any = ctypes.CFUNCTYPE(None if silent else ctypes.c_int32, *kinds)(found)
    if not silent:
        function.errcheck = lambda result, _, __: checked(result, name)
    return function


def checked(result: int, name: str) -> int:
    """A VkResult that is no failure.

    Raises DeviceMemoryError, DeviceLostError or DeviceError for one that is.

    >>> checked(-9, "vkCreateInstance")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    smalti.errors.DeviceError: vkCreateInstance: no driver for Vulkan is installed; that ...
    """
    if result < 0:
        why, kind = FAILURES.get(result, (f"failure {result}", DeviceError))
        raise kind(f"{name}: {why}")
    return result


class VulkanLibrary(NamedTuple):
    """A Vulkan loader: the functions that need no instance, and the entry that finds the others."""

    functions: VulkanFunctions
    entry: Callable[[int | None, bytes], int | None]

    def of_instance(self, instance: int) -> VulkanFunctions:
        """The functions of an instance."""
        return VulkanFunctions(INSTANCE, lambda name: self.entry(instance, name))

    def of_device(self, instance: int, device: int) -> VulkanFunctions:
        """The functions of a device, without the loader in between."""
        address = self.entry(instance, b"vkGetDeviceProcAddr")
        find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(address)
        return VulkanFunctions(DEVICE, lambda name: find(device, name))


def load(names: Sequence[str] = LOADERS.get(sys.platform, LOADERS["linux"])) -> VulkanLibrary:
    """The first of the loaders `names` that there is.

    Raises DeviceError where this machine has none.
    """
    for name in names:
        try:
            entry = ctypes.CDLL(name).vkGetInstanceProcAddr
        except (OSError, AttributeError):
            continue
        entry.restype, entry.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        first = VulkanFunctions(GLOBAL, partial(entry, None))
        return VulkanLibrary(first, entry)
    raise DeviceError(f"no Vulkan loader ({', '.join(names)}) is installed: it comes with the "
                      "driver of a GPU; on Debian, with the package libvulkan1")


def listed(function: Callable[..., int], kind: CType, *arguments: object) -> list:
    """What `function` lists: it is asked for a count, then for as many of `kind`."""
    while True:
        count = (ctypes.c_uint32 * 1)()
        function(*arguments, count, None)
        found = (kind * count[0])()
        for each in found:
            if hasattr(each, "sType"):
                each.sType = kind.kind
        if function(*arguments, count, found) != INCOMPLETE:
            return list(found)[:count[0]]
