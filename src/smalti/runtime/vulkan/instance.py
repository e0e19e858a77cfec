"""The connection of this process to its Vulkan drivers."""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref

from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.library import VulkanLibrary, listed, load

ASKED = (1, 3)
"""The version of Vulkan that programs are written for, where a device has it."""
PORTABILITY = "VK_KHR_portability_enumeration"
ENUMERATE_PORTABILITY = 1  # of VkInstanceCreateFlagBits

_lock = threading.Lock()
_kept: list[Instance] = []


class Instance:
    """A connection to the Vulkan drivers, through the loader `library`.

    Raises DeviceError where there is no driver.
    """

    def __init__(self, library: VulkanLibrary) -> None:
        known = {text(each.extensionName) for each in listed(
            library.functions.vkEnumerateInstanceExtensionProperties, vk.ExtensionProperties,
            None)}
        asked = [PORTABILITY] if PORTABILITY in known else []
        names = [ctypes.create_string_buffer(each.encode()) for each in asked]
        application = vk.ApplicationInfo(
            pApplicationName=b"smalti\0", pEngineName=b"smalti\0", apiVersion=packed(ASKED))
        pointers = vk.array(ctypes.c_void_p, [ctypes.addressof(name) for name in names])
        self.library = library
        self.handle = library.functions.made("vkCreateInstance", vk.InstanceCreateInfo(
            flags=ENUMERATE_PORTABILITY if asked else 0, pApplicationInfo=application,
            enabledExtensionCount=len(asked), ppEnabledExtensionNames=pointers))
        self.functions = library.of_instance(self.handle)
        self.opened: weakref.WeakSet = weakref.WeakSet()
        """Devices, which are closed before."""
        self.closed = self._forgotten = False

    def devices(self) -> list[int]:
        """The handles of all devices, in the order of the drivers."""
        return listed(self.functions.vkEnumeratePhysicalDevices, ctypes.c_void_p, self.handle)

    def forget(self) -> None:
        """Connect anew the next time, to the drivers that are here then, as a device was lost. This
        connection ends with the last device that is open through it."""
        self._forgotten = True
        with _lock:
            if self in _kept:
                _kept.remove(self)
        self.left()

    def left(self) -> None:
        """A device was closed: end a connection that is forgotten and has no other."""
        if self._forgotten and all(device.closed for device in self.opened):
            self.close()

    def close(self) -> None:
        """Close all devices and end the connection; a second call does nothing."""
        if not self.closed:
            self.closed = True
            for device in tuple(self.opened):
                device.close()
            self.functions.vkDestroyInstance(self.handle, None)


def instance() -> Instance:
    """The connection that this process keeps until it ends, or until that is forgotten.

    Raises DeviceError where this machine has no loader or no driver.
    """
    with _lock:
        if not _kept:
            _kept.append(Instance(load()))
            atexit.register(_kept[0].close)
        return _kept[0]


def text(characters: bytes) -> str:
    """A name as a driver writes it."""
    return characters.decode("utf-8", "replace")


def packed(version: tuple[int, ...]) -> int:
    """A version as Vulkan packs it."""
    return version[0] << 22 | version[1] << 12


def unpacked(version: int) -> tuple[int, int, int]:
    """A version that Vulkan has packed.

    >>> unpacked(packed((1, 3)))
    (1, 3, 0)
    """
    return version >> 22 & 0x7F, version >> 12 & 0x3FF, version & 0xFFF
