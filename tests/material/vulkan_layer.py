"""The Vulkan drivers of this machine, with functions that a test puts in the place of theirs.

    layer = Layer(vkQueueSubmit=lambda real, *arguments: LOST)
    adapter = layer.adapter()

A replacement gets the driver's function and the arguments, and returns what that would, a VkResult
or nothing; None stands for a function that the driver lacks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from smalti.runtime.vulkan.adapter import VulkanAdapter, described
from smalti.runtime.vulkan.instance import Instance
from smalti.runtime.vulkan.library import (
    DEVICE,
    GLOBAL,
    INSTANCE,
    LETTERS,
    VulkanFunctions,
    VulkanLibrary,
    load,
)

LOST = -4
"""VK_ERROR_DEVICE_LOST."""
TABLE = GLOBAL | INSTANCE | DEVICE
FIND = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class Layer:
    """A loader whose functions are `instead` where these have them. `calls` are the names of those
    that were called, in order."""

    def __init__(self, **instead: Callable | None) -> None:
        self.instead, self.calls, self._real = instead, [], load()
        self._made: dict[tuple[bytes, int], object] = {}
        self._find_in_device = FIND(lambda device, name: self._found(
            name, self._device_entry(device, name)))
        self.library = VulkanLibrary(
            VulkanFunctions(GLOBAL, lambda name: self._entry(None, name)), self._entry)
        self.instance = Instance(self.library)

    def adapter(self) -> VulkanAdapter:
        """Its first device."""
        return described(self.instance)[0]

    def _entry(self, instance: int | None, name: bytes) -> int | None:
        found = self._real.entry(instance, name)
        if name == b"vkGetDeviceProcAddr":
            self._device_entry = FIND(found)
            return ctypes.cast(self._find_in_device, ctypes.c_void_p).value
        return self._found(name, found)

    def _found(self, name: bytes, real: int | None) -> int | None:
        """The address of what stands for a function."""
        text = name.decode()
        if text not in self.instead or self.instead[text] is None:
            return None if text in self.instead else real
        key = name, real or 0
        if key not in self._made:
            letters = TABLE[text]
            result = None if letters.startswith("-") else ctypes.c_int32
            kind = ctypes.CFUNCTYPE(result, *[LETTERS[each] for each in letters.lstrip("-")])
            own, replacement = kind(real) if real else None, self.instead[text]

            def called(*arguments: object) -> object:
                self.calls.append(text)
                return replacement(own, *arguments)

            self._made[key] = kind(called)
        return ctypes.cast(self._made[key], ctypes.c_void_p).value
